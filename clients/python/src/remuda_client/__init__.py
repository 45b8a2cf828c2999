"""Remuda's Python client: sandboxes for coding agents that can be captured and forked while they run.

`Remuda` is synchronous, `AsyncRemuda` is the same with `await`; both have a method for each operation of the API.
"""

from . import models
from ._async.client import AsyncRemuda
from ._async.sandbox import AsyncSandbox
from ._core import new_key
from ._download import Download, OutputBytes, PortAnswer, TerminalAddress
from ._results import Completed, check_id
from ._sse import EventsMissed, FileChanged, Gap, Happened, Missed, Output, State
from ._sync.client import Remuda
from ._sync.sandbox import Sandbox
from .errors import (
    ApiError,
    ConditionFailed,
    Conflict,
    CreationAmbiguous,
    Ended,
    FileMissing,
    FileRefused,
    Forbidden,
    Gone,
    InputError,
    InvalidRequest,
    LimitReached,
    NotFound,
    NotStarted,
    OutcomeUnknown,
    PermissionDenied,
    ProtocolError,
    RemudaError,
    ServerFailed,
    Stale,
    Unauthorized,
    Unreachable,
)
from .journal import Journal, Kept

__version__ = "0.1.0"
__all__ = [
    "ApiError",
    "AsyncRemuda",
    "AsyncSandbox",
    "Completed",
    "ConditionFailed",
    "Conflict",
    "CreationAmbiguous",
    "Download",
    "Ended",
    "EventsMissed",
    "FileChanged",
    "FileMissing",
    "FileRefused",
    "Forbidden",
    "Gap",
    "Gone",
    "Happened",
    "InputError",
    "InvalidRequest",
    "Journal",
    "Kept",
    "LimitReached",
    "Missed",
    "NotFound",
    "NotStarted",
    "OutcomeUnknown",
    "Output",
    "OutputBytes",
    "PermissionDenied",
    "PortAnswer",
    "ProtocolError",
    "Remuda",
    "RemudaError",
    "Sandbox",
    "ServerFailed",
    "Stale",
    "State",
    "TerminalAddress",
    "Unauthorized",
    "Unreachable",
    "check_id",
    "models",
    "new_key",
]
