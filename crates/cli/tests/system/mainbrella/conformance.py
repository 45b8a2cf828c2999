"""Calls every public method of the package `mainbrella` against a server, and says what came of it, one line each:
method, what was tried, result. Ends with 1 where anything was not as it should be."""

import hmac
import inspect
import io
import os
import sys
import tarfile
import time
import urllib.error
import urllib.request
import uuid

import mainbrella
from mainbrella import Mainbrella, MainbrellaError

KEY, URL = os.environ["MAINBRELLA_API_KEY"], os.environ["MAINBRELLA_API_URL"]
UNKNOWN = "0" * 8 + "-0000-4000-8000-" + "0" * 12
failed = False
called = set()


def case(method, tried):
    """What is done by the function below is one line of the table."""

    def run(function):
        global failed
        called.add(method)
        try:
            function()
            result = "ok"
        except BaseException as error:  # noqa: B902: whatever it is, it is told
            failed = True
            where = error.__traceback__.tb_next
            result = f"FAILED in line {where.tb_lineno if where else '?'}: {type(error).__name__}: {error}"
            if isinstance(error, MainbrellaError):
                result += f" ({error.code}, {error.status})"
        print(method, tried, " ".join(result.split()), sep="\t", flush=True)
        return function

    return run


def refused(code, status, call, *arguments, **options):
    """The call must be refused with this word and status."""
    try:
        answer = call(*arguments, **options)
    except MainbrellaError as error:
        assert (error.code, error.status) == (code, status), f"{error.code} {error.status}, not {code} {status}"
        return error
    raise AssertionError(f"it was not refused with {code}: {answer!r}")


def eventually(look, seconds=30):
    """Waits until a look finds something."""
    end = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.1)


client = Mainbrella(KEY, base_url=URL)
capabilities = client.capabilities()


@case("Mainbrella.capabilities", "what there is, by its version")
def _():
    assert capabilities["apiVersion"] == "2026-10-05"
    assert capabilities["containers"]["idempotentCreate"] is True
    assert capabilities["images"]["customBuilds"] is False


@case("Mainbrella", "a key that is none; a key of nobody; a URL in the clear to another machine")
def _():
    refused("invalid_api_key", 0, Mainbrella, "mb_1", base_url=URL)
    refused("unauthorized", 401, Mainbrella("mb_" + "0" * 64, base_url=URL).list)
    refused("invalid_api_url", 0, Mainbrella, KEY, base_url="http://192.0.2.1")


@case("Mainbrella.list", "figures that are finite, before anything is made")
def _():
    status = client.list()
    assert status["active"] is True and status["containers"] == []
    usage, limits = status["usage"], status["limits"]
    for number in (usage["starts"], limits["maxStartsPerMonth"], limits["maxContainers"]):
        assert isinstance(number, int) and number >= 0
    assert 0 < usage["availableComputeUnitHours"] < float("inf")
    assert usage["concurrentComputeUnits"] + 1 <= limits["maxConcurrentComputeUnits"] < float("inf")
    assert limits["maxContainers"] > 0
    assert {"node", "python"} <= {image["id"] for image in status["imageCatalog"]}
    assert [size["id"] for size in status["sizes"]] == ["lite", "small", "medium", "large", "xl"]


@case("Mainbrella.request", "a call by its path; a path that is none")
def _():
    assert client.request("/containers")["containers"] == []
    refused("not_found", 404, client.request, "/containers/nothing")
    refused("invalid_request", 400, client.request, "/capabilities?a=1")


creation_key = str(uuid.uuid4())
sandbox = client.create(catalog_id="python", idempotency_key=creation_key)


@case("Mainbrella.create", "once under its key, however often; another request under the same key; images and sizes that are none")
def _():
    again = client.create(catalog_id="python", idempotency_key=creation_key)
    assert (again.id, again.created_at) == (sandbox.id, sandbox.created_at)
    assert again.creation_id == sandbox.creation_id and sandbox.instance == "lite"
    refused("idempotency_key_conflict", 409, client.create, catalog_id="node", idempotency_key=creation_key)
    refused("image_not_found", 404, client.create, catalog_id="rust")
    refused("image_not_found", 404, client.create, image_id=str(uuid.uuid4()))
    refused("invalid_creation_options", 0, client.create, size="huge")
    shown = client.list()["containers"]
    assert [(one["id"], one["createdAt"], one["status"]) for one in shown] == [(sandbox.id, sandbox.created_at, "running")]
    assert shown[0]["catalogId"] == "python" and shown[0]["size"] == "lite"


@case("Mainbrella.create", "without a way out, which is confirmed")
def _():
    with client.create(catalog_id="node", internet=False) as offline:
        assert offline.internet is False
        assert offline.commands.run("curl -sS --max-time 5 http://1.1.1.1/")["exitCode"] != 0


@case("Mainbrella.connect", "to what is there; to a generation that never was")
def _():
    same = client.connect(sandbox.id, sandbox.created_at)
    assert same.commands.run("echo here")["stdout"] == "here\n"
    stale = client.connect(sandbox.id, "2020-01-01T00:00:00.000Z")
    refused("container_not_running", 409, stale.commands.run, "true")
    refused("container_not_running", 409, stale.kill)
    refused("invalid_container_identity", 0, client.connect, "web", sandbox.created_at)


@case("Sandbox.commands.run", "both outputs and the exit code; a login shell with node and python")
def _():
    result = sandbox.commands.run("echo out; echo err >&2; exit 7")
    assert (result["stdout"], result["stderr"], result["exitCode"]) == ("out\n", "err\n", 7)
    assert result["timedOut"] is False and result["outputTruncated"] is False
    for program in ("node --version", "python3 --version", "git --version", "bash --version"):
        assert sandbox.commands.run(program)["exitCode"] == 0, program
    assert sandbox.commands.run("pwd")["stdout"] == "/workspace\n"
    assert sandbox.commands.run("printf '\\377'")["stdout"] == "\ufffd"


@case("Sandbox.commands.run", "beyond its time, with what it had said; commands that are none")
def _():
    result = sandbox.commands.run("echo before; sleep 30", timeout_ms=1000)
    assert (result["stdout"], result["exitCode"], result["timedOut"]) == ("before\n", None, True)
    refused("invalid_request", 400, sandbox.commands.run, " ")
    refused("invalid_request", 400, sandbox.commands.run, "true", timeout_ms=60001)


contents = bytes(range(256)) * 4096
strange = "/workspace/a b+c&d \u2603.bin"


@case("Sandbox.files.write", "a mebibyte of every byte under a strange name; parents and paths that are none")
def _():
    assert sandbox.files.write(strange, contents)["size"] == len(contents)
    assert sandbox.files.write("/workspace/empty", b"")["size"] == 0
    refused("file_not_found", 404, sandbox.files.write, "/workspace/no/such", b"a")
    refused("not_regular_file", 409, sandbox.files.write, "/workspace", b"a")
    refused("file_access_denied", 403, sandbox.files.write, "/etc/a", b"a")
    refused("invalid_file_path", 400, sandbox.files.write, "relative", b"a")
    refused("invalid_file_path", 400, sandbox.files.write, "/workspace/../a", b"a")
    refused("file_too_large", 413, sandbox.files.write, "/workspace/big", bytes(capabilities["files"]["maxFileBytes"] + 1))


@case("Sandbox.files.read", "the same bytes; what is not there, a directory, and what may not be read")
def _():
    assert sandbox.files.read(strange) == contents
    assert sandbox.files.read("/workspace/empty") == b""
    refused("file_not_found", 404, sandbox.files.read, "/workspace/nothing")
    refused("not_regular_file", 409, sandbox.files.read, "/workspace")
    refused("file_access_denied", 403, sandbox.files.read, "/etc/shadow")
    refused("invalid_file_path", 400, sandbox.files.read, "/workspace//a")


@case("Sandbox.files.mkdir", "one, and with its parents; what is there, and what has no parent")
def _():
    sandbox.files.mkdir("/workspace/one")
    sandbox.files.mkdir("/workspace/two/three", recursive=True, mode="0750")
    sandbox.files.mkdir("/workspace/two/three", recursive=True)
    refused("file_exists", 409, sandbox.files.mkdir, "/workspace/one")
    refused("file_not_found", 404, sandbox.files.mkdir, "/workspace/x/y")
    refused("invalid_request", 400, sandbox.files.mkdir, "/workspace/z", mode="9999")


@case("Sandbox.files.stat", "modes, kinds, and what is behind a link")
def _():
    assert sandbox.files.stat("/workspace/one")["mode"] == "0700"
    assert sandbox.files.stat("/workspace/two/three")["mode"] == "0750"
    shown = sandbox.files.stat(strange)
    assert (shown["type"], shown["size"], shown["mode"]) == ("file", len(contents), "0600")
    assert sandbox.commands.run("ln -s empty /workspace/link && ln -s nowhere /workspace/dangling")["exitCode"] == 0
    link = sandbox.files.stat("/workspace/link")
    assert (link["type"], link["linkTarget"]) == ("symlink", "empty")
    assert sandbox.files.stat("/workspace/link", follow_symlinks=True)["type"] == "file"
    refused("file_not_found", 404, sandbox.files.stat, "/workspace/dangling", follow_symlinks=True)
    refused("not_regular_file", 409, sandbox.files.write, "/workspace/link", b"a")


@case("Sandbox.files.list", "in pages, in the order of bytes; what is no directory")
def _():
    first = sandbox.files.list("/workspace", limit=2)
    rest = sandbox.files.list("/workspace", limit=1000, offset=first["nextOffset"])
    names = [entry["name"] for entry in first["entries"] + rest["entries"]]
    assert names == sorted(names, key=str.encode) and {"one", "two", "empty", "link"} <= set(names)
    assert rest["nextOffset"] is None and sandbox.files.list("/")["entries"]
    refused("not_directory", 409, sandbox.files.list, strange)
    refused("file_not_found", 404, sandbox.files.list, "/workspace/nothing")
    refused("invalid_request", 400, sandbox.files.list, "/workspace", limit=1001)


@case("Sandbox.files.move", "to a new name; never onto what is there")
def _():
    sandbox.files.move("/workspace/empty", "/workspace/moved")
    refused("file_exists", 409, sandbox.files.move, "/workspace/moved", strange)
    refused("file_not_found", 404, sandbox.files.move, "/workspace/empty", "/workspace/x")


@case("Sandbox.files.chmod", "a file; never through a link")
def _():
    sandbox.files.chmod("/workspace/moved", "0640")
    assert sandbox.files.stat("/workspace/moved")["mode"] == "0640"
    sandbox.files.write("/workspace/moved", b"more")
    assert sandbox.files.stat("/workspace/moved")["mode"] == "0640"
    refused("symlink_not_allowed", 409, sandbox.files.chmod, "/workspace/link", "0600")
    refused("invalid_request", 400, sandbox.files.chmod, "/workspace/moved", "640")


@case("Sandbox.files.remove", "a file, a link, a directory with all that is in it; never one that holds something unasked")
def _():
    sandbox.files.remove("/workspace/link")
    sandbox.files.remove("/workspace/one")
    refused("directory_not_empty", 409, sandbox.files.remove, "/workspace/two")
    sandbox.files.remove("/workspace/two", recursive=True)
    refused("file_not_found", 404, sandbox.files.remove, "/workspace/two")


@case("Sandbox.commands.start", "once under its key; a shell's command and plain arguments; what is none")
def _():
    key = str(uuid.uuid4())
    job = sandbox.commands.start("echo $A; pwd; exit 3", idempotency_key=key, cwd="/tmp", env={"A": "b"})
    same = sandbox.commands.start("echo $A; pwd; exit 3", idempotency_key=key, cwd="/tmp", env={"A": "b"})
    assert same.id == job.id
    refused("idempotency_key_conflict", 409, sandbox.commands.start, "true", idempotency_key=key)
    ended = job.wait(timeout=30, poll_interval=0.1)
    assert (ended["status"], ended["exitCode"], ended["stdout"]) == ("failed", 3, "b\n/tmp\n")
    plain = sandbox.commands.start(["printf", "%s", "a b"]).wait(timeout=30, poll_interval=0.1)
    assert (plain["status"], plain["stdout"]) == ("succeeded", "a b")
    refused("invalid_request", 400, sandbox.commands.start, "true", cwd="tmp")
    refused("invalid_request", 400, sandbox.commands.start, ["/no/such/program"])


@case("Execution.wait", "to the end of what goes on past a minute's poll, and no longer than it is told to")
def _():
    job = sandbox.commands.start("sleep 1; echo done", timeout_ms=900_000)
    refused("execution_wait_timeout", 0, job.wait, timeout=0.2, poll_interval=0.1)
    assert job.wait(timeout=30, poll_interval=0.1)["stdout"] == "done\n"
    late = sandbox.commands.start("echo before; sleep 30", timeout_ms=1000).wait(timeout=30, poll_interval=0.1)
    assert (late["status"], late["timedOut"], late["stdout"]) == ("timed_out", True, "before\n")


@case("Execution.get", "with both outputs; what never ran")
def _():
    job = sandbox.commands.start("echo a; echo b >&2")
    job.wait(timeout=30, poll_interval=0.1)
    shown = job.get()
    assert (shown["id"], shown["stdout"], shown["stderr"], shown["outputBytes"]) == (job.id, "a\n", "b\n", 4)
    assert shown["createdAt"] == sandbox.created_at
    refused("execution_not_found", 404, sandbox.commands.attach(UNKNOWN).get)


@case("Sandbox.commands.list", "what ran and runs")
def _():
    job = sandbox.commands.start(["true"])
    assert job.id in [record["id"] for record in sandbox.commands.list()["executions"]]


@case("Sandbox.commands.attach", "by its id; an id that is none")
def _():
    job = sandbox.commands.start(["true"])
    assert sandbox.commands.attach(job.id).wait(timeout=30, poll_interval=0.1)["status"] == "succeeded"
    refused("invalid_execution_identity", 0, sandbox.commands.attach, "x")


@case("Execution.cancel", "what runs; what has ended is left as it was")
def _():
    job = sandbox.commands.start("sleep 100")
    job.cancel()
    assert job.wait(timeout=30, poll_interval=0.1)["status"] == "canceled"
    assert job.cancel()["status"] == "canceled"


@case("Execution.signal", "one that is caught; to what has ended; one that there is not")
def _():
    job = sandbox.commands.start("trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.1; done")
    eventually(lambda: "ready" in job.get()["stdout"])
    job.signal("SIGTERM")
    ended = job.wait(timeout=30, poll_interval=0.1)
    assert (ended["exitCode"], "caught" in ended["stdout"]) == (5, True)
    refused("execution_not_running", 409, job.signal, "SIGINT")
    refused("invalid_execution_signal", 0, job.signal, "SIGHUP")


@case("Execution.events", "as they come, with a status at the end; on from where a reader was; ahead of all there is")
def _():
    job = sandbox.commands.start("for i in 1 2 3; do echo $i; sleep 0.2; done; echo e >&2")
    events = list(job.events())
    said = [event for event in events if event["type"] in ("stdout", "stderr")]
    assert "".join(event["data"] for event in said if event["type"] == "stdout") == "1\n2\n3\n"
    assert "".join(event["data"] for event in said if event["type"] == "stderr") == "e\n"
    numbers = [event["sequence"] for event in said]
    assert numbers == sorted(set(numbers)), numbers
    assert job.cursor == numbers[-1], (job.cursor, numbers)
    rest = [event for event in job.events(cursor=numbers[0]) if event["type"] in ("stdout", "stderr")]
    assert "".join(event["data"] for event in rest) == "".join(event["data"] for event in said[1:])
    refused("execution_stream_unavailable", 400, lambda: list(job.events(cursor=10_000)))


@case("Execution.events", "by a reader that goes away and comes back, without a gap")
def _():
    job = sandbox.commands.start("for i in $(seq 50); do echo line $i; sleep 0.02; done")
    text, stream = "", job.events()
    for event in stream:
        text += event.get("data", "")
        if len(text) > 50:
            break
    stream.close()
    for event in sandbox.commands.attach(job.id).events(cursor=job.cursor):
        text += event.get("data", "") if event["type"] == "stdout" else ""
    assert text == "".join(f"line {i}\n" for i in range(1, 51)), text


@case("Execution.stdin.write", "in order; to what takes none; to what has ended")
def _():
    job = sandbox.commands.start(["cat"], stdin=True)
    for piece in (b"a", b"b\xc3\xa9", b"c" * 65_536):
        assert job.stdin.write(piece)["bytes"] == len(piece)
    job.stdin.close()
    ended = job.wait(timeout=30, poll_interval=0.1)
    assert ended["stdout"] == "ab\u00e9" + "c" * 65_536
    refused("execution_not_running", 409, job.stdin.write, b"a")
    refused("stdin_closed", 409, sandbox.commands.start("sleep 5").stdin.write, b"a")


@case("Execution.stdin.close", "the program reads its end")
def _():
    job = sandbox.commands.start("cat; echo end", stdin=True)
    assert job.stdin.close()["stdinClosed"] is True
    assert job.wait(timeout=30, poll_interval=0.1)["stdout"] == "end\n"


@case("Execution.resize", "a terminal, whose programs are told; what has none")
def _():
    job = sandbox.commands.start(["/bin/sh"], stdin=True, pty={"cols": 80, "rows": 24})
    job.stdin.write(b"stty size\n")
    eventually(lambda: "24 80" in job.get()["stdout"])
    job.resize(132, 40)
    job.stdin.write(b"stty size\n")
    eventually(lambda: "40 132" in job.get()["stdout"])
    job.stdin.write(b"exit\n")
    assert job.wait(timeout=30, poll_interval=0.1)["status"] == "succeeded"
    refused("pty_unavailable", 409, sandbox.commands.start("sleep 5").resize, 80, 24)
    refused("invalid_terminal_size", 0, job.resize, 0, 24)


def fetch(url):
    # By address: a name below localhost is not every C library's to find.
    host = url.split("/")[2]
    port = host.rsplit(":", 1)[1]
    request = urllib.request.Request(f"http://127.0.0.1:{port}/hello.txt", headers={"Host": host})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


serving = sandbox.commands.start(
    "cd /tmp && echo hello > hello.txt && exec python3 -m http.server 3000", timeout_ms=900_000
)
eventually(lambda: sandbox.commands.run("curl -fs http://localhost:3000/hello.txt")["stdout"] == "hello\n")
preview = None


@case("Sandbox.previews.create", "which leads to the application; ports that may not be")
def _():
    global preview
    preview = sandbox.previews.create(3000, ttl_seconds=120)
    assert fetch(preview["url"]) == (200, b"hello\n")
    assert preview["expiresAt"] > time.time() * 1000
    refused("invalid_preview_options", 0, sandbox.previews.create, 80)


@case("Sandbox.previews.list", "without what would let somebody in")
def _():
    shown = sandbox.previews.list()["previews"]
    assert [one["id"] for one in shown] == [preview["id"]] and "url" not in shown[0]


@case("Sandbox.previews.revoke", "for good, and as often as wanted; what was never made")
def _():
    for _ in range(2):
        assert sandbox.previews.revoke(preview["id"])["revoked"] is True
    assert fetch(preview["url"])[0] in (404, 410)
    assert sandbox.previews.list()["previews"] == []
    assert sandbox.previews.revoke("0" * 32)["revoked"] is True
    refused("invalid_preview_identity", 0, sandbox.previews.revoke, "x")


@case("Sandbox.events", "its beginning, in order, and on from a cursor; a generation that never was")
def _():
    page = sandbox.events()
    assert [event["type"] for event in page["events"]] == ["starting", "started"], page
    first, second = page["events"]
    assert first["sequence"] < second["sequence"] == page["nextCursor"] and first["createdAt"] == sandbox.created_at
    assert [event["id"] for event in sandbox.events(cursor=first["sequence"])["events"]] == [second["id"]]
    one = sandbox.events(limit=1)
    assert (len(one["events"]), one["hasMore"]) == (1, True)
    refused("invalid_cursor", 400, sandbox.events, cursor=1_000_000)
    stale = client.connect(sandbox.id, "2020-01-01T00:00:00.000Z")
    refused("generation_not_found", 404, stale.events)


@case("Sandbox.export_workspace", "with what is in it, names and modes")
def _():
    assert sandbox.commands.run("mkdir -p export && echo kept > export/file && ln -s file export/link")["exitCode"] == 0
    archive = tarfile.open(fileobj=io.BytesIO(sandbox.export_workspace()), mode="r:gz")
    names = {name.removeprefix("./") for name in archive.getnames()}
    assert {"export/file", "export/link", "moved"} <= names, names
    kept = next(member for member in archive.getmembers() if member.name.endswith("export/file"))
    assert archive.extractfile(kept).read() == b"kept\n"


save_key = str(uuid.uuid4())
sandbox.commands.run("echo saved > /workspace/state; nohup sleep 1000 >/dev/null 2>&1 & echo $! > /workspace/pid")
still_there = '[ "$(cat /proc/$(cat /workspace/pid)/comm)" = sleep ]'
saved = sandbox.save_workspace("Project files", idempotency_key=save_key)


@case("Sandbox.save_workspace", "once under its key; another under the same; a container that is none")
def _():
    assert (saved["status"], saved["name"], saved["archived"]) == ("ready", "Project files", False)
    assert saved["source"] == {"id": sandbox.id, "createdAt": sandbox.created_at} and saved["size"] == "lite"
    assert sandbox.save_workspace("Project files", idempotency_key=save_key)["id"] == saved["id"]
    assert len(client.workspaces.list()["workspaces"]) == 1
    refused("idempotency_key_conflict", 409, sandbox.save_workspace, "Other", idempotency_key=save_key)
    stale = client.connect(sandbox.id, "2020-01-01T00:00:00.000Z")
    refused("container_not_running", 409, stale.save_workspace, "Stale")
    refused("invalid_request", 400, sandbox.save_workspace, " padded ")
    assert sandbox.commands.run("echo goes on")["stdout"] == "goes on\n"


@case("Sandbox.save_workspace", "and ended afterwards, once, never the next one in its slot")
def _():
    own = client.create(catalog_id="node")
    own.files.write("/workspace/mine", b"mine")
    key = str(uuid.uuid4())
    first = own.save_workspace("And stop", stop=True, idempotency_key=key)
    assert (first["stopRequested"], first["stopCompleted"]) == (True, True)
    successor = client.create(catalog_id="node")
    again = own.save_workspace("And stop", stop=True, idempotency_key=key)
    assert (again["id"], again["stopCompleted"]) == (first["id"], True)
    assert successor.id == own.id and successor.commands.run("true")["exitCode"] == 0
    successor.kill()
    client.workspaces.delete(first["id"])


@case("Mainbrella.workspaces.list", "with what is used and what may be")
def _():
    told = client.workspaces.list()
    assert [one["id"] for one in told["workspaces"]] == [saved["id"]]
    assert told["usage"]["saved"] == 1 < told["limits"]["maxSaved"]


@case("Mainbrella.workspaces.get", "by its id; one that is none")
def _():
    assert client.workspaces.get(saved["id"])["id"] == saved["id"]
    refused("workspace_not_found", 404, client.workspaces.get, UNKNOWN)
    refused("invalid_workspace_identity", 0, client.workspaces.get, "x")


@case("Mainbrella.workspaces.update", "its name, and whether it is archived; one that is none")
def _():
    assert client.workspaces.update(saved["id"], name="Renamed")["name"] == "Renamed"
    assert client.workspaces.update(saved["id"], archived=True)["archived"] is True
    refused("workspace_not_ready", 409, client.workspaces.restore, saved["id"])
    assert client.workspaces.update(saved["id"], archived=False)["archived"] is False
    refused("workspace_not_found", 404, client.workspaces.update, UNKNOWN, name="a")


@case("Mainbrella.workspaces.restore", "its files, without its processes, once under its key; sizes that differ; one that is none")
def _():
    key = str(uuid.uuid4())
    with client.workspaces.restore(saved["id"], idempotency_key=key) as restored:
        assert restored.workspace_id == saved["id"]
        assert restored.files.read("/workspace/state") == b"saved\n"
        assert restored.commands.run(still_there)["exitCode"] == 1
        again = client.workspaces.restore(saved["id"], idempotency_key=key)
        assert (again.id, again.created_at) == (restored.id, restored.created_at)
        refused("idempotency_key_conflict", 409, client.create, catalog_id="node", idempotency_key=key)
    refused("workspace_policy_conflict", 409, client.workspaces.restore, saved["id"], size="xl")
    refused("workspace_not_found", 404, client.workspaces.restore, UNKNOWN)


@case("Mainbrella.request", "a save with memory, whose restore goes on in the middle of its work")
def _():
    assert capabilities["persistence"]["memory"] is True
    body = {"id": sandbox.id, "createdAt": sandbox.created_at, "name": "Running", "memory": True}
    whole = client.request("/workspaces", "POST", body, {"Idempotency-Key": str(uuid.uuid4())})
    with client.workspaces.restore(whole["id"]) as restored:
        assert restored.commands.run(still_there)["exitCode"] == 0
    client.workspaces.delete(whole["id"])


@case("Mainbrella.workspaces.delete", "and it can't be restored; as often as wanted; one that is none")
def _():
    for _ in range(2):
        assert client.workspaces.delete(saved["id"])["deleted"] is True
    assert client.workspaces.list()["workspaces"] == []
    refused("workspace_not_found", 404, client.workspaces.restore, saved["id"])
    refused("workspace_not_found", 404, client.workspaces.delete, UNKNOWN)


@case("Sandbox.metrics", "off, and told so")
def _():
    assert capabilities["observability"]["metrics"] is False
    refused("metrics_unavailable", 503, sandbox.metrics)


@case("Sandbox.webhook.configure", "off, and told so")
def _():
    assert capabilities["observability"]["webhooks"] is False
    refused("webhooks_not_configured", 503, sandbox.webhook.configure, "https://relay.example.com/hook")


@case("Sandbox.webhook.get", "off: there is none")
def _():
    assert sandbox.webhook.get() == {"webhook": None}


@case("Sandbox.webhook.remove", "off: there is none to remove")
def _():
    assert sandbox.webhook.remove() == {"removed": True}


@case("Sandbox.webhook.deliveries", "off: there are none")
def _():
    assert sandbox.webhook.deliveries() == {"deliveries": []}


@case("Sandbox.webhook.retry", "off: there is nothing to deliver again")
def _():
    refused("delivery_not_found", 404, sandbox.webhook.retry, UNKNOWN)


@case("verify_webhook_signature", "of the client alone: one that is right, and one that is not")
def _():
    body, secret, now = b"{}", "mbwh_" + "0" * 64, 1_700_000_000
    signed = hmac.new(secret.encode(), f"{now}.".encode() + body, "sha256").hexdigest()
    assert mainbrella.verify_webhook_signature(body, f"t={now},v1={signed}", secret, now=now) is True
    assert not mainbrella.verify_webhook_signature(b"{ }", f"t={now},v1={signed}", secret, now=now)


@case("Sandbox.kill", "until it is gone, and nobody else's; what is gone is told as gone")
def _():
    sandbox.kill()
    assert client.list()["containers"] == []
    refused("container_not_running", 409, sandbox.kill)
    refused("container_not_running", 409, sandbox.commands.run, "true")
    assert serving.get()["status"] == "interrupted"
    refused("creation_no_longer_running", 409, client.create, catalog_id="python", idempotency_key=creation_key)


@case("Sandbox", "as a context, which ends its own generation at its end")
def _():
    with client.create(catalog_id="node") as own:
        assert own.commands.run("node -p 1+1")["stdout"] == "2\n"
        listed = client.list()["containers"]
        assert [one["id"] for one in listed] == [own.id]
    assert client.list()["containers"] == []


# Every public method of the package, by what the package itself says that it has.
PARTS = {
    "Mainbrella": type(client),
    "Mainbrella.workspaces": type(client.workspaces),
    "Sandbox": type(sandbox),
    "Sandbox.files": type(sandbox.files),
    "Sandbox.commands": type(sandbox.commands),
    "Sandbox.previews": type(sandbox.previews),
    "Sandbox.webhook": type(sandbox.webhook),
    "Execution": type(serving),
    "Execution.stdin": type(serving.stdin),
}


@case("mainbrella", "every public method of the package is among these")
def _():
    public = {
        f"{part}.{name}"
        for part, kind in PARTS.items()
        for name, _ in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
    assert public <= called, public - called
    assert len(public) > 35, len(public)


sys.exit(1 if failed else 0)
