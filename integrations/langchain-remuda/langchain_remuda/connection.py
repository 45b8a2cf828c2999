"""Where the server is. Credentials are looked for when the first call is made, and shown to nobody."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any, Callable, TypeVar
from weakref import WeakKeyDictionary

from remuda_client import AsyncRemuda, Remuda

T = TypeVar("T")

#: Environment variables of Deep Agents' command line go before their plain names.
PREFIX = "DEEPAGENTS_CODE_"


def setting(name: str) -> str | None:
    """A setting of the environment; an empty one is none."""
    return os.environ.get(PREFIX + name) or os.environ.get(name) or None


def off_loop(work: Callable[[], T]) -> T:
    """Does it in a thread where this one runs an event loop: Deep Agents' command line makes its sandbox, and runs its
    setup script, synchronously on the loop of a server that refuses sockets there."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


class Connection:
    """A synchronous client and an asynchronous one for each event loop, made when they are needed."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._sync: Remuda | None = None
        self._async: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncRemuda] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return "<Connection>"

    def _resolved(self) -> dict[str, Any]:
        options = {name: value for name, value in self._options.items() if value is not None}
        if "url" not in options and "socket" not in options:
            url = setting("REMUDA_URL")
            options |= {"url": url} if url else {}
        if "url" in options and "api_key" not in options:
            options["api_key"] = setting("REMUDA_API_KEY")
        if "state_dir" not in options and (state_dir := setting("REMUDA_STATE_DIR")):
            options["state_dir"] = state_dir
        return options

    @property
    def sync(self) -> Remuda:
        """The synchronous client; threads may share it."""
        with self._lock:
            if self._sync is None:
                self._sync = Remuda(**self._resolved())
            return self._sync

    @property
    def asynchronous(self) -> AsyncRemuda:
        """The client of the running event loop: connections can't be used from another one."""
        loop = asyncio.get_running_loop()
        with self._lock:
            found = self._async.get(loop)
            if found is None:
                found = self._async[loop] = AsyncRemuda(**self._resolved())
            return found

    def close(self) -> None:
        """Closes the synchronous client's connections."""
        with self._lock:
            if self._sync is not None:
                self._sync.close()
                self._sync = None

    async def aclose(self) -> None:
        """Closes the connections of the running event loop, and the synchronous client's."""
        with self._lock:
            found = self._async.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.aclose()
        self.close()
