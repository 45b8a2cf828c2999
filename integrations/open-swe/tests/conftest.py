from __future__ import annotations

from typing import Iterator

import pytest
from remuda_client import Remuda
from world import Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.end()


@pytest.fixture
def client(server: Server) -> Iterator[Remuda]:
    with Remuda(server.url, api_key=server.key) as client:
        yield client
        for sandbox in client.list_sandboxes(label=["made-by=open-swe"])["sandboxes"]:
            client.discard(sandbox["id"])


@pytest.fixture(autouse=True)
def deployment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of a deployment of Open SWE with our provider."""
    monkeypatch.setenv("SANDBOX_TYPE", "remuda")
    monkeypatch.setenv("REMUDA_URL", server.url)
    monkeypatch.setenv("REMUDA_API_KEY", server.key)
    monkeypatch.setenv("REMUDA_OPENSWE_MEMORY_MIB", "512")
