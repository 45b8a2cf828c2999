from __future__ import annotations

from typing import Iterator

import pytest
from remuda_client import Remuda
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
