"""Answers that are no JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, AsyncIterator, Iterator


class Download:
    """A body that is still to be read: iterate over it, once, synchronously or not as the client is."""

    def __init__(self, status: int, headers: dict[str, str], pieces: Any) -> None:
        self.status = status
        self.headers = headers
        self._pieces = pieces

    @property
    def etag(self) -> str | None:
        """The digest of the contents, where the server told it."""
        return self.headers.get("etag")

    @property
    def size(self) -> int | None:
        """How many bytes will come, where the server knows."""
        found = self.headers.get("content-length")
        return None if found is None else int(found)

    @property
    def mode(self) -> str | None:
        """Permission bits of a file, in octal."""
        return self.headers.get("x-remuda-mode")

    @property
    def not_modified(self) -> bool:
        """Whether the caller has these contents, as `if_none_match` said; then nothing comes."""
        return self.status == 304

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces or ())

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._pieces is not None:
            async for piece in self._pieces:
                yield piece


@dataclass(frozen=True)
class OutputBytes:
    """Output of an execution, byte for byte."""

    data: bytes
    next_offset: int
    #: Bytes between the asked offset and the first one here that were dropped at the retention limit.
    skipped_bytes: int
    #: Whether nothing comes after `next_offset`.
    complete: bool


@dataclass(frozen=True)
class PortAnswer:
    """What an application in a guest answered."""

    status: int
    headers: dict[str, str]
    content: bytes


@dataclass(frozen=True)
class TerminalAddress:
    """Where a terminal is, for a WebSocket client. The headers hold the access key: show them to nobody."""

    url: str
    headers: dict[str, str]
    protocol: str

    def __repr__(self) -> str:
        return f"TerminalAddress({self.url!r})"
