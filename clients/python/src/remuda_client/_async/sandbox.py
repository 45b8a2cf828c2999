"""A handle of one generation. It never reaches another one of the same slot."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, AsyncIterator, Mapping, Sequence

from .. import _sse, models
from .._results import Completed
from ..errors import Ended, NotFound
from .waiting import in_spite

if TYPE_CHECKING:
    from .client import AsyncRemuda


class AsyncSandbox:
    """One generation of a sandbox, for whoever works with one. All operations of the API are the client's."""

    def __init__(self, client: AsyncRemuda, id: str) -> None:
        self.client = client
        #: `slot@generation`.
        self.id = id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    async def show(self) -> models.Sandbox:
        """How it stands."""
        return await self.client.show_sandbox(self.id)

    async def run(
        self,
        command: str | None = None,
        *,
        argv: Sequence[str] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: str | None = None,
        timeout_ms: int | None = None,
        key: str | None = None,
    ) -> Completed:
        """Runs one command to its end, as `AsyncRemuda.run`."""
        return await self.client.run(
            self.id,
            command,
            argv=argv,
            cwd=cwd,
            env=env,
            user=user,
            stdin=stdin,
            timeout_ms=timeout_ms,
            key=key,
        )

    async def spawn(self, command: str | None = None, **options: Any) -> models.Execution:
        """Starts one and gives it at once; options are those of `start_execution`."""
        return await self.client.start_execution(self.id, command=command, **options)

    async def follow(self, execution: str, *, offset: int = 0) -> AsyncIterator[_sse.ExecutionEvent]:
        """Its output as it comes, as `AsyncRemuda.follow_execution`."""
        async for event in self.client.follow_execution(self.id, execution, offset=offset):
            yield event

    async def read(self, path: str, *, user: str | None = None) -> bytes:
        """A file, whole."""
        return await self.client.read_bytes(self.id, path, user=user)

    async def write(self, path: str, body: Any, **options: Any) -> models.FileStat:
        """Writes a file, as `AsyncRemuda.write_file`."""
        return await self.client.write_file(self.id, path, body, **options)

    async def snapshot(self, **options: Any) -> models.Snapshot:
        """Captures it, as `AsyncRemuda.create_snapshot`."""
        return await self.client.create_snapshot(self.id, **options)

    @asynccontextmanager
    async def forked(self, count: int, **options: Any) -> AsyncIterator[list[AsyncSandbox]]:
        """Branches for the length of a block; its end removes these generations, and never others.

        Options are those of `fork_sandbox`. A branch that failed is not among them: `fork_sandbox` tells why.
        """
        fork = await self.client.fork_sandbox(self.id, count=count, **options)
        found = [branch.get("sandbox") for branch in fork["branches"]]
        ids = [sandbox["id"] for sandbox in found if isinstance(sandbox, dict)]
        try:
            yield [AsyncSandbox(self.client, id) for id in ids]
        finally:
            for id in ids:
                await in_spite(self.client.discard(id))

    @asynccontextmanager
    async def preview(self, port: int, **options: Any) -> AsyncIterator[models.MadePreview]:
        """Access to a port for the length of a block; its end revokes this preview."""
        made = await self.client.create_preview(self.id, port=port, **options)
        try:
            yield made
        finally:
            await in_spite(self._revoke(made["preview"]["id"]))

    async def _revoke(self, preview: str) -> bool:
        try:
            await self.client.revoke_preview(self.id, preview)
        except (Ended, NotFound):
            return False
        return True

    async def remove(self) -> models.Removal:
        """Ends and removes it."""
        return await self.client.remove_sandbox(self.id)
