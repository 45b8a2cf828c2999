"""The factory that Open SWE calls: a new sandbox without an id, the same one with it, and never another in its place."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from langchain_remuda.connection import Connection
from langchain_remuda.lifecycle import Lifecycle
from remuda_client import InputError

from remuda_openswe.backend import OpenSWESandbox
from remuda_openswe.caller import registry_names
from remuda_openswe.ids import native_id
from remuda_openswe.words import successor_of, told

#: How long a sandbox without work lives, and the longest that any does, in milliseconds; then its work is captured.
IDLE_MS = 2 * 3600 * 1000
TIMEOUT_MS = 24 * 3600 * 1000
LABELS = {"made-by": "open-swe"}

_CONNECTION = Connection()


def register(name: str = "remuda") -> list[str]:
    """Puts the factory into the registry of the Open SWE that is installed; gives the modules where it did."""
    found = registry_names()
    if not found:
        raise InputError("no registry of Open SWE is installed here", remedy="import this where Open SWE is")
    for module in found:
        import_module(module).SANDBOX_FACTORIES[name] = ("remuda_openswe.factory", "create_remuda_sandbox")
    return found


async def create_remuda_sandbox(sandbox_id: str | None = None) -> OpenSWESandbox:
    """A sandbox for a thread. With an id it is that generation, or an exception."""
    if sandbox_id is None:
        # Called while the caller handles that the old one is gone, this is its replacement.
        return await _make(successor_of(sys.exc_info()[1]))
    native = native_id(sandbox_id)
    lifecycle = Lifecycle(_CONNECTION)
    with told(sandbox_id):
        found = await lifecycle.afind(native)
        # Deadlines are not extended by work: that a thread came back is a reason.
        await _CONNECTION.asynchronous.set_deadline(native, timeout_ms=_number("REMUDA_OPENSWE_TIMEOUT_MS", TIMEOUT_MS))
    return OpenSWESandbox(found.id, connection=_CONNECTION)


async def _make(gone: dict[str, Any] | None) -> OpenSWESandbox:
    lifecycle = Lifecycle(_CONNECTION)
    options: dict[str, Any] = {
        "labels": LABELS,
        "timeout_ms": _number("REMUDA_OPENSWE_TIMEOUT_MS", TIMEOUT_MS),
        "idle_timeout_ms": _number("REMUDA_OPENSWE_IDLE_MS", IDLE_MS),
        "on_deadline": "snapshot",
    }
    snapshot = os.environ.get("REMUDA_OPENSWE_SNAPSHOT") or None
    notice = None
    if gone is not None:
        kept = gone["snapshots"][-1] if gone["snapshots"] else None
        about = f"the sandbox of this thread, {gone['sandbox']}, has ended: {gone['reason']}"
        if kept is not None and _restores():
            snapshot = kept
            notice = f"{about}. This one was restored from {kept}; what was done after that is not in it"
        else:
            where = f"; its last work is kept in {kept}" if kept else "; nothing of its work was kept"
            notice = f"{about}. This is a new one, without its files{where}"
    if snapshot is None and (memory := _number("REMUDA_OPENSWE_MEMORY_MIB", 0)):
        options["memory_mib"] = memory
    with told("a new sandbox"):
        made = await lifecycle.amake(snapshot=snapshot, **options)
    return OpenSWESandbox(made.id, connection=_CONNECTION, notice=notice)


def _restores() -> bool:
    word = os.environ.get("REMUDA_OPENSWE_RESTORE") or "never"
    if word not in ("never", "last"):
        raise InputError(f"REMUDA_OPENSWE_RESTORE is {word!r}", remedy="set it to never or to last")
    return word == "last"


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name) or ""
    if not text:
        return otherwise
    if not text.isdigit():
        raise InputError(f"{name} is {text!r}, and no number")
    return int(text)
