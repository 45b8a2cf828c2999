"""The few things for which asynchronous and synchronous code differ in more than words."""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, BinaryIO, Callable, Coroutine, TypeVar

T = TypeVar("T")

#: What interrupts a caller that waits.
INTERRUPTIONS = (asyncio.CancelledError,)


async def sleep(seconds: float) -> None:
    """Waits."""
    await asyncio.sleep(seconds)


async def blocking(work: Callable[..., T], *arguments: Any) -> T:
    """Does what may take the disk's time, in a thread."""
    return await asyncio.to_thread(work, *arguments)


async def in_spite(work: Coroutine[Any, Any, T]) -> T:
    """Does it to its end, also when the caller is cancelled meanwhile; then that is raised when it is done."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


async def pieces_of(file: BinaryIO, size: int) -> AsyncIterator[bytes]:
    """A file in pieces."""
    while piece := await asyncio.to_thread(file.read, size):
        yield piece


async def pieces(body: Any) -> AsyncIterator[bytes]:
    """Anything that gives bytes, whether it does so asynchronously or not."""
    if hasattr(body, "__aiter__"):
        async for piece in body:
            yield piece
    elif hasattr(body, "read"):
        async for piece in pieces_of(body, 1 << 20):
            yield piece
    else:
        for piece in body:
            yield piece
