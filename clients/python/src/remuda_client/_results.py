"""What a command came to, and what an id looks like."""

from __future__ import annotations

import re
from dataclasses import dataclass

from . import models
from .errors import InvalidRequest

_ID = re.compile(r"[^@\s/]+@\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def check_id(id: str) -> str:
    """The id, if it names a generation. A bare slot could reach a machine that its sender has never seen."""
    if not _ID.fullmatch(id):
        bare = "@" not in id
        raise InvalidRequest(
            f"{id!r} is {'a bare slot' if bare else 'no sandbox id'}",
            code="bare_slot" if bare else "invalid_id",
            remedy="give the whole id, slot@generation",
        )
    return id


@dataclass(frozen=True)
class Completed:
    """A command that has ended."""

    execution: models.Execution
    stdout: str
    stderr: str

    @property
    def id(self) -> str:
        """The execution's id."""
        return self.execution["id"]

    @property
    def state(self) -> models.ExecutionState:
        """How it ended: `exited`, `timed_out`, `cancelled`, …"""
        return self.execution["state"]

    @property
    def exit_code(self) -> int | None:
        """0–255, 128 + N for signal N, 124 after a time-out, 137 after a cancel; None where nothing is known."""
        return self.execution.get("exit_code")

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with 0."""
        return self.state == "exited" and self.exit_code == 0

    @property
    def truncated(self) -> bool:
        """Whether the middle of its output was dropped."""
        return self.execution["output_truncated"]
