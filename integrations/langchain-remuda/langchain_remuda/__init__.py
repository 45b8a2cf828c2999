"""Remuda sandboxes for Deep Agents. An id is `slot@generation`; what has ended is refused, and never replaced."""

from remuda_client import (
    CreationAmbiguous,
    Ended,
    Gone,
    NotFound,
    NotStarted,
    OutcomeUnknown,
    RemudaError,
    Stale,
    Unreachable,
)

from langchain_remuda.lifecycle import made_sandbox
from langchain_remuda.sandbox import RemudaSandbox

__version__ = "0.1.0"
__all__ = [
    "CreationAmbiguous",
    "Ended",
    "Gone",
    "NotFound",
    "NotStarted",
    "OutcomeUnknown",
    "RemudaError",
    "RemudaSandbox",
    "Stale",
    "Unreachable",
    "made_sandbox",
]
