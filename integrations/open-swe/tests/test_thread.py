"""Open SWE's threads over the provider, by the behaviour of their caller, against a real server."""

from __future__ import annotations

import asyncio
import re
from typing import AsyncIterator

import langsmith.sandbox
import pytest
import remuda_client as rc
from langchain_remuda.connection import Connection
from openswe.sandboxes.providers.registry import SANDBOX_FACTORIES, SandboxGoneError
from openswe.thread import ID_PATTERN, SandboxUnreachableError, Thread
from remuda_client import Remuda
from remuda_openswe import HostUnreachable, NothingRan, OpenSWESandbox, SandboxGone, factory, native_id, register, thread_id
from world import Server


@pytest.fixture(autouse=True)
async def fresh_process(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Connections belong to the event loop of a test."""
    connection = Connection()
    monkeypatch.setattr(factory, "_CONNECTION", connection)
    assert "openswe.sandboxes.providers.registry" in register()
    yield
    await connection.aclose()


async def agents(thread: Thread, command: str) -> str:
    """A command as an agent's tool gives it."""
    result = await thread.proxy.aexecute_with_offload(command, "/large_tool_results/x", max_inline_bytes=80_000)
    assert result.response.exit_code == 0, result.response.output
    return result.response.output


def test_it_is_in_the_registry_and_ids_are_what_its_caller_recognises() -> None:
    assert SANDBOX_FACTORIES["remuda"] == ("remuda_openswe.factory", "create_remuda_sandbox")
    native = "my-slot@2026-10-08T12:00:00.123Z"
    bound = thread_id(native)
    assert re.findall(ID_PATTERN, f"it is {bound}, they say") == [bound]
    assert native_id(bound) == native == native_id(native)
    for bare in ("c1", "sb-c1", "sb-c1-2026"):
        with pytest.raises(rc.InvalidRequest):
            native_id(bare)


async def test_a_thread_works_and_its_place_is_right(client: Remuda) -> None:
    thread = Thread({})
    proxy = thread.proxy
    assert (await proxy.aexecute("pwd; echo $HOME; git config user.email")).output.split() == [
        "/workspace",
        "/home/user",
        "bot@example.com",
    ]
    assert (await proxy.aexecute("touch $HOME/x /workspace/x && cat $HOME/.tool-url")).output == "url\n"
    assert thread.metadata["sandbox_id"] == proxy.id and proxy.id.startswith("sb-")
    assert (await proxy.awrite("/workspace/d/a.txt", "one\ntwo\n")).error is None
    assert (await proxy.aedit("/workspace/d/a.txt", "two", "three")).occurrences == 1
    read = await proxy.aread("/workspace/d/a.txt")
    assert read.file_data and read.file_data["content"] == "one\nthree"
    assert [m["line"] for m in (await proxy.agrep("three", "/workspace", max_count=10)).matches or []] == [2]
    assert len((await proxy.aglob("**/*.txt", "/workspace")).matches or []) == 1
    assert (await proxy.adelete("/workspace/d")).error is None
    assert (await proxy.adelete("/workspace/d")).error
    assert (await proxy.aupload_files([("/workspace/u", b"1")]))[0].error is None
    assert (await proxy.adownload_files(["/workspace/u"]))[0].content == b"1"
    assert thread.proxy._backend.get_work_dir() == "/workspace"
    found = client.show_sandbox(native_id(proxy.id))
    assert found.get("idle_timeout_ms") == factory.IDLE_MS and found.get("on_deadline") == "snapshot"


async def test_a_hundred_short_commands_exhaust_nothing() -> None:
    thread = Thread({})
    for number in range(100):
        assert (await thread.proxy.aexecute(f"echo {number}")).output == f"{number}\n"


async def test_another_process_reconnects_to_the_same_one(client: Remuda) -> None:
    first = Thread({})
    await first.proxy.aexecute("echo here > /workspace/x")
    client.pause_sandbox(native_id(first.proxy.id))
    second = Thread(dict(first.metadata))
    assert (await second.proxy.aexecute("cat /workspace/x")).output == "here\n"
    assert second.proxy.id == first.proxy.id


@pytest.mark.parametrize("cached", [True, False])
async def test_one_that_is_gone_is_replaced_and_the_agent_is_told(client: Remuda, cached: bool) -> None:
    first = Thread({})
    await first.proxy.aexecute("echo work > /workspace/x")
    old = first.proxy.id
    client.create_snapshot(native_id(old), mode="filesystem")
    client.remove_sandbox(native_id(old))
    with pytest.raises(SandboxGoneError) as gone:
        await first.proxy.aexecute("true")
    assert isinstance(gone.value, SandboxGone) and isinstance(gone.value, langsmith.sandbox.ResourceNotFoundError)
    assert gone.value.resource_type == "sandbox" and gone.value.status == 410
    second = Thread(first.metadata)
    second.connections = dict(first.connections) if cached else {}
    told = await agents(second, "ls /workspace")
    assert second.proxy.id != old and second.metadata["sandbox_id"] == second.proxy.id
    assert old in told and "a new one, without its files" in told and "snap-" in told and "x" not in told.splitlines()
    assert await agents(second, "echo once") == "once\n"


@pytest.mark.parametrize("cached", [True, False])
async def test_the_last_work_is_restored_where_the_deployment_says_so(
    client: Remuda, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMUDA_OPENSWE_RESTORE", "last")
    first = Thread({})
    await first.proxy.aexecute("echo saved > /workspace/x")
    old = first.proxy.id
    client.set_deadline(native_id(old), timeout_ms=1000)
    for event in client.follow_events():
        told = getattr(event, "event", {})
        if told.get("sandbox") == native_id(old) and told.get("kind") == "sandbox.gone":
            break
    second = Thread(first.metadata)
    second.connections = dict(first.connections) if cached else {}
    said = await agents(second, "cat /workspace/x")
    assert said.splitlines()[-1] == "saved"
    assert old in said and "was restored from snap-" in said
    assert second.proxy.id != old and second.metadata["sandbox_id"] == second.proxy.id


async def test_one_that_cannot_be_reached_is_never_replaced(
    server: Server, client: Remuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Thread({})
    await first.proxy.aexecute("true")
    bound = first.metadata["sandbox_id"]
    connection = Connection(url="http://127.0.0.1:9", api_key="none")
    monkeypatch.setattr(factory, "_CONNECTION", connection)
    monkeypatch.setattr("remuda_openswe.backend.FIRST_PAUSE_SECONDS", 0.01)
    second = Thread(dict(first.metadata))
    with pytest.raises(SandboxUnreachableError):
        await second.proxy.aexecute("true")
    assert second.metadata["sandbox_id"] == bound
    cut_off = OpenSWESandbox(bound, connection=connection)
    with pytest.raises(langsmith.sandbox.SandboxRetryableConnectionError) as nothing:
        await cut_off.aexecute("true")
    assert isinstance(nothing.value, NothingRan)
    with pytest.raises(langsmith.sandbox.SandboxConnectionError) as unreachable:
        await cut_off.adownload_files(["/etc/hostname"])
    assert isinstance(unreachable.value, HostUnreachable) and not isinstance(unreachable.value, SandboxGoneError)
    await connection.aclose()


async def test_a_wrong_key_and_a_stopped_one_are_not_gone(
    client: Remuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Thread({})
    await first.proxy.aexecute("true")
    bound = first.metadata["sandbox_id"]
    client.stop_sandbox(native_id(bound))
    with pytest.raises(SandboxUnreachableError, match="stopped"):
        await Thread(dict(first.metadata)).proxy.aexecute("true")
    client.remove_sandbox(native_id(bound))
    connection = Connection(api_key="rmd_" + "0" * 64)
    monkeypatch.setattr(factory, "_CONNECTION", connection)
    with pytest.raises(SandboxUnreachableError):
        await Thread(dict(first.metadata)).proxy.aexecute("true")
    await connection.aclose()


async def test_a_restarted_server_is_survived_in_the_middle_of_a_command(server: Server) -> None:
    thread = Thread({})
    await thread.proxy.aexecute("true")
    running = asyncio.create_task(thread.proxy.aexecute("touch /tmp/begun; sleep 1.5; echo over"))
    while (await thread.proxy.aexecute("test -e /tmp/begun")).exit_code != 0:
        pass
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start_again)
    assert (await running).output == "over\n"
