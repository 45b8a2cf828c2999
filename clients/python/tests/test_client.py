"""The client against a real server: every family of operations, and what is made of several."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
import remuda_client as rc
from remuda_client import AsyncRemuda, Remuda


def test_a_command_runs_and_tells_both_outputs(client: Remuda, box: str) -> None:
    done = client.run(box, "echo out; echo err >&2; exit 3", env={"A": "1"})
    assert (done.stdout, done.stderr, done.exit_code, done.state, done.ok) == ("out\n", "err\n", 3, "exited", False)


async def test_asynchronously_too(aclient: AsyncRemuda, box: str) -> None:
    done = await aclient.run(box, argv=["sh", "-c", "cat; pwd"], stdin="in", cwd="/tmp")
    assert done.stdout == "in/tmp\n"


def test_a_time_out_is_124_with_the_output_so_far(client: Remuda, box: str) -> None:
    done = client.run(box, "echo begun; sleep 60", timeout_ms=300)
    assert (done.exit_code, done.state, done.stdout) == (124, "timed_out", "begun\n")


def test_output_is_followed_byte_for_byte_and_from_any_place(client: Remuda, box: str) -> None:
    execution = client.start_execution(box, command="printf 'a\\377'; sleep 0.2; printf bc; echo e >&2")
    events = list(client.follow_execution(box, execution["id"]))
    told = b"".join(e.data for e in events if isinstance(e, rc.Output) and e.stream == "stdout")
    assert told == b"a\xffbc"
    last = events[-1]
    assert isinstance(last, rc.State) and last.execution["state"] == "exited"
    rest = list(client.follow_execution(box, execution["id"], offset=2))
    assert b"".join(e.data for e in rest if isinstance(e, rc.Output) and e.stream == "stdout") == b"bc"
    page = client.read_output_bytes(box, execution["id"], stream="stdout")
    assert page.data == b"a\xffbc" and page.complete
    assert client.read_output(box, execution["id"])["complete"]


def test_input_comes_in_pieces_and_none_twice(client: Remuda, box: str) -> None:
    execution = client.start_execution(box, command="cat", stdin_open=True)["id"]
    assert client.write_input(box, execution, b"one ", offset=0)["taken"] == 4
    assert client.write_input(box, execution, b"one ", offset=0)["taken"] == 4
    client.write_input(box, execution, b"two", offset=4, close=True)
    assert client.completed(box, client.wait_execution(box, execution)).stdout == "one two"


def test_signals_terminals_and_cancel(client: Remuda, box: str) -> None:
    execution = client.start_execution(box, command="trap 'exit 7' TERM; while :; do sleep 0.1; done", pty={"cols": 80, "rows": 24})
    seen = client.resize_terminal(box, execution["id"], cols=100, rows=30)
    assert seen.get("pty") == {"cols": 100, "rows": 30}
    terminal = client.join_terminal(box, execution["id"])
    assert terminal.url.startswith("ws://127.0.0.1") and "rmd_" not in repr(terminal)
    client.signal_execution(box, execution["id"], signal=15)
    assert client.wait_execution(box, execution["id"]).get("exit_code") == 7
    other = client.start_execution(box, command="sleep 60")["id"]
    assert client.cancel_execution(box, other).get("exit_code") == 137
    assert {e["id"] for e in client.list_executions(box)["executions"]} >= {execution["id"], other}


def test_files(client: Remuda, box: str, tmp_path: Path) -> None:
    body = os.urandom(3 << 20)
    local = tmp_path / "body"
    local.write_bytes(body)
    first = client.write_file(box, "/workspace/f/a.bin", local, parents=True)
    assert first["size"] == len(body)
    client.write_file(box, "/workspace/f/b.bin", iter([b"12", b"34"]))
    assert client.read_bytes(box, "/workspace/f/b.bin", range="bytes=1-2") == b"23"
    client.download_file(box, "/workspace/f/a.bin", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == body
    with client.read_file(box, "/workspace/f/b.bin") as download:
        etag = download.etag
        assert b"".join(download) == b"1234"
    with client.read_file(box, "/workspace/f/b.bin", if_none_match=etag) as download:
        assert download.not_modified and b"".join(download) == b""
    with pytest.raises(rc.ConditionFailed):
        client.write_file(box, "/workspace/f/b.bin", b"x", if_none_match="*")
    client.write_file(box, "/workspace/f/b.bin", "neu\n", if_match=etag)
    with pytest.raises(rc.FileMissing) as missing:
        client.read_bytes(box, "/workspace/f/none")
    assert missing.value.code == "file_not_found" and missing.value.status == 404
    results = client.change_files(
        box,
        changes=[
            {"op": "write", "path": "/workspace/f/c.txt", "text": "needle in c\n"},
            {"op": "remove", "path": "/workspace/f/none"},
        ],
    )["results"]
    assert "error" not in results[0] and results[1].get("error")
    found = client.find_text(box, path="/workspace/f", pattern="needle", literal=True)["matches"]
    assert [(m["path"], m["line"]) for m in found] == [("/workspace/f/c.txt", 1)]
    names = client.find_files(box, path="/workspace/f", pattern="*.bin")["entries"]
    assert [e["path"] for e in names] == ["/workspace/f/a.bin", "/workspace/f/b.bin"]
    client.make_directory(box, path="/workspace/f/d")
    client.move_file(box, path="/workspace/f/c.txt", to="/workspace/f/d/c.txt")
    assert client.set_attributes(box, path="/workspace/f/d/c.txt", mode="0600")["mode"] == 0o600
    assert len(client.list_files(box, path="/workspace/f")["entries"]) == 3
    with client.read_tree(box, "/workspace/f/d") as archive:
        packed = b"".join(archive)
    assert "c.txt" in "".join(tarfile.open(fileobj=io.BytesIO(packed)).getnames())
    assert client.write_tree(box, "/workspace/g", packed, parents=True)["files"] == 1
    client.remove_file(box, path="/workspace/f", recursive=True)
    assert client.read_text(box, "/workspace/g/c.txt") == "needle in c\n"


async def test_changes_are_watched(aclient: AsyncRemuda, box: str) -> None:
    await aclient.make_directory(box, path="/workspace/watched")
    count = 0
    # What happens before the watch stands is not told: it is made again until something is.
    import asyncio

    async def make() -> None:
        nonlocal count
        while True:
            count += 1
            await aclient.write_file(box, f"/workspace/watched/{count}", b"x")

    maker = asyncio.create_task(make())
    async for event in aclient.watch_files(box, "/workspace/watched"):
        assert isinstance(event, rc.FileChanged)
        assert event.change["path"].startswith("/workspace/watched/")
        break
    maker.cancel()
    await asyncio.gather(maker, return_exceptions=True)


def test_snapshots_forks_and_restores(client: Remuda) -> None:
    with client.sandbox(memory_mib=512, labels={"of": "test"}) as box:
        box.write("/workspace/x", b"1")
        snapshot = box.snapshot(name="python-client")
        assert snapshot["state"] == "active"
        box.write("/workspace/x", b"2")
        with box.forked(2) as branches:
            assert [b.read("/workspace/x") for b in branches] == [b"2", b"2"]
            branches[0].write("/workspace/x", b"3")
            assert branches[1].read("/workspace/x") == b"2"
            assert len({b.id for b in branches}) == 2
        with pytest.raises(rc.Ended):
            branches[0].show()
        restored = client.restore_snapshot("python-client")
        assert client.attach(restored["id"]).read("/workspace/x") == b"1"
        assert client.discard(restored["id"]) and not client.discard(restored["id"])
        assert client.diff_snapshot(snapshot["id"])["to"] == snapshot["id"]
        assert client.verify_snapshot(snapshot["id"])["sound"]
        with client.export_snapshot(snapshot["id"]) as export:
            packed = b"".join(export)
        with client.export_snapshot(snapshot["id"], offset=10, if_match=export.etag) as export:
            assert b"".join(export) == packed[10:]
        assert client.remove_snapshot(snapshot["id"])["result"] == "removed"
        assert client.pause_sandbox(box.id)["state"] == "paused"
        assert client.resume_sandbox(box.id)["state"] == "running"
        client.set_deadline(box.id, timeout_ms=600_000)
        assert client.list_sandboxes(label=["of=test"])["sandboxes"][0]["id"] == box.id
        client.stop_sandbox(box.id)
        again = client.start_sandbox(box.id)
        with pytest.raises(rc.Stale) as stale:
            box.run("true")
        assert stale.value.continued_as == again["id"] and stale.value.status == 410
        assert client.attach(again["id"]).read("/workspace/x") == b"2"
    assert client.show_sandbox(again["id"])["state"] == "running", "a block ends its own generation alone"
    client.remove_sandbox(again["id"])


def test_previews_and_ports(client: Remuda) -> None:
    with client.sandbox(memory_mib=512) as box:
        box.spawn("cd /workspace && echo here > index.txt && exec python3 -m http.server 8000")
        box.run("for i in $(seq 100); do curl -s localhost:8000 >/dev/null && break; sleep 0.1; done")
        assert client.request_port(box.id, 8000, "/index.txt").content == b"here\n"
        assert client.request_port(box.id, 8000, "/none").status == 404
        with pytest.raises(rc.RemudaError) as nothing:
            client.request_port(box.id, 9999)
        assert nothing.value.code == "port_unreachable"
        with box.preview(8000, label="p") as made:
            preview = made["preview"]["id"]
            assert client.probe_preview(box.id, preview)["result"] == "answers"
            assert client.rotate_preview(box.id, preview)["token"] != made["token"]
            assert client.renew_preview(box.id, preview, ttl_ms=60_000)["preview"]["state"] == "active"
        assert client.show_preview(box.id, preview)["state"] == "revoked"
        assert [p["id"] for p in client.list_previews(box.id)["previews"]] == [preview]


def test_keys_accounts_usage_events_and_receipts(client: Remuda) -> None:
    me = client.whoami()
    assert "sandboxes:write" in me["scopes"]
    assert client.health()["status"] and client.capabilities()["features"] and client.show_usage()["account"] == me["account"]
    made = client.create_access_key(scopes=["files"], label="narrow")
    url = client.target
    with Remuda(url, api_key=made["secret"]) as narrow:
        with pytest.raises(rc.Forbidden):
            narrow.list_sandboxes()
    client.revoke_access_key(made["access_key"]["id"])
    with Remuda(url, api_key=made["secret"]) as narrow:
        with pytest.raises(rc.Unauthorized) as refused:
            narrow.list_sandboxes()
    assert made["secret"] not in str(refused.value) + repr(narrow)
    with client.sandbox(memory_mib=512) as box:
        pass
    with pytest.raises(rc.Gone) as gone:
        box.show()
    receipt = gone.value.details["receipt"]
    assert client.show_receipt(receipt)["sandbox"] == box.id
    assert client.list_receipts(sandbox=box.id)["receipts"]
    assert client.read_events(limit=5)["events"]
    for event in client.follow_events():
        assert isinstance(event, rc.Happened)
        if event.event.get("sandbox") == box.id:
            break
    hook = client.create_webhook(url="https://example.com/x", events=["sandbox.*"])
    identity = hook["webhook"]["id"]
    assert client.list_webhooks()["webhooks"] and client.show_webhook(identity)["url"] == "https://example.com/x"
    assert client.list_webhook_deliveries(identity)["deliveries"] is not None
    client.rotate_webhook(identity)
    client.remove_webhook(identity)


def test_the_operators_calls_need_the_socket(server: object, client: Remuda) -> None:
    from world import Server

    assert isinstance(server, Server)
    with Remuda(socket=server.socket) as local:
        assert local.set_account("team", quotas={"sandboxes": 3})["account"] == "team"
        assert "team" in [a["account"] for a in local.list_accounts()["accounts"]]
        assert local.doctor()["well"]
    with pytest.raises(rc.Forbidden):
        client.list_accounts()
    assert client.openapi()["info"]["title"] == "Remuda"


def test_ids_are_whole_and_errors_say_what_to_do(client: Remuda) -> None:
    with pytest.raises(rc.InvalidRequest) as bare:
        client.show_sandbox("c1")
    assert bare.value.code == "bare_slot" and "remuda ls" in str(bare.value)
    with pytest.raises(rc.InvalidRequest):
        client.attach("c1")
    with pytest.raises(rc.NotFound):
        client.show_sandbox("c1@2020-01-01T00:00:00.000Z")
    with pytest.raises(rc.InputError):
        client.show_sandbox("..")


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with Remuda(socket=tmp_path / "none.sock") as nobody:
        with pytest.raises(rc.Unreachable):
            nobody.list_sandboxes()
        with pytest.raises(rc.NotStarted):
            nobody.create_sandbox()
