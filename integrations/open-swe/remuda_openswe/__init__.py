"""Remuda as a sandbox provider of Open SWE. What can't be reached is never taken for gone."""

from remuda_openswe.backend import OpenSWESandbox
from remuda_openswe.factory import create_remuda_sandbox, register
from remuda_openswe.ids import native_id, thread_id
from remuda_openswe.words import HostUnreachable, NothingRan, SandboxGone

__version__ = "0.1.0"
__all__ = [
    "HostUnreachable",
    "NothingRan",
    "OpenSWESandbox",
    "SandboxGone",
    "create_remuda_sandbox",
    "native_id",
    "register",
    "thread_id",
]
