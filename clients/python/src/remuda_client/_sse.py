"""Server-sent events: their lines, and where a stream that broke off goes on. No I/O."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, Union

from . import models
from ._core import Call
from .errors import ApiError, RemudaError, of_answer


@dataclass(frozen=True)
class ServerSent:
    """One event as it came."""

    event: str
    data: str
    id: str | None


class Parser:
    """Turns bytes, cut anywhere, into events."""

    def __init__(self) -> None:
        self._rest = b""
        self._event = ""
        self._data: list[str] = []
        self._id: str | None = None
        #: The id of the last event, also of one without data, which only tells where the stream begins.
        self.last_id: str | None = None

    def feed(self, piece: bytes) -> list[ServerSent]:
        """The events that are whole now."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        found = []
        for raw in lines:
            line = raw.rstrip(b"\r").decode("utf-8", "replace")
            if not line:
                self.last_id = self._id
                if self._data:
                    found.append(ServerSent(self._event or "message", "\n".join(self._data), self._id))
                self._event, self._data = "", []
                continue
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                self._event = value
            elif name == "data":
                self._data.append(value)
            elif name == "id":
                self._id = value
        return found


@dataclass(frozen=True)
class Output:
    """Output of an execution, byte for byte."""

    stream: Literal["stdout", "stderr"]
    data: bytes
    #: Where it stands in the one log of both streams.
    offset: int
    #: Where to go on behind it.
    next_offset: int


@dataclass(frozen=True)
class Gap:
    """Output of the middle that is no longer kept."""

    offset: int
    missed: int
    next_offset: int


@dataclass(frozen=True)
class State:
    """The execution as it stands: at the beginning, and at its end."""

    execution: models.Execution


ExecutionEvent = Union[Output, Gap, State]


@dataclass(frozen=True)
class FileChanged:
    """A change of a file that is watched."""

    change: models.FileEvent
    id: str | None


@dataclass(frozen=True)
class Missed:
    """More happened than could be told: look at all of it."""

    id: str | None


Watched = Union[FileChanged, Missed]


@dataclass(frozen=True)
class Happened:
    """Something that happened in the account."""

    event: models.Event


@dataclass(frozen=True)
class EventsMissed:
    """Events that are no longer kept."""

    missed: int


AccountEvent = Union[Happened, EventsMissed]
E_ = TypeVar("E_")


class Follower(Generic[E_]):
    """A stream that is gone on with where it broke off."""

    def __init__(self, call: Call, last_id: str | None = None) -> None:
        self.call = call
        self.last_id = last_id
        self.ended = False
        self._parser = Parser()

    def headers(self) -> dict[str, str]:
        """What the next request says beside the call's own."""
        self._parser = Parser()
        headers = {"accept": "text/event-stream"}
        if self.last_id is not None:
            headers["last-event-id"] = self.last_id
        return headers

    def feed(self, piece: bytes) -> list[E_]:
        """Events that are whole now."""
        found = []
        for sent in self._parser.feed(piece):
            found.append(self.told(sent))
        if self._parser.last_id is not None:
            self.last_id = self._parser.last_id
        return [one for one in found if one is not None]

    def told(self, sent: ServerSent) -> E_ | None:
        """What one of them says."""
        raise NotImplementedError


def _of(sent: ServerSent) -> Any:
    data = json.loads(sent.data)
    if sent.event == "error":
        error: RemudaError = of_answer(500, data.get("error", data))
        raise error if isinstance(error, ApiError) else RemudaError(str(error))
    return data


class ExecutionFollower(Follower[ExecutionEvent]):
    """Follows an execution; ends with the state that has its end."""

    def told(self, sent: ServerSent) -> ExecutionEvent | None:
        data = _of(sent)
        if sent.event == "state":
            # The first one may tell an end too, before the output: the id says which is the last.
            self.ended = (sent.id or "").endswith("-ended")
            return State(data)
        if sent.event == "gap":
            return Gap(data["offset"], data["missed"], int(sent.id or data["offset"] + data["missed"]))
        if sent.event == "output":
            text, encoded = data.get("text"), data.get("base64")
            body = text.encode() if text is not None else base64.b64decode(encoded or "")
            return Output(data["stream"], body, data["offset"], data["offset"] + len(body))
        return None


class WatchFollower(Follower[Watched]):
    """Follows the changes below a directory; ends when what was watched is gone."""

    def told(self, sent: ServerSent) -> Watched | None:
        data = _of(sent)
        if sent.event == "missed":
            return Missed(sent.id)
        self.ended = sent.event == "gone"
        change: models.FileEvent = data
        return FileChanged(change, sent.id)


class EventFollower(Follower[AccountEvent]):
    """Follows what happens in the account; never ends by itself."""

    def told(self, sent: ServerSent) -> AccountEvent | None:
        data = _of(sent)
        return EventsMissed(int(data.get("missed", 0))) if sent.event == "gap" else Happened(data)
