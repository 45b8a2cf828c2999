"""What Open SWE does with a thread's sandbox: binding, reconnecting, replacing, and the handle that agents work by."""

from __future__ import annotations

import asyncio
from typing import Any

from deepagents.backends.protocol import ExecuteOffloadResult, ExecuteResponse
from deepagents.backends.sandbox import BaseSandbox

from openswe.sandboxes.providers.registry import SandboxGoneError, create_sandbox

#: Given to every command that has no time-out of its own, in seconds.
EXECUTE_SECONDS = 300
#: What a tool's caller finds ids by.
ID_PATTERN = r"\bsb-[A-Za-z0-9-]+\b"


class SandboxUnreachableError(RuntimeError):
    """The run fails, its user is told, and nothing is replaced."""


class Proxy(BaseSandbox):
    """A thread's handle: asynchronous alone, connected when it is first needed, by one task that all wait for."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self._backend: Any = None
        self._starting: asyncio.Task[Any] | None = None

    async def _ready(self) -> Any:
        if self._backend is None:
            if self._starting is None:
                self._starting = asyncio.ensure_future(self._thread.ensure())
            try:
                self._backend = await asyncio.shield(self._starting)
            finally:
                if self._starting is not None and self._starting.done():
                    self._starting = None
        return self._backend

    @property
    def id(self) -> str:
        return str(self._backend.id)

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        raise NotImplementedError("asynchronous only")

    def upload_files(self, files: Any) -> Any:
        raise NotImplementedError("asynchronous only")

    def download_files(self, paths: Any) -> Any:
        raise NotImplementedError("asynchronous only")

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        limit = EXECUTE_SECONDS if timeout is None else timeout
        result: ExecuteResponse = await (await self._ready()).aexecute(command, timeout=limit)
        return result

    async def aexecute_with_offload(self, command: str, capture_path: str, **options: Any) -> ExecuteOffloadResult:
        if options.get("timeout") is None:
            options["timeout"] = EXECUTE_SECONDS
        result: ExecuteOffloadResult = await (await self._ready()).aexecute_with_offload(command, capture_path, **options)
        return result

    async def adelete(self, file_path: str) -> Any:
        return await (await self._ready()).adelete(file_path)

    async def als(self, path: str) -> Any:
        return await (await self._ready()).als(path)

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> Any:
        return await (await self._ready()).aread(file_path, offset, limit)

    async def awrite(self, file_path: str, content: str) -> Any:
        return await (await self._ready()).awrite(file_path, content)

    async def aedit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> Any:
        return await (await self._ready()).aedit(file_path, old_string, new_string, replace_all)

    async def agrep(self, pattern: str, path: str | None = None, glob: str | None = None, **options: Any) -> Any:
        return await (await self._ready()).agrep(pattern, path, glob, **options)

    async def aglob(self, pattern: str, path: str | None = None) -> Any:
        return await (await self._ready()).aglob(pattern, path)

    async def aupload_files(self, files: Any) -> Any:
        return await (await self._ready()).aupload_files(files)

    async def adownload_files(self, paths: Any) -> Any:
        return await (await self._ready()).adownload_files(paths)


class Thread:
    """A conversation with its metadata, in one of several processes that share nothing but that."""

    def __init__(self, metadata: dict[str, str]) -> None:
        self.metadata = metadata
        self.connections: dict[str, Any] = {}
        self.proxy = Proxy(self)

    async def ensure(self) -> Any:
        """The thread's sandbox: the cached one, or the one that it is bound to, or a new one where that is gone."""
        bound = self.metadata.get("sandbox_id")
        if bound is None:
            backend = await self._create()
        else:
            try:
                backend = await self._connect(bound)
            except SandboxGoneError:
                try:
                    backend = await self._create()
                except Exception as error:
                    raise SandboxUnreachableError(str(error)) from error
        done = await backend.aexecute("f=$(mktemp) && echo url > $f && mv $f $HOME/.tool-url")
        if done.exit_code != 0:
            raise RuntimeError(done.output)
        self.connections[backend.id] = backend
        return backend

    async def _connect(self, bound: str) -> Any:
        backend = self.connections.get(bound)
        if backend is None:
            try:
                backend = await create_sandbox(bound)
            except SandboxGoneError:
                raise
            except Exception as error:
                raise SandboxUnreachableError(str(error)) from error
        await asyncio.create_task(_identity(backend))
        return backend

    async def _create(self) -> Any:
        backend = await create_sandbox()
        await asyncio.create_task(_identity(backend))
        self.metadata["sandbox_id"] = backend.id
        return backend


async def _identity(backend: Any) -> None:
    await backend.aexecute("git config --global user.name 'bot' && git config --global user.email 'bot@example.com'")
