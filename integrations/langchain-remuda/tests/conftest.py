from __future__ import annotations

from typing import Iterator

import pytest
import table
from remuda_client import Remuda
from world import Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server whose sandboxes outlive its restarts."""
    server = Server()
    yield server
    server.end()


@pytest.fixture
def client(server: Server) -> Iterator[Remuda]:
    with Remuda(server.url, api_key=server.key) as client:
        yield client


# --- the table of docs/compatibility.md -------------------------------------------------------------------------------

RESULTS: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome == "failed" or (report.when == "setup" and report.outcome == "skipped"):
        word = "passes" if report.outcome == "passed" else report.outcome
        if hasattr(report, "wasxfail"):
            # Also where it passes: it is expected to once its suite is mended.
            word = f"not counted: {report.wasxfail.split('(')[0].strip()}"
        RESULTS[report.nodeid] = word


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if config.option.keyword or config.option.markexpr or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    if config.option.collectonly or session.exitstatus not in (0, 1):
        return
    standard = {node.rsplit("::", 1)[1]: word for node, word in RESULTS.items() if "test_standard.py" in node}
    own = {node.rsplit("::", 1)[1]: word for node, word in RESULTS.items() if "test_beyond.py" in node}
    passed = sum(word == "passes" for word in standard.values())
    lines = [
        f"`SandboxIntegrationTests` of `langchain-tests`, unmodified, over `langchain-remuda`: {passed} of {len(standard)} pass.",
        "",
        "| test | result |",
        "| --- | --- |",
        *[f"| `{name}` | {word} |" for name, word in sorted(standard.items())],
        "",
        "What that suite leaves out, by tests of ours:",
        "",
        "| test | result |",
        "| --- | --- |",
        *[f"| {name.removeprefix('test_').replace('_', ' ')} | {word} |" for name, word in own.items()],
    ]
    if problem := table.hold("deepagents", lines):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"\n{problem}")
