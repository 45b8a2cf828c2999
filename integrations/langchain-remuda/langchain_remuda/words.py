"""What Remuda says, in the words of Deep Agents. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from deepagents.backends.protocol import ExecuteResponse, FileInfo
from remuda_client import (
    Ended,
    FileMissing,
    FileRefused,
    NotFound,
    OutcomeUnknown,
    PermissionDenied,
    RemudaError,
    Unauthorized,
    Unreachable,
    models,
)

#: Longer commands go into a file first, in bytes; the server takes 1 MiB with the environment.
COMMAND_BYTES_MAX = 960 << 10
#: What concerns the sandbox and not the one file: it is raised, also in the middle of several.
OF_THE_SANDBOX = (Ended, Unreachable, Unauthorized)


def file_error(error: RemudaError) -> str:
    """Deep Agents' word for what is wrong with one file; raises what is not about the file."""
    if isinstance(error, OF_THE_SANDBOX) or (isinstance(error, NotFound) and not isinstance(error, FileMissing)):
        raise error
    if isinstance(error, FileMissing):
        return "file_not_found"
    if isinstance(error, PermissionDenied):
        return "permission_denied"
    if isinstance(error, FileRefused):
        return "invalid_path" if error.code == "not_a_directory" else "is_directory"
    if isinstance(error, OutcomeUnknown):
        return f"outcome_unknown (key {error.key})"
    return error.code or error.message


def file_info(stat: models.FileStat) -> FileInfo:
    """An entry of a listing."""
    modified = datetime.fromtimestamp(stat["modified_at_ms"] / 1000, UTC)
    return FileInfo(
        path=stat["path"], is_dir=stat["kind"] == "directory", size=stat["size"], modified_at=modified.isoformat()
    )


def time_limit_ms(timeout: int | None, default: int) -> int | None:
    """The time limit of a command: None is the backend's own, and 0 none."""
    seconds = default if timeout is None else timeout
    if seconds < 0:
        raise ValueError(f"a timeout of {seconds} seconds is none; 0 means that there is no limit")
    return seconds * 1000 or None


@dataclass(frozen=True)
class Script:
    """A command that lies in a file of the guest."""

    path: str
    command: str


def long_script(command: str, key: str) -> Script | None:
    """Where a command goes that is too long for a call, such as a large edit with its text in it."""
    if len(command) * 4 <= COMMAND_BYTES_MAX or len(command.encode()) <= COMMAND_BYTES_MAX:
        return None
    path = f"/tmp/.remuda-{key}.sh"
    return Script(path, f"sh {path}; code=$?; rm -f {path}; exit $code")


def response(execution: models.Execution, output: bytes, timeout: int) -> ExecuteResponse:
    """What a command came to."""
    text = output.decode("utf-8", "replace")
    exit_code = execution.get("exit_code")
    if execution["state"] == "timed_out":
        note = f"the command was ended after {timeout} seconds"
        text = f"{text.rstrip()}\n{note}" if text.strip() else note
    if exit_code is None:
        raise OutcomeUnknown(
            f"what became of {execution['id']} is not known",
            code=execution["state"],
            cause=f"the sandbox {execution['sandbox']} ended or lost it while it ran",
            remedy="look in the sandbox, or in a snapshot of it, before it is run again",
        )
    return ExecuteResponse(output=text, exit_code=exit_code, truncated=execution["output_truncated"])
