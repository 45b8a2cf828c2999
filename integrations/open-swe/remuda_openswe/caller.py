"""The exceptions by which Open SWE tells things apart, wherever this version of it has them. Nothing else of it is used."""

from __future__ import annotations

from importlib import import_module

#: Where the registry is: today, and before autumn 2026.
REGISTRIES = ("openswe.sandboxes.providers.registry", "agent.utils.sandbox")


def registry_names() -> list[str]:
    """Modules that hold the registry here."""
    return [name for name in REGISTRIES if _has(name, "SANDBOX_FACTORIES")]


def gone_base() -> type[Exception]:
    """What triggers a replacement."""
    return _found(REGISTRIES, "SandboxGoneError", RuntimeError)


def nothing_ran_base() -> type[Exception]:
    """What a tool's caller takes for "nothing ran": it says so to the agent, and the run goes on."""
    return _found(("langsmith.sandbox",), "SandboxRetryableConnectionError", RuntimeError)


def unreachable_base() -> type[Exception]:
    """What ends a run with a note to its user."""
    return _found(("langsmith.sandbox",), "SandboxConnectionError", RuntimeError)


def not_found_base() -> type[Exception]:
    """The same for a box that is not there."""
    return _found(("langsmith.sandbox",), "ResourceNotFoundError", RuntimeError)


def _has(module: str, name: str) -> bool:
    try:
        return hasattr(import_module(module), name)
    except ImportError:
        return False


def _found(modules: tuple[str, ...], name: str, otherwise: type[Exception]) -> type[Exception]:
    for module in modules:
        try:
            found = getattr(import_module(module), name, None)
        except ImportError:
            continue
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    return otherwise
