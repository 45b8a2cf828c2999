"""What Remuda says, as exceptions that Open SWE's caller knows and that are ours as well."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator

from remuda_client import Ended, NotFound, NotStarted, RemudaError, Stale, Unreachable

from remuda_openswe import caller

if TYPE_CHECKING:
    _Gone = _NotFound = _Retryable = _Connection = Exception
else:
    _Gone, _NotFound = caller.gone_base(), caller.not_found_base()
    _Retryable, _Connection = caller.nothing_ran_base(), caller.unreachable_base()


def _bases(*wanted: type[Exception]) -> tuple[type[Exception], ...]:
    """Those of them that add something: one that another derives from would make no class."""
    kept: list[type[Exception]] = []
    for one in wanted:
        if not any(issubclass(other, one) for other in [*kept, RemudaError]):
            kept.append(one)
    return tuple(kept)


class _Told(RemudaError):
    """An error of ours with the caller's words."""

    def __init__(self, error: RemudaError, **more: Any) -> None:
        RemudaError.__init__(
            self,
            error.message,
            code=error.code,
            cause=error.cause,
            remedy=error.remedy,
            details={**error.details, **more},
            status=error.status,
            key=error.key,
        )
        #: What it was said by.
        self.error = error

    def __str__(self) -> str:
        return str(self.error)


if TYPE_CHECKING:

    class SandboxGone(_Told):
        """It is not there any more: confirmed by the server, with 410 or 404."""

        resource_type: str

    class NothingRan(_Told):
        """Nothing of the call was done."""

    class HostUnreachable(_Told):
        """Nobody answers, which says nothing about the sandbox."""

else:

    def _made(name: str, about: str, bases: tuple[type[Exception], ...], members: dict[str, Any]) -> type:
        return type(name, (_Told, *bases), {"__doc__": about, "__module__": __name__, **members})

    SandboxGone = _made(
        "SandboxGone",
        "It is not there any more: confirmed by the server, with 410 or 404.",
        _bases(_Gone, _NotFound),
        {"resource_type": "sandbox"},
    )
    NothingRan = _made("NothingRan", "Nothing of the call was done.", _bases(_Retryable), {"retry_after": None})
    HostUnreachable = _made(
        "HostUnreachable", "Nobody answers, which says nothing about the sandbox.", _bases(_Connection), {}
    )


@contextmanager
def told(sandbox: str) -> Iterator[None]:
    """Turns what concerns the sandbox into the caller's words; all else stays as it is."""
    try:
        yield
    except _Told:
        raise
    except (Ended, NotFound) as error:
        if isinstance(error, Ended) or error.code == "sandbox_not_found":
            raise SandboxGone(error, sandbox=sandbox) from error
        raise
    except NotStarted as error:
        raise NothingRan(error, sandbox=sandbox) from error
    except Unreachable as error:
        raise HostUnreachable(error, sandbox=sandbox) from error


def successor_of(error: BaseException | None) -> dict[str, Any] | None:
    """What is known of the sandbox in whose place another is made: its id, and what holds its work."""
    seen = 0
    while error is not None and seen < 10:
        if isinstance(error, SandboxGone):
            said = error.error
            return {
                "sandbox": error.details["sandbox"],
                "reason": said.details.get("reason") or said.cause or said.message,
                "snapshots": said.snapshots if isinstance(said, Ended) else [],
                "continued_as": said.continued_as if isinstance(said, Stale) else None,
            }
        error, seen = error.__cause__ or error.__context__, seen + 1
    return None
