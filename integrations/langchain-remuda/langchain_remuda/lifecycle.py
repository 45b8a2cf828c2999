"""Making, finding and ending the sandboxes that agents get. Nothing is ever replaced without the caller's word."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Mapping

from remuda_client import Conflict, InputError, check_id, models, new_key

from langchain_remuda.connection import Connection
from langchain_remuda.sandbox import TIMEOUT_SECONDS, RemudaSandbox

#: Where agents work in the guest.
WORKING_DIR = "/workspace"
#: Made once in every sandbox: agents and their tests call `python`, and an image may have `python3` alone.
PREPARE = "command -v python >/dev/null || ln -s \"$(command -v python3)\" /usr/local/bin/python"
#: Label of sandboxes that are made here, so that they are found again.
LABELS = {"made-by": "langchain-remuda"}


def restore_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Of the options of a new sandbox those that a restored one takes."""
    known = {"slot", "labels", "launch", "timeout_ms", "on_deadline", "idle_timeout_ms"}
    if strange := set(options) - known:
        raise InputError(f"a sandbox from a snapshot takes no {', '.join(sorted(strange))}: it has the snapshot's")
    return dict(options)


def must_run(found: models.Sandbox) -> bool:
    """Whether a sandbox that was found has to be resumed first; raises where it can't be worked in."""
    state = found["state"]
    if state in ("running", "starting"):
        return False
    if state == "paused":
        return True
    raise Conflict(
        f"{found['id']} is {state}",
        code="wrong_state",
        remedy="start it: that makes its next generation, with an id of its own, from its files",
        details={"state": state},
    )


class Lifecycle:
    """Makes, finds and ends sandboxes on one server."""

    def __init__(self, connection: Connection, *, timeout: int = TIMEOUT_SECONDS) -> None:
        self.connection = connection
        self.timeout = timeout

    def make(self, *, snapshot: str | None = None, key: str | None = None, **options: Any) -> RemudaSandbox:
        """A new sandbox, from the image or from a snapshot; options are those of the client's calls.

        Where the answer is lost for good, `CreationAmbiguous` has the key with which it is found again.
        """
        client, key = self.connection.sync, key or new_key()
        options["labels"] = {**LABELS, **(options.get("labels") or {})}
        if snapshot is None:
            made = client.create_sandbox(**options, key=key)
        else:
            made = client.restore_snapshot(snapshot, **restore_options(options), key=key)
        try:
            client.run(made["id"], PREPARE, user="root", cwd="/", key=f"{key}-prepare")
        except BaseException:
            client.discard(made["id"])
            raise
        return self._backend(made["id"])

    async def amake(self, *, snapshot: str | None = None, key: str | None = None, **options: Any) -> RemudaSandbox:
        """The same; whoever is cancelled meanwhile leaves none behind."""
        client, key = self.connection.asynchronous, key or new_key()
        options["labels"] = {**LABELS, **(options.get("labels") or {})}
        if snapshot is None:
            made = await client.new_sandbox(**options, key=key)
        else:
            made = await client.new_sandbox(snapshot=snapshot, **restore_options(options), key=key)
        try:
            await client.run(made["id"], PREPARE, user="root", cwd="/", key=f"{key}-prepare")
        except BaseException:
            await client.discard_in_spite(made["id"])
            raise
        return self._backend(made["id"])

    def find(self, sandbox_id: str) -> RemudaSandbox:
        """The sandbox of an id. A bare slot is refused, and one that has ended is never replaced."""
        client = self.connection.sync
        if must_run(client.show_sandbox(check_id(sandbox_id))):
            client.resume_sandbox(sandbox_id)
        return self._backend(sandbox_id)

    async def afind(self, sandbox_id: str) -> RemudaSandbox:
        """The same."""
        client = self.connection.asynchronous
        if must_run(await client.show_sandbox(check_id(sandbox_id))):
            await client.resume_sandbox(sandbox_id)
        return self._backend(sandbox_id)

    def end(self, sandbox_id: str) -> bool:
        """Removes this generation; whether it was still there. A newer one in its slot is not touched."""
        return self.connection.sync.discard(check_id(sandbox_id))

    async def aend(self, sandbox_id: str) -> bool:
        """The same."""
        return await self.connection.asynchronous.discard(check_id(sandbox_id))

    def _backend(self, id: str) -> RemudaSandbox:
        return RemudaSandbox(id, timeout=self.timeout, connection=self.connection)


@contextmanager
def made_sandbox(
    *,
    url: str | None = None,
    socket: str | None = None,
    api_key: str | None = None,
    state_dir: str | None = None,
    timeout: int = TIMEOUT_SECONDS,
    **options: Any,
) -> Iterator[RemudaSandbox]:
    """A backend for the length of a block; its end removes that generation, and never another."""
    connection = Connection(url=url, socket=socket, api_key=api_key, state_dir=state_dir)
    lifecycle = Lifecycle(connection, timeout=timeout)
    try:
        backend = lifecycle.make(**options)
        try:
            yield backend
        finally:
            lifecycle.end(backend.id)
    finally:
        connection.close()
