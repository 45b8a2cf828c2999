"""The command line of Deep Agents with our provider, against a real server and a model that follows a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deepagents_code.integrations.sandbox_factory import create_sandbox
from deepagents_code.integrations.sandbox_provider import SandboxNotFoundError
from deepagents_code.integrations.sandbox_registry import SandboxRegistry
from langchain_remuda import Gone, NotFound, Stale, Unreachable
from langchain_remuda.provider import RemudaProvider
from model import ScriptedModel
from remuda_client import InvalidRequest, Remuda
from world import Server


def dcode(server: Server, model: ScriptedModel, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("REMUDA_", "DEEPAGENTS_", "OPENAI_"))}
    env |= {
        "HOME": str(home),
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": model.url,
        "REMUDA_URL": server.url,
        "REMUDA_API_KEY": server.key,
        "LANGSMITH_TRACING": "false",
        "DEEPAGENTS_CODE_NO_UPDATE_CHECK": "1",
        "DEEPAGENTS_CODE_OFFLINE": "1",
    }
    program = str(Path(sys.executable).parent / "dcode")
    words = [program, "-M", "openai:gpt-4o", "--model-params", '{"use_responses_api": false}', "--no-mcp", "-q", "--sandbox", "remuda", *arguments]
    return subprocess.run(words, env=env, cwd=home, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150)


def call(command: str) -> dict[str, Any]:
    return {"tool": "execute", "arguments": {"command": command}}


def test_an_agent_works_in_a_new_sandbox(server: Server, client: Remuda, tmp_path: Path) -> None:
    script: list[dict[str, Any] | str] = [
        call("pwd; python --version; echo made > /workspace/proof"),
        {"tool": "read_file", "arguments": {"file_path": "/workspace/proof"}},
        "it is done",
    ]
    with ScriptedModel(script) as model:
        done = dcode(server, model, tmp_path, "-n", "make a proof")
        assert done.returncode == 0 and "it is done" in done.stdout, done.stdout + done.stderr
        first, second = model.tool_answers()
    assert "/workspace" in first and "Python 3" in first
    assert "made" in second
    # Its server has three seconds to end in, and is killed on a slow machine before it removes its sandbox: then the
    # deadline that every sandbox is born with does.
    made = client.list_sandboxes(label=["made-by=langchain-remuda"], all=True)["sandboxes"]
    assert len(made) == 1 and (made[0]["state"] == "gone" or made[0].get("deadline_at_ms"))
    client.discard(made[0]["id"])
    assert server.key not in done.stdout + done.stderr


# The command line takes its time to start: one of the two is enough for every run.
def test_it_works_in_one_that_was_there_and_leaves_it(server: Server, client: Remuda, tmp_path: Path) -> None:
    with client.sandbox(memory_mib=512) as box:
        box.write("/workspace/there", b"before\n")
        with ScriptedModel([call("cat /workspace/there"), "seen"]) as model:
            done = dcode(server, model, tmp_path, "--sandbox-id", box.id, "-n", "look")
            assert done.returncode == 0, done.stdout + done.stderr
            assert "before" in model.tool_answers()[0]
        assert box.show()["state"] == "running"


def test_the_registry_finds_it_and_making_it_touches_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("REMUDA_URL", "REMUDA_API_KEY", "REMUDA_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    provider = SandboxRegistry.load(tmp_path / "none.toml").create_provider("remuda")
    assert type(provider).__name__ == "RemudaProvider"
    metadata = provider.metadata
    assert metadata is not None
    assert (metadata.name, metadata.working_dir, metadata.supports_sandbox_id) == ("remuda", "/workspace", True)


def test_what_the_command_line_makes_it_removes_and_runs_its_setup_in(
    server: Server, client: Remuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REMUDA_URL", server.url)
    monkeypatch.setenv("REMUDA_API_KEY", server.key)
    monkeypatch.setenv("GREETING", "set up")
    script = tmp_path / "setup.sh"
    script.write_text("echo ${GREETING} > /workspace/setup\n")
    with create_sandbox("remuda", setup_script_path=str(script), params={"memory_mib": 512}) as backend:
        assert backend.execute("cat /workspace/setup").output == "set up\n"
    with pytest.raises(Gone):
        backend.execute("true")


def test_ids_of_the_provider(server: Server, client: Remuda) -> None:
    place = {"url": server.url, "api_key": server.key}
    provider = RemudaProvider()
    first = provider.get_or_create(slot="dcode", memory_mib=512, **place)
    assert provider.get_or_create(sandbox_id=first.id, **place).id == first.id
    client.pause_sandbox(first.id)
    assert provider.get_or_create(sandbox_id=first.id, **place).execute("echo awake").output == "awake\n"
    with pytest.raises(InvalidRequest):
        provider.get_or_create(sandbox_id="dcode", **place)
    provider.delete(sandbox_id=first.id, **place)
    provider.delete(sandbox_id=first.id, **place)
    with pytest.raises(SandboxNotFoundError) as gone:
        provider.get_or_create(sandbox_id=first.id, **place)
    assert isinstance(gone.value, Gone)
    second = provider.get_or_create(slot="dcode", memory_mib=512, **place)
    with pytest.raises(SandboxNotFoundError) as stale:
        provider.get_or_create(sandbox_id=first.id, **place)
    assert isinstance(stale.value, Stale)
    provider.delete(sandbox_id=first.id, **place)
    assert client.show_sandbox(second.id)["state"] == "running"
    with pytest.raises(SandboxNotFoundError) as unknown:
        provider.get_or_create(sandbox_id="dcode@2020-01-01T00:00:00.000Z", **place)
    assert isinstance(unknown.value, NotFound)
    with pytest.raises(Unreachable):
        provider.get_or_create(sandbox_id=first.id, url="http://127.0.0.1:9", api_key="none")
    snapshot = client.create_snapshot(second.id, name="dcode-base")
    third = provider.get_or_create(snapshot_name="dcode-base", **place)
    assert client.show_sandbox(third.id)["origin"].get("snapshot") == snapshot["id"]
    for box in (second, third):
        provider.delete(sandbox_id=box.id, **place)


async def test_the_same_asynchronously(server: Server, client: Remuda) -> None:
    provider = RemudaProvider()
    place = {"url": server.url, "api_key": server.key}
    made = await provider.aget_or_create(memory_mib=512, **place)
    assert (await (await provider.aget_or_create(sandbox_id=made.id, **place)).aexecute("echo a")).output == "a\n"
    await provider.adelete(sandbox_id=made.id, **place)
    with pytest.raises(SandboxNotFoundError):
        await provider.aget_or_create(sandbox_id=made.id, **place)
    await made.connection.aclose()
