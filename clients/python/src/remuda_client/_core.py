"""Calls, their way onto the wire and back, and when one is sent again: all of it without I/O, for both clients."""

from __future__ import annotations

import base64
import hashlib
import json as json_module
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping
from urllib.parse import quote, urlencode

from .errors import InputError, NotStarted, ProtocolError, RemudaError, Unreachable, of_answer, unknown

#: How long a lost server is looked for before its silence is an answer, in seconds.
LOST_SECONDS_MAX = 30.0
#: How long a call whose first sending is still under way is asked about, in seconds.
IN_PROGRESS_SECONDS_MAX = 900.0
#: How long an answer is waited for beyond what the call itself asks to wait, in seconds.
ANSWER_SECONDS_MAX = 60.0
#: How long a connection may take, in seconds.
CONNECT_SECONDS_MAX = 5.0
#: How often a call is sent to a sandbox that does not answer.
UNREACHABLE_ATTEMPTS_MAX = 3
#: How much of a foreign answer an error quotes, in characters.
EXCERPT_MAX = 200
_FIRST_PAUSE_SECONDS = 0.025
_PAUSE_SECONDS_MAX = 1.0
_GATEWAY_STATUSES = frozenset({502, 503, 504})


def new_key() -> str:
    """A key that nobody else has."""
    return f"key-{secrets.token_hex(16)}"


def segment(text: str) -> str:
    """One part of a path. An empty one, or one of dots, would make another path of it."""
    if not text or text in (".", ".."):
        raise InputError(f"{text!r} can't stand in a path", remedy="give the whole id")
    return quote(text, safe="@:")


@dataclass
class Call:
    """One call of the API that has not been sent."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    json: Mapping[str, Any] | None = None
    headers: Mapping[str, str | None] = field(default_factory=dict)
    #: Bytes, the path of a local file, or something that gives bytes once.
    body: Any = None
    #: The kind of operation, where the call changes something and takes a key.
    kind: str | None = None
    sandbox: str | None = None
    key: str | None = None
    #: It takes no key and must not go out twice.
    once: bool = False

    @property
    def wait_seconds(self) -> float:
        """How long the server was asked to wait."""
        asked = (self.json or {}).get("wait_ms") or self.query.get("wait_ms") or 0
        return float(asked) / 1000


@dataclass
class Sealed:
    """A call as it goes onto the wire, each time the same."""

    method: str
    target: str
    headers: dict[str, str]
    body: Any
    kind: str | None
    sandbox: str | None
    key: str | None
    once: bool
    wait_seconds: float = 0.0

    @property
    def name(self) -> str:
        """For errors."""
        return f"{self.method} {self.target.split('?')[0]}"

    @property
    def repeatable(self) -> bool:
        """Whether it may go out again: it changes nothing or has a key, and its body is still there."""
        return not self.once and (self.body is None or isinstance(self.body, (bytes, Path)))


def seal(call: Call) -> Sealed:
    """Gives it its key and its exact bytes."""
    pairs: list[tuple[str, str]] = []
    for name, value in call.query.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is not None:
                pairs.append((name, str(one).lower() if isinstance(one, bool) else str(one)))
    headers = {name: value for name, value in call.headers.items() if value is not None}
    body = bytes(call.body) if isinstance(call.body, (bytearray, memoryview)) else call.body
    if call.json is not None:
        members = {name: value for name, value in call.json.items() if value is not None}
        body = json_module.dumps(members, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        headers["content-type"] = "application/json"
    key = (call.key or new_key()) if call.kind else None
    if key is not None:
        headers["idempotency-key"] = key
    if call.kind == "write_file" and isinstance(body, bytes):
        headers["content-digest"] = f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"
    target = call.path + ("?" + urlencode(pairs, quote_via=quote, safe="@:/") if pairs else "")
    return Sealed(
        call.method, target, headers, body, call.kind, call.sandbox, key, call.once, wait_seconds=call.wait_seconds
    )


class Missed(Exception):
    """One sending had no good answer."""

    def __init__(self, error: RemudaError, *, sent: bool = True, replayed: bool = False, answered: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        #: Whether the server may have seen it.
        self.sent = sent
        #: Whether the error is the outcome of an earlier sending.
        self.replayed = replayed
        #: Whether it is the server that said so.
        self.answered = answered


def lost(sealed: Sealed, where: str, error: Exception, *, sent: bool) -> Missed:
    """A sending whose connection failed."""
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    how = "no answer" if sent else "no connection"
    remedy = "see whether the server runs there"
    return Missed(Unreachable(f"{sealed.name}: {how} from {where}", cause=cause, remedy=remedy), sent=sent)


def refused(sealed: Sealed, status: int, headers: Mapping[str, str], body: bytes) -> Missed:
    """A sending that was answered with an error."""
    replayed = headers.get("idempotent-replay") == "true"
    try:
        error = json_module.loads(body)["error"]
        code = error["code"]
    except (ValueError, KeyError, TypeError):
        found = body.decode("utf-8", "replace")[:EXCERPT_MAX]
        problem = ProtocolError(
            f"{sealed.name} was answered with status {status} and no error of this API", cause=found, status=status
        )
        return Missed(problem)
    assert isinstance(code, str)
    known = of_answer(status, error, key=sealed.key, kind=sealed.kind)
    return Missed(known, replayed=replayed, answered=True)


def json_of(sealed: Sealed, status: int, body: bytes) -> Any:
    """What an answer says."""
    if not body:
        return None
    try:
        return json_module.loads(body)
    except ValueError as error:
        found = body.decode("utf-8", "replace")[:EXCERPT_MAX]
        raise ProtocolError(f"{sealed.name} was answered with no JSON: {found!r}", status=status) from error


class Patience:
    """What is known of a call that has been sent at least once, and how long it is sent again."""

    def __init__(self, sealed: Sealed, lost_seconds_max: float) -> None:
        self._sealed = sealed
        self._lost_max = lost_seconds_max
        self._lost_since: float | None = None
        self._in_progress_since: float | None = None
        self._unreachable = 0
        self._pauses = 0
        self._answer_lost = False
        # Whether the server was heard of: then its silence may be a restart.
        self._was_there = False

    def after(self, missed: Missed, now: float) -> float:
        """How long to wait before the call is sent once more; raises its error where that would change nothing."""
        if self._sealed.repeatable and self._again(missed, now):
            pause = min(_FIRST_PAUSE_SECONDS * 2.0 ** min(self._pauses, 10), _PAUSE_SECONDS_MAX)
            self._pauses += 1
            return pause
        if not missed.answered:
            self._answer_lost |= missed.sent
        raise self._concluded(missed)

    def _again(self, missed: Missed, now: float) -> bool:
        code = missed.error.code
        if not missed.answered:
            if not missed.sent and not self._answer_lost and not self._was_there:
                # Nothing was ever there: that is for the caller to know at once.
                return False
            if isinstance(missed.error, ProtocolError) and missed.error.status not in _GATEWAY_STATUSES:
                return False
            self._answer_lost |= missed.sent
            return self._lost_for_less(now)
        self._was_there = True
        if missed.replayed:
            return False
        if code == "operation_in_progress":
            self._lost_since = None
            if self._in_progress_since is None:
                self._in_progress_since = now
            return now - self._in_progress_since < IN_PROGRESS_SECONDS_MAX
        if code == "shutting_down":
            return self._lost_for_less(now)
        if code == "unreachable":
            self._unreachable += 1
            return self._unreachable < UNREACHABLE_ATTEMPTS_MAX
        return False

    def _lost_for_less(self, now: float) -> bool:
        if self._lost_since is None:
            self._lost_since = now
        return now - self._lost_since < self._lost_max

    def _leaves_open(self, missed: Missed) -> bool:
        """Whether its last error leaves open what became of the call."""
        if not missed.answered:
            return self._answer_lost
        if missed.replayed:
            return False
        code, status = missed.error.code, missed.error.status
        if code in ("operation_in_progress", "journal_failed", "internal", "unreachable"):
            return True
        # Said before the key is looked up, and so nothing about an earlier sending.
        return self._answer_lost and (code == "shutting_down" or status in (401, 403))

    def _concluded(self, missed: Missed) -> RemudaError:
        error, sealed = missed.error, self._sealed
        changes = sealed.kind is not None or sealed.once
        if not changes:
            return error
        if self._leaves_open(missed):
            return unknown(sealed.name, error, key=sealed.key, kind=sealed.kind)
        if not missed.answered and not missed.sent:
            return NotStarted(
                f"{sealed.name} was not sent", cause=error.message, remedy=error.remedy, key=sealed.key
            ).with_traceback(None)
        return error
