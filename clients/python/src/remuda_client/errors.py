"""What can go wrong, as exceptions that differ where a caller must act differently. They never hold an access key."""

from __future__ import annotations

from typing import Any, Mapping


class RemudaError(Exception):
    """Something went wrong. Its text names the thing, the cause and the remedy."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        cause: str | None = None,
        remedy: str | None = None,
        details: Mapping[str, Any] | None = None,
        status: int | None = None,
        key: str | None = None,
    ) -> None:
        self.message = message
        #: The server's word for it, as in its documentation of errors; empty where the server said nothing.
        self.code = code
        self.cause = cause
        self.remedy = remedy
        self.details: dict[str, Any] = dict(details or {})
        #: The status of the answer, where there was one.
        self.status = status
        #: The key of the call, where it had one.
        self.key = key
        super().__init__(message)

    def __str__(self) -> str:
        lines = [f"{self.message} ({self.code})" if self.code else self.message]
        lines += [f"cause: {self.cause}"] if self.cause else []
        lines += [f"remedy: {self.remedy}"] if self.remedy else []
        lines += [f"key: {self.key}"] if self.key and isinstance(self, OutcomeUnknown) else []
        return "\n".join(lines)


class InputError(RemudaError):
    """The call can't be made as it was asked for; nothing was sent."""


class Unreachable(RemudaError):
    """The server, or the agent of a sandbox, does not answer. That says nothing about whether the sandbox is there."""


class NotStarted(RemudaError):
    """Nothing was done, for sure: the call may be made again."""


class OutcomeUnknown(RemudaError):
    """The call may have been acted on and its answer is missing. `recover(key)` asks what became of it."""


class CreationAmbiguous(OutcomeUnknown):
    """The same of a call that makes something: there may be one more sandbox, snapshot or preview than is known."""


class ProtocolError(RemudaError):
    """The answer is none of this API, as where something else listens there."""


class ApiError(RemudaError):
    """The server refused, or what was asked for failed."""


class InvalidRequest(ApiError):
    """The request is wrong, such as a bare slot for an id."""


class Unauthorized(ApiError):
    """There is no access key, or it is none of this server's."""


class Forbidden(ApiError):
    """The access key may not do this."""


class NotFound(ApiError):
    """There is nothing of that name, and the server knows of none that ended."""


class Ended(ApiError):
    """The generation has ended, for sure: `details` say when and why, and which snapshots hold its work."""

    @property
    def snapshots(self) -> list[str]:
        """Snapshots that were taken of it and can be restored."""
        return [str(snapshot) for snapshot in self.details.get("snapshots") or []]


class Gone(Ended):
    """It has ended, and its slot has no newer generation."""


class Stale(Ended):
    """It has ended, and its slot belongs to a newer generation, which this id never reaches."""

    @property
    def continued_as(self) -> str | None:
        """The generation that goes on with its files, where one does."""
        found = self.details.get("continued_as")
        return None if found is None else str(found)


class Conflict(ApiError):
    """It does not fit the state of things: a slot in use, a sandbox that is paused, another request of the same key."""


class FileMissing(NotFound):
    """The guest has no such file."""


class PermissionDenied(ApiError):
    """The guest's user may not do that to the file."""


class FileRefused(ApiError):
    """The path is not of the kind that the call needs, such as a directory where a file is read."""


class ConditionFailed(ApiError):
    """The file is not what `if_match` or `if_none_match` said; nothing was written."""


class LimitReached(ApiError):
    """A named limit is reached; `details` say which, and where it stands. Nothing was done."""


class ServerFailed(ApiError):
    """The server could not do it, by a fault of its own or of the machine."""


#: Codes that say that nothing of the call was done, and that nothing about the call was wrong.
NOTHING_DONE = frozenset({"spawn_failed", "launch_failed", "operation_cancelled", "interrupted", "shutting_down"})
#: Kinds of operations that make something.
CREATING = frozenset({"create", "restore", "fork", "capture", "start", "import", "create_preview", "create_webhook"})

_BY_CODE: dict[str, type[RemudaError]] = {
    "unauthorized": Unauthorized,
    "forbidden": Forbidden,
    "file_not_found": FileMissing,
    "permission_denied": PermissionDenied,
    "not_a_regular_file": FileRefused,
    "not_a_directory": FileRefused,
    "precondition_failed": ConditionFailed,
    "unreachable": Unreachable,
    "indeterminate": OutcomeUnknown,
    "outcome_evicted": Conflict,
    "preview_gone": NotFound,
    **dict.fromkeys(NOTHING_DONE, NotStarted),
}
_BY_STATUS: dict[int, type[RemudaError]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: ConditionFailed,
    413: LimitReached,
    422: InvalidRequest,
    429: LimitReached,
    507: ServerFailed,
}


def of_answer(status: int, error: Mapping[str, Any], *, key: str | None = None, kind: str | None = None) -> RemudaError:
    """The exception for an error that the server answered."""
    code = str(error.get("code", ""))
    details = error.get("details") or {}
    if code == "generation_gone":
        newer = details.get("slot_has_newer") or details.get("continued_as")
        kind_of_error: type[RemudaError] = Stale if newer else Gone
    elif code == "idempotency_key_conflict":
        kind_of_error = Conflict
    else:
        kind_of_error = _BY_CODE.get(code) or _BY_STATUS.get(status) or (ServerFailed if status >= 500 else ApiError)
    if kind_of_error is OutcomeUnknown and kind in CREATING:
        kind_of_error = CreationAmbiguous
    return kind_of_error(
        str(error.get("message", "the server gave no message")),
        code=code,
        cause=error.get("cause"),
        remedy=error.get("remedy"),
        details=details,
        status=status,
        key=key,
    )


def unknown(name: str, error: RemudaError, *, key: str | None, kind: str | None) -> OutcomeUnknown:
    """What a call ends with whose answer is missing."""
    chosen = CreationAmbiguous if kind in CREATING else OutcomeUnknown
    remedy = "ask with recover(key), which sends the same call with the same key"
    return chosen(
        f"what became of {name} is not known",
        code=error.code,
        cause=str(error.cause or error.message),
        remedy=remedy if key else "look whether it was done; this call takes no key, so it is not sent again",
        details=error.details,
        status=error.status,
        key=key,
    )
