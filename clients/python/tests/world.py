"""A real server of a test's own, on a free port with a temporary data directory. It must leave nothing behind."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: How long anything may take before a test gives up on it, in seconds.
PATIENCE = 60.0


def binary() -> str:
    """The server's program; its absence is a failure."""
    path = os.environ.get("REMUDA_BINARY") or str(ROOT / "target" / "debug" / "remuda")
    assert Path(path).exists(), f"{path} is missing: build it, or name it in REMUDA_BINARY"
    return path


class Server:
    """A running `remuda serve`, which can be killed and started again on its data directory and its port."""

    def __init__(self, *options: str) -> None:
        # Short, since paths of sockets are; and where test runs look for what is left behind.
        self.directory = tempfile.mkdtemp(prefix="remuda-test-", dir="/var/tmp")
        self.data_dir = str(Path(self.directory) / "data")
        self.options = options
        self.key = ""
        self.port = 0
        try:
            subprocess.run([binary(), "setup"], check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
            self._start()
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def socket(self) -> str:
        return f"{self.data_dir}/remuda.sock"

    def _start(self, *more: str) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("REMUDA_")}
        arguments = ["serve", "--listen", f"127.0.0.1:{self.port}", "--data-dir", self.data_dir]
        self.process = subprocess.Popen(
            [binary(), *arguments, *self.options, *more],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        lines: queue.Queue[str] = queue.Queue()
        stdout = self.process.stdout
        assert stdout is not None

        def read() -> None:
            for line in stdout:
                lines.put(line)
            stdout.close()
            lines.put("")

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()
        while True:
            line = lines.get(timeout=PATIENCE)
            assert line, "the server ended before it listened"
            if line.startswith("access key "):
                self.key = line.split()[2]
            if line.startswith("listening on http"):
                self.port = int(line.rsplit(":", 1)[1])
                return

    def kill(self) -> None:
        """Ends it without a warning. What runs in its sandboxes goes on."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)

    def start_again(self) -> None:
        """Another one on the same data directory and port."""
        self._start()

    def end(self) -> None:
        """Ends it, and with it all of its sandboxes."""
        try:
            if self.process.poll() is None:
                self.process.terminate()
                self.process.wait(PATIENCE)
            self._reader.join(PATIENCE)
            if "--ephemeral" not in self.options:
                # Whoever wants its sandboxes to outlive a server ends them by an ephemeral one.
                self._start("--ephemeral")
                self.process.terminate()
                self.process.wait(PATIENCE)
                self._reader.join(PATIENCE)
        finally:
            shutil.rmtree(self.directory)
