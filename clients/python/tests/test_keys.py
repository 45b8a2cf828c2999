"""Nothing twice, nothing lost: kept calls, lost answers, restarts and interruptions, against a real server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Iterator

import pytest
import remuda_client as rc
from relay import Relay
from remuda_client import AsyncRemuda, Remuda
from world import Server


@pytest.fixture(scope="module")
def lasting() -> Iterator[Server]:
    """A server whose sandboxes outlive it."""
    server = Server()
    yield server
    server.end()


def test_an_answer_that_is_lost_is_asked_for_again_and_done_once(server: Server, tmp_path: Path) -> None:
    with Relay(server.port) as relay, Remuda(relay.url, api_key=server.key, state_dir=tmp_path) as client:
        relay.lose_answers(1)
        with client.sandbox(memory_mib=512) as box:
            relay.lose_answers(2)
            assert box.run("echo x >> /workspace/count; wc -l < /workspace/count").stdout == "1\n"
            relay.lose_answers(1)
            box.write("/workspace/streamed", iter([b"a" * 100_000, b"b"]))
            assert len(box.read("/workspace/streamed")) == 100_001
        assert client.pending() == []
        assert relay.lost == 4


def test_what_stays_unknown_is_recovered_by_a_new_process(server: Server, tmp_path: Path) -> None:
    with Relay(server.port) as relay:
        with Remuda(relay.url, api_key=server.key, state_dir=tmp_path, lost_seconds_max=0.2) as client:
            relay.lose_answers(10_000)
            with pytest.raises(rc.CreationAmbiguous) as ambiguous:
                client.create_sandbox(memory_mib=512)
            key = ambiguous.value.key
            assert key and key in str(ambiguous.value)
            relay.lose_answers(0)
            kept = client.pending()
            assert [one.call.key for one in kept] == [key]
            assert server.key not in kept[0].path.read_text()
            assert kept[0].path.stat().st_mode & 0o777 == 0o600
        code = (
            "import sys, remuda_client as rc\n"
            "with rc.Remuda(sys.argv[1], state_dir=sys.argv[2]) as c:\n"
            "    print(c.recover(sys.argv[3])['id'], len(c.pending()))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, relay.url, str(tmp_path), key],
            env={**os.environ, "REMUDA_API_KEY": server.key},
            capture_output=True,
            text=True,
            check=True,
        )
        found, open_calls = done.stdout.split()
        assert open_calls == "0"
        with Remuda(relay.url, api_key=server.key, state_dir=tmp_path) as client:
            assert client.recover(key)["id"] == found, "also when it was settled already"
            assert client.list_operations(key=key)["operations"][0].get("made", {}).get("sandbox") == found
            client.remove_sandbox(found)


def test_a_command_without_an_answer_is_no_failure(server: Server, box: str) -> None:
    with Relay(server.port) as relay, Remuda(relay.url, api_key=server.key, lost_seconds_max=0.1) as client:
        relay.lose_answers(10_000)
        with pytest.raises(rc.OutcomeUnknown) as unknown:
            client.start_execution(box, command="true", key="unknown-command")
        assert unknown.value.key == "unknown-command" and not isinstance(unknown.value, rc.CreationAmbiguous)
        with pytest.raises(rc.Unreachable):
            client.show_sandbox(box)
        with pytest.raises(rc.OutcomeUnknown) as never_again:
            client.create_access_key(scopes=["files"])
        assert never_again.value.key is None


def test_a_key_is_for_one_request(client: Remuda, box: str, server: Server, tmp_path: Path) -> None:
    first = client.start_execution(box, command="echo 1", wait_ms=5000, key="one")
    assert client.start_execution(box, command="echo 1", wait_ms=5000, key="one")["id"] == first["id"]
    with pytest.raises(rc.Conflict) as other:
        client.start_execution(box, command="echo 2", key="one")
    assert other.value.code == "idempotency_key_conflict"
    with Remuda(server.url, api_key=server.key, state_dir=tmp_path) as kept:
        kept.write_file(box, "/workspace/k", b"1", key="two")
        with pytest.raises(rc.Conflict):
            kept.write_file(box, "/workspace/k", b"2", key="two")
        assert kept.read_bytes(box, "/workspace/k") == b"1"


def test_a_killed_server_is_waited_for(lasting: Server) -> None:
    with Remuda(lasting.url, api_key=lasting.key) as client, client.sandbox(memory_mib=512) as box:
        execution = box.spawn("for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.2; done")
        events = box.follow(execution["id"])
        told = b""
        for event in events:
            if isinstance(event, rc.Output):
                told += event.data
                break
        lasting.kill()
        again = threading.Thread(target=lasting.start_again)
        again.start()
        for event in events:
            told += event.data if isinstance(event, rc.Output) else b""
        again.join()
        assert told == b"1\n2\n3\n4\n5\n6\n7\n8\n9\n"
        done: list[rc.Completed] = []
        runner = threading.Thread(target=lambda: done.append(box.run("touch /tmp/begun; sleep 1.5; echo over")))
        runner.start()
        while True:
            try:
                box.read("/tmp/begun")
                break
            except rc.FileMissing:
                continue
        lasting.kill()
        lasting.start_again()
        runner.join()
        assert done[0].stdout == "over\n"


async def test_a_cancelled_task_ends_its_command_in_the_guest(server: Server, box: str, tmp_path: Path) -> None:
    aclient = AsyncRemuda(server.url, api_key=server.key, state_dir=tmp_path)
    task = asyncio.create_task(aclient.run(box, "echo $$ > /tmp/pid; exec sleep 1000"))
    while (await aclient.run(box, "test -s /tmp/pid")).exit_code != 0:
        pass
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await aclient.run(box, "kill -0 $(cat /tmp/pid)")).exit_code != 0
    assert aclient.pending() == [], "what became of it is known"
    await aclient.aclose()


async def test_whoever_is_cancelled_at_the_end_of_a_block_is_told_after_it(server: Server) -> None:
    async with AsyncRemuda(server.url, api_key=server.key) as client:
        ids: list[str] = []
        ending = asyncio.Event()

        async def use() -> None:
            async with client.sandbox(memory_mib=512) as box:
                ids.append(box.id)
                ending.set()

        task = asyncio.create_task(use())
        await ending.wait()
        while True:
            operations = await client.list_sandboxes(all=True)
            states = {s["id"]: s["state"] for s in operations["sandboxes"]}
            if states[ids[0]] != "running" or task.done():
                break
        if task.cancel():
            with pytest.raises(asyncio.CancelledError):
                await task
        with pytest.raises(rc.Gone):
            await client.show_sandbox(ids[0])


async def test_one_that_is_cancelled_before_it_is_admitted_never_runs(server: Server, box: str) -> None:
    with Relay(server.port) as relay:
        async with AsyncRemuda(relay.url, api_key=server.key) as client:
            relay.hold_requests()
            task = asyncio.create_task(client.run(box, "touch /tmp/ran-after-all", key="held"))
            await asyncio.to_thread(relay.wait_held)
            # The request for the cancel goes by another connection and overtakes it.
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            relay.release()
            operations: list[object] = []
            with pytest.raises(rc.NotStarted):
                await client.start_execution(
                    box, command="touch /tmp/ran-after-all", wait_ms=20_000, key="held"
                )
            assert operations == []
            assert (await client.run(box, "test -e /tmp/ran-after-all")).exit_code == 1


async def test_a_sandbox_that_is_cancelled_while_it_is_made_is_not_left(server: Server) -> None:
    async with AsyncRemuda(server.url, api_key=server.key) as client:

        async def use() -> None:
            async with client.sandbox(memory_mib=512, labels={"of": "cancelled"}):
                await asyncio.sleep(1000)

        task = asyncio.create_task(use())
        while not (await client.list_sandboxes(label=["of=cancelled"], all=True))["sandboxes"]:
            pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.list_sandboxes(label=["of=cancelled"]))["sandboxes"] == []


def test_ctrl_c_ends_the_command_too(server: Server, box: str, client: Remuda) -> None:
    code = (
        "import sys, remuda_client as rc\n"
        "with rc.Remuda(sys.argv[1]) as c:\n"
        "    c.run(sys.argv[2], 'echo $$ > /tmp/ctrl; exec sleep 1000')\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, server.url, box],
        env={**os.environ, "REMUDA_API_KEY": server.key},
        stderr=subprocess.DEVNULL,
    )
    while client.run(box, "test -s /tmp/ctrl").exit_code != 0:
        assert child.poll() is None
    child.send_signal(signal.SIGINT)
    assert child.wait(60) != 0
    assert client.run(box, "kill -0 $(cat /tmp/ctrl)").exit_code != 0
