"""The few things for which asynchronous and synchronous code differ in more than words."""

from __future__ import annotations

import time
from typing import Any, BinaryIO, Callable, Iterator, TypeVar

T = TypeVar("T")

#: What interrupts a caller that waits.
INTERRUPTIONS = (KeyboardInterrupt,)


def sleep(seconds: float) -> None:
    """Waits."""
    time.sleep(seconds)


def blocking(work: Callable[..., T], *arguments: Any) -> T:
    """Does it."""
    return work(*arguments)


def in_spite(work: T) -> T:
    """It has been done already when this is called."""
    return work


def pieces_of(file: BinaryIO, size: int) -> Iterator[bytes]:
    """A file in pieces."""
    while piece := file.read(size):
        yield piece


def pieces(body: Any) -> Iterator[bytes]:
    """Anything that gives bytes."""
    if hasattr(body, "read"):
        yield from pieces_of(body, 1 << 20)
    else:
        yield from body
