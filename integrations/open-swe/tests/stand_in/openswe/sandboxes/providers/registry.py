"""The table of providers, the exception that means gone, and the call of a factory."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
from typing import Any

SANDBOX_FACTORIES: dict[str, tuple[str, str]] = {"langsmith": ("none", "none")}


class SandboxGoneError(RuntimeError):
    """Replace it and bind the thread anew."""


async def create_sandbox(sandbox_id: str | None = None) -> Any:
    """By `SANDBOX_TYPE`; coroutines are awaited, others go into a thread."""
    module, function = SANDBOX_FACTORIES[os.environ["SANDBOX_TYPE"]]
    factory = getattr(importlib.import_module(module), function)
    if inspect.iscoroutinefunction(factory):
        return await factory(sandbox_id)
    return await asyncio.to_thread(factory, sandbox_id)
