"""What the standard suite leaves out: ends, interruptions, ids, copies and sizes, against a real server."""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import Iterator

import langchain_remuda as lr
import pytest
from deepagents.backends.protocol import execute_accepts_timeout
from langchain_remuda.connection import Connection
from langchain_remuda.lifecycle import Lifecycle, made_sandbox
from relay import Relay
from remuda_client import InvalidRequest, Remuda
from world import Server


@pytest.fixture(scope="module")
def box(server: Server) -> Iterator[lr.RemudaSandbox]:
    with made_sandbox(url=server.url, api_key=server.key, memory_mib=1024) as backend:
        yield backend


def test_a_time_out_is_124_with_the_output_so_far(box: lr.RemudaSandbox) -> None:
    assert execute_accepts_timeout(lr.RemudaSandbox)
    done = box.execute("echo begun; sleep 60", timeout=1)
    assert done.exit_code == 124 and done.output.startswith("begun\n")
    assert box.execute("echo over", timeout=0).output == "over\n"
    with pytest.raises(ValueError):
        box.execute("true", timeout=-1)


def test_both_outputs_come_in_their_order(box: lr.RemudaSandbox) -> None:
    done = box.execute("for i in 1 2 3; do echo out$i; sleep 0.05; echo err$i >&2; sleep 0.05; done; exit 7")
    assert done.output.split() == ["out1", "err1", "out2", "err2", "out3", "err3"]
    assert (done.exit_code, done.truncated) == (7, False)


def test_what_is_dropped_of_the_output_is_told(box: lr.RemudaSandbox) -> None:
    done = box.execute("head -c 20000000 /dev/zero | tr '\\0' x")
    assert done.truncated and done.exit_code == 0 and len(done.output) < 20_000_000


def test_a_background_process_does_not_hold_a_command(box: lr.RemudaSandbox) -> None:
    begun = time.monotonic()
    done = box.execute("sleep 300 & echo $!")
    assert done.exit_code == 0 and time.monotonic() - begun < 60
    assert box.execute(f"kill {done.output.strip()}").exit_code == 0, "it went on"


async def test_a_cancelled_command_ends_in_the_guest(box: lr.RemudaSandbox) -> None:
    task = asyncio.create_task(box.aexecute("echo $$ > /tmp/cancelled; sleep 300; touch /tmp/went-on"))
    while (await box.aexecute("test -s /tmp/cancelled")).exit_code != 0:
        pass
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await box.aexecute("kill -0 $(cat /tmp/cancelled)")).exit_code != 0
    await box.connection.aclose()


async def test_one_cancelled_on_its_way_there_never_runs(server: Server, box: lr.RemudaSandbox) -> None:
    with Relay(server.port) as relay:
        slow = lr.RemudaSandbox(box.id, url=relay.url, api_key=server.key)
        relay.hold_requests()
        task = asyncio.create_task(slow.aexecute("touch /tmp/never"))
        await asyncio.to_thread(relay.wait_held)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        relay.release()
        # A command behind it on the same way: what was held has come through by then.
        assert (await slow.aexecute("test -e /tmp/never")).exit_code == 1
        await slow.connection.aclose()
    assert box.execute("test -e /tmp/never").exit_code == 1


def test_a_lost_answer_runs_nothing_twice(server: Server, box: lr.RemudaSandbox) -> None:
    with Relay(server.port) as relay:
        lossy = lr.RemudaSandbox(box.id, url=relay.url, api_key=server.key)
        relay.lose_answers(1)
        assert lossy.execute("echo x >> /tmp/times; wc -l < /tmp/times").output == "1\n"
        relay.lose_answers(1)
        assert lossy.write("/workspace/lossy", "1").error is None
        assert relay.lost == 2
        lossy.connection.close()


def test_what_nobody_answers_is_unreachable_and_not_gone(box: lr.RemudaSandbox) -> None:
    nobody = lr.RemudaSandbox(box.id, url="http://127.0.0.1:9", api_key="rmd_none")
    with pytest.raises(lr.NotStarted):
        nobody.execute("true")
    with pytest.raises(lr.Unreachable) as unreachable:
        nobody.download_files(["/etc/hostname"])
    assert not isinstance(unreachable.value, lr.Ended)
    with pytest.raises(lr.Unreachable):
        Lifecycle(nobody.connection).find(box.id)


def test_a_restart_of_the_server_is_survived(server: Server, box: lr.RemudaSandbox) -> None:
    box.write("/workspace/before", "kept")
    pid = box.execute("setsid sleep 900 >/dev/null 2>&1 & echo $!").output.strip()
    server.kill()
    server.start_again()
    again = Lifecycle(Connection(url=server.url, api_key=server.key)).find(box.id)
    assert again.id == box.id
    assert again.execute(f"cat /workspace/before; kill {pid}").output == "kept"
    assert box.execute("echo same").output == "same\n"


def test_a_fork_has_the_memory_and_a_life_of_its_own(box: lr.RemudaSandbox, client: Remuda) -> None:
    pid = box.execute("setsid sleep 901 >/dev/null 2>&1 & echo $!").output.strip()
    one, other = box.fork(2)
    try:
        assert len({box.id, one.id, other.id}) == 3
        assert one.execute(f"kill {pid}").exit_code == 0
        assert other.execute(f"kill -0 {pid}").exit_code == 0
        assert box.execute(f"kill -0 {pid}").exit_code == 0
        one.write("/workspace/mine", "1")
        assert other.download_files(["/workspace/mine"])[0].error == "file_not_found"
    finally:
        for branch in (one, other):
            client.discard(branch.id)
        box.execute(f"kill {pid}")


async def test_an_asynchronous_fork(box: lr.RemudaSandbox) -> None:
    (branch,) = await box.afork(1)
    assert (await branch.aexecute("echo here")).output == "here\n"
    assert await box.connection.asynchronous.discard(branch.id)
    await box.connection.aclose()


def test_one_whose_time_is_over_is_gone_and_names_its_work(server: Server, client: Remuda) -> None:
    with made_sandbox(url=server.url, api_key=server.key, memory_mib=512) as short:
        short.write("/workspace/work", "done")
        client.set_deadline(short.id, timeout_ms=1000, on_deadline="snapshot")
        for event in client.follow_events():
            told = getattr(event, "event", {})
            if told.get("sandbox") == short.id and told.get("kind", "").startswith(("sandbox.removed", "sandbox.gone")):
                break
        with pytest.raises(lr.Gone) as gone:
            short.execute("true")
        (snapshot,) = gone.value.snapshots
        for call in (lambda: short.upload_files([("/tmp/x", b"")]), lambda: short.ls("/"), lambda: short.delete("/tmp/x")):
            with pytest.raises(lr.Gone):
                call()
        again = Lifecycle(short.connection).make(snapshot=snapshot)
        assert again.id != short.id and again.read("/workspace/work").file_data
        client.discard(again.id)


def test_ids_are_whole_and_a_stale_one_reaches_nobody(server: Server, client: Remuda) -> None:
    for bad in ("c1", "c1@", "c1@now", ""):
        with pytest.raises(InvalidRequest):
            lr.RemudaSandbox(bad)
    connection = Connection(url=server.url, api_key=server.key)
    lifecycle = Lifecycle(connection)
    first = lifecycle.make(slot="stale", memory_mib=512)
    lifecycle.end(first.id)
    second = lifecycle.make(slot="stale", memory_mib=512)
    assert first.id.split("@")[0] == second.id.split("@")[0] == "stale"
    for call in (lambda: first.execute("true"), lambda: lifecycle.find(first.id), lambda: first.write("/tmp/x", "")):
        with pytest.raises(lr.Stale):
            call()
    assert not lifecycle.end(first.id)
    assert second.execute("test -e /tmp/x").exit_code == 1
    assert lifecycle.end(second.id)
    with pytest.raises(lr.NotFound):
        lifecycle.find("stale@2020-01-01T00:00:00.000Z")


def test_a_creation_without_an_answer_names_its_key(server: Server, client: Remuda) -> None:
    with Relay(server.port) as relay:
        lifecycle = Lifecycle(Connection(url=relay.url, api_key=server.key, lost_seconds_max=0.2))
        relay.lose_answers(10_000)
        with pytest.raises(lr.CreationAmbiguous) as ambiguous:
            lifecycle.make(memory_mib=512, key="ambiguous")
        assert ambiguous.value.key == "ambiguous"
        relay.lose_answers(0)
        made = lifecycle.make(memory_mib=512, key="ambiguous")
        operations = client.list_operations(key="ambiguous")["operations"]
        assert [o.get("made", {}).get("sandbox") for o in operations] == [made.id]
        lifecycle.end(made.id)


async def test_one_that_is_cancelled_while_it_is_made_is_not_left(server: Server, client: Remuda) -> None:
    lifecycle = Lifecycle(Connection(url=server.url, api_key=server.key))
    task = asyncio.create_task(lifecycle.amake(memory_mib=512, labels={"of": "cancelled"}))
    while not client.list_sandboxes(label=["of=cancelled"], all=True)["sandboxes"]:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.list_sandboxes(label=["of=cancelled"])["sandboxes"] == []
    await lifecycle.connection.aclose()


def test_64_mib_go_up_and_down(box: lr.RemudaSandbox) -> None:
    body = hashlib.sha256(b"x").digest() * (2 << 20)
    assert len(body) == 64 << 20
    assert box.upload_files([("/workspace/large", body)])[0].error is None
    (back,) = box.download_files(["/workspace/large"])
    assert back.error is None and back.content == body
    box.delete("/workspace/large")


def test_an_edit_of_2_mb(box: lr.RemudaSandbox) -> None:
    old, new = "o" * 1_000_000 + "界" * 300_000, "n" * 2_000_000
    box.write("/workspace/edited", f"a{old}b")
    edited = box.edit("/workspace/edited", old, new)
    assert (edited.error, edited.occurrences) == (None, 1)
    (back,) = box.download_files(["/workspace/edited"])
    assert back.content == f"a{new}b".encode()


def test_a_command_of_2_mb_runs(box: lr.RemudaSandbox) -> None:
    text = "界" * 666_000
    assert box.execute(f"cat <<'END' | wc -c\n{text}\nEND\n").output == f"{len(text.encode()) + 1}\n"


async def test_files_one_by_one_and_what_fails_keeps_no_other(box: lr.RemudaSandbox) -> None:
    found = await box.aupload_files([("/workspace/p/a", b"1"), ("b", b"2"), ("/proc/none/c", b"3"), ("/workspace/d", b"4")])
    assert [f.path for f in found] == ["/workspace/p/a", "b", "/proc/none/c", "/workspace/d"]
    assert [f.error for f in found][:2] == [None, "invalid_path"] and found[2].error and found[3].error is None
    back = await box.adownload_files(["/workspace/p/a", "/workspace/p", "/workspace/none", "/workspace/d"])
    assert [b.content for b in back] == [b"1", None, None, b"4"]
    assert [b.error for b in back] == [None, "is_directory", "file_not_found", None]
    assert (await box.adelete("/workspace/p")).error is None
    assert (await box.adelete("/workspace/p")).error == "Error: '/workspace/p' not found"
    assert [e["path"] for e in (await box.als("/workspace")).entries or [] if e["path"].endswith("/d")]
    await box.connection.aclose()


def test_credentials_are_looked_for_when_they_are_needed_and_shown_to_nobody(
    server: Server, box: lr.RemudaSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REMUDA_URL", "REMUDA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    lazy = lr.RemudaSandbox(box.id)
    monkeypatch.setenv("REMUDA_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("DEEPAGENTS_CODE_REMUDA_URL", server.url)
    monkeypatch.setenv("REMUDA_API_KEY", server.key)
    assert lazy.execute("echo found").output == "found\n"
    assert server.key not in repr(lazy) + repr(lazy.connection) + repr(lazy.connection.sync)
    lazy.connection.close()
