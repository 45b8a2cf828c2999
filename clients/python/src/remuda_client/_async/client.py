"""The client: every operation of the API, and what is made of several of them."""

from __future__ import annotations

from types import TracebackType
from typing import Any, AsyncIterator, Literal, Mapping, Sequence

from contextlib import asynccontextmanager

from .. import models
from .._core import json_of, new_key
from .._results import Completed, check_id
from ..errors import Conflict, CreationAmbiguous, Ended, InputError, NotFound, OutcomeUnknown, of_answer
from ..journal import Kept
from .sandbox import AsyncSandbox
from .streams import AsyncStreams
from .waiting import INTERRUPTIONS, blocking, in_spite

#: How long one request waits for the end of an execution, in milliseconds; then it is asked again.
WAIT_MS = 20_000


class AsyncRemuda(AsyncStreams):
    """A client of Remuda. Each operation of the API is a method of its name; answers are typed dictionaries."""

    async def __aenter__(self) -> AsyncRemuda:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # --- running commands ---------------------------------------------------------------------------------------------

    async def run(
        self,
        id: str,
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
        """Runs one command to its end and gives its output. One that fails is no error: its exit code says so.

        Whoever is interrupted here, by a cancelled task or Ctrl-C, ends the command in the guest, also where it is only
        on its way there. A server that is restarted meanwhile is no error.
        """
        key = key or new_key()
        try:
            execution = await self.start_execution(
                id,
                command=command,
                argv=argv,
                cwd=cwd,
                env=env,
                user=user,
                stdin=stdin,
                timeout_ms=timeout_ms,
                wait_ms=WAIT_MS,
                key=key,
            )
            execution = await self.wait_execution(id, execution["id"], execution)
            return await self.completed(id, execution)
        except INTERRUPTIONS:
            await in_spite(self.cancel_by_key(id, key))
            raise

    async def wait_execution(
        self, id: str, execution: str, known: models.Execution | None = None
    ) -> models.Execution:
        """Waits for the end of an execution, over lost connections and restarts of the server."""
        while known is None or known["state"] == "running":
            known = await self.show_execution(id, execution, wait_ms=WAIT_MS)
        return known

    async def completed(self, id: str, execution: models.Execution) -> Completed:
        """What an execution that has ended came to, with all of its output that is kept."""
        stdout, stderr = execution.get("stdout"), execution.get("stderr")
        # A replayed answer, and one that came before the end, is without.
        if stdout is None or stderr is None:
            stdout = (await self.all_output(id, execution["id"], "stdout")).decode("utf-8", "replace")
            stderr = (await self.all_output(id, execution["id"], "stderr")).decode("utf-8", "replace")
        return Completed(execution, stdout, stderr)

    async def all_output(
        self, id: str, execution: str, stream: Literal["stdout", "stderr"] | None = None
    ) -> bytes:
        """All output that is kept, of one stream or of both in the order in which it came."""
        found, offset = bytearray(), 0
        while True:
            page = await self.read_output_bytes(id, execution, offset=offset, stream=stream)
            found += page.data
            if page.complete or page.next_offset == offset:
                return bytes(found)
            offset = page.next_offset

    async def cancel_by_key(self, id: str, key: str) -> models.Execution | None:
        """Makes sure that the command that was started with this key does not run: it is cancelled, or never begins.

        Gives the execution, where there is one.
        """
        try:
            cancellation = await self.cancel_operation(kind="execute", key=key, sandbox=id)
            await self._settle_key(key, "execute")
            operation = cancellation.get("operation")
            made = (operation.get("made") or {}) if operation else {}
            execution = made.get("execution")
            if execution is None:
                return None
            return await self.cancel_execution(id, execution)
        except (Ended, NotFound, Conflict):
            # It has ended, or its machine has.
            return None

    # --- sandboxes with an end ----------------------------------------------------------------------------------------

    def attach(self, id: str) -> AsyncSandbox:
        """A handle of one generation. Nothing is asked, and nothing is removed."""
        return AsyncSandbox(self, check_id(id))

    @asynccontextmanager
    async def sandbox(self, *, key: str | None = None, **options: Any) -> AsyncIterator[AsyncSandbox]:
        """A sandbox for the length of a block. The end of the block removes this generation, and never another.

        Options are those of `create_sandbox`. Whoever is interrupted while it is made leaves none behind.
        """
        made = await self.new_sandbox(**options, key=key)
        try:
            yield AsyncSandbox(self, made["id"])
        finally:
            await in_spite(self.discard(made["id"]))

    async def new_sandbox(
        self, *, snapshot: str | None = None, key: str | None = None, **options: Any
    ) -> models.Sandbox:
        """Makes a sandbox, from the image or a snapshot, as `create_sandbox` and `restore_snapshot`.

        Whoever is interrupted meanwhile leaves none behind.
        """
        key = key or new_key()
        try:
            return await self._new(snapshot, key, options)
        except INTERRUPTIONS:
            await in_spite(self._unmake(snapshot, key, options))
            raise

    async def _new(self, snapshot: str | None, key: str, options: Mapping[str, Any]) -> models.Sandbox:
        if snapshot is None:
            return await self.create_sandbox(**options, key=key)
        return await self.restore_snapshot(snapshot, **options, key=key)

    async def _unmake(self, snapshot: str | None, key: str, options: Mapping[str, Any]) -> bool:
        kind = "create" if snapshot is None else "restore"
        cancellation = await self.cancel_operation(kind=kind, key=key)
        await self._settle_key(key, kind)
        if cancellation["result"] == "cancelled":
            return False
        # It was admitted: the same call with the same key waits for its end and names what it made.
        made = await self._new(snapshot, key, options)
        return await self.discard(made["id"])

    async def discard(self, id: str) -> bool:
        """Removes this generation if it is still there; whether it was. A newer one in its slot is not touched."""
        try:
            return (await self.remove_sandbox(id))["result"] == "removed"
        except (Ended, NotFound):
            return False

    async def discard_in_spite(self, id: str) -> bool:
        """The same, to its end also when the caller is interrupted meanwhile."""
        return await in_spite(self.discard(id))

    # --- keys ---------------------------------------------------------------------------------------------------------

    def pending(self) -> list[Kept]:
        """Calls of this or an earlier process whose outcome did not come in, oldest first."""
        return [] if self.journal is None else self.journal.pending()

    async def recover(self, key: str) -> Any:
        """What became of a call that was made with this key, by this process or another with the same `state_dir`.

        Sends the kept call again, with the same key and the same bytes, so that it is done once: what comes back is its
        one outcome, as the call would have answered it. Where its body is gone, the server's record is asked.
        """
        kept = [] if self.journal is None else await blocking(self.journal.of_key, key)
        if not kept:
            return await self._recorded(key)
        first = kept[0]
        if first.target != self.target:
            raise InputError(
                f"the call with the key {key} was for {first.target}, and this client talks to {self.target}", key=key
            )
        assert self.journal is not None
        if not await blocking(self.journal.check_body, first):
            return await self._recorded(key)
        sealed, status, _, body = await self._send_kept(first.call, first)
        return json_of(sealed, status, body)

    async def _recorded(self, key: str) -> Any:
        operations = (await self.list_operations(key=key))["operations"]
        if not operations:
            raise NotFound(
                f"no call with the key {key} is kept here or was admitted by the server",
                remedy="if it may still be on its way, cancel_operation makes sure that it never runs",
                key=key,
            )
        operation = operations[0]
        error = operation.get("error")
        if operation["state"] == "done":
            return operation.get("result")
        if error is not None:


            raise of_answer(409, error, key=key, kind=operation["kind"])
        ambiguous = CreationAmbiguous if operation.get("made") else OutcomeUnknown
        raise ambiguous(f"the call with the key {key} is {operation['state']}", key=key, details={"operation": operation})


