"""The provider for Deep Agents' command line: `dcode --sandbox remuda`. Making it touches no server and no credential."""

from __future__ import annotations

from typing import Any

from deepagents_code.integrations.sandbox_provider import (
    SandboxInstallHint,
    SandboxNotFoundError,
    SandboxProvider,
    SandboxProviderMetadata,
)
from remuda_client import Ended, Gone, NotFound, RemudaError, Stale

from langchain_remuda.connection import Connection, off_loop
from langchain_remuda.lifecycle import WORKING_DIR, Lifecycle
from langchain_remuda.sandbox import TIMEOUT_SECONDS, RemudaSandbox


class GoneSandbox(SandboxNotFoundError, Gone):
    """The sandbox has ended; its slot has no newer generation."""


class StaleSandbox(SandboxNotFoundError, Stale):
    """The sandbox has ended; its slot belongs to another, which this id never reaches."""


class UnknownSandbox(SandboxNotFoundError, NotFound):
    """The server knows no such sandbox."""


class RemudaProvider(SandboxProvider):
    """Gets, makes and ends sandboxes. What can't be reached is an error of its own, and never taken for gone."""

    def __init__(self) -> None:
        self._connections: dict[tuple[Any, ...], Connection] = {}

    @property
    def metadata(self) -> SandboxProviderMetadata:
        """What the command line tells about it."""
        return SandboxProviderMetadata(
            name="remuda",
            working_dir=WORKING_DIR,
            install=SandboxInstallHint(kind="package", name="langchain-remuda"),
            supports_sandbox_id=True,
            supports_snapshot_name=True,
            backend_module="langchain_remuda",
        )

    def get_or_create(
        self,
        *,
        sandbox_id: str | None = None,
        url: str | None = None,
        socket: str | None = None,
        api_key: str | None = None,
        state_dir: str | None = None,
        timeout: int = TIMEOUT_SECONDS,
        **kwargs: Any,
    ) -> RemudaSandbox:
        """The sandbox of an id, or a new one. Further options are those of the client's `create_sandbox`."""
        lifecycle = self._lifecycle(url, socket, api_key, state_dir, timeout)
        if sandbox_id is None:
            return off_loop(lambda: lifecycle.make(**_snapshot(kwargs)))
        try:
            return off_loop(lambda: lifecycle.find(sandbox_id))
        except (Ended, NotFound) as error:
            raise _in_its_words(error) from error

    async def aget_or_create(
        self,
        *,
        sandbox_id: str | None = None,
        url: str | None = None,
        socket: str | None = None,
        api_key: str | None = None,
        state_dir: str | None = None,
        timeout: int = TIMEOUT_SECONDS,  # noqa: ASYNC109
        **kwargs: Any,
    ) -> RemudaSandbox:
        """The same."""
        lifecycle = self._lifecycle(url, socket, api_key, state_dir, timeout)
        if sandbox_id is None:
            return await lifecycle.amake(**_snapshot(kwargs))
        try:
            return await lifecycle.afind(sandbox_id)
        except (Ended, NotFound) as error:
            raise _in_its_words(error) from error

    def delete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """Ends this generation. One that has ended already is no error, and a newer one is not touched."""
        off_loop(lambda: self._lifecycle_of(kwargs).end(sandbox_id))

    async def adelete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """The same."""
        await self._lifecycle_of(kwargs).aend(sandbox_id)

    def _lifecycle_of(self, kwargs: dict[str, Any]) -> Lifecycle:
        words = ("url", "socket", "api_key", "state_dir")
        return self._lifecycle(*(kwargs.get(word) for word in words), kwargs.get("timeout", TIMEOUT_SECONDS))

    def _lifecycle(self, url: Any, socket: Any, api_key: Any, state_dir: Any, timeout: int) -> Lifecycle:
        place = (url, socket, api_key, state_dir)
        connection = self._connections.get(place)
        if connection is None:
            connection = Connection(url=url, socket=socket, api_key=api_key, state_dir=state_dir)
            self._connections[place] = connection
        return Lifecycle(connection, timeout=timeout)


def _snapshot(options: dict[str, Any]) -> dict[str, Any]:
    """The command line's word for it is `snapshot_name` or `snapshot`, by its version."""
    options = dict(options)
    name = options.pop("snapshot_name", None) or options.pop("snapshot", None)
    return {**options, "snapshot": name} if name else options


def _in_its_words(error: RemudaError) -> RemudaError:
    kind = StaleSandbox if isinstance(error, Stale) else GoneSandbox if isinstance(error, Gone) else UnknownSandbox
    return kind(
        error.message,
        code=error.code,
        cause=error.cause,
        remedy=error.remedy,
        details=error.details,
        status=error.status,
    )
