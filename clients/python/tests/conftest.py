from __future__ import annotations

from typing import AsyncIterator, Iterator

import pytest
from remuda_client import AsyncRemuda, Remuda
from world import Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server("--ephemeral")
    yield server
    server.end()


@pytest.fixture
def client(server: Server) -> Iterator[Remuda]:
    with Remuda(server.url, api_key=server.key) as client:
        yield client


@pytest.fixture
async def aclient(server: Server) -> AsyncIterator[AsyncRemuda]:
    async with AsyncRemuda(socket=server.socket) as client:
        yield client


@pytest.fixture(scope="session")
def box(server: Server) -> Iterator[str]:
    """A sandbox for tests that don't change it for others."""
    with Remuda(server.url, api_key=server.key) as client, client.sandbox(memory_mib=512) as sandbox:
        yield sandbox.id
