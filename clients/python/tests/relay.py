"""Stands between a client and a server, and loses answers or holds requests where a test says so."""

from __future__ import annotations

import socket
import threading
from types import TracebackType


class Relay:
    """A relay on a free port of this machine."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._to_lose = 0
        #: Answers that were lost.
        self.lost = 0
        self._held = threading.Event()
        self._hold = False
        self._free = threading.Event()
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []

    def __enter__(self) -> Relay:
        self._spawn(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._free.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            _hang_up(one)
        for thread in self._threads:
            thread.join(60)
        for one in self._open:
            one.close()

    def lose_answers(self, count: int) -> None:
        """The next answers don't arrive: the connection is closed in their place."""
        with self._lock:
            self._to_lose = count

    def hold_requests(self) -> None:
        """The next request stays here until it is released; those after it pass."""
        self._hold = True

    def wait_held(self) -> None:
        """Until one is held."""
        assert self._held.wait(60)

    def release(self) -> None:
        """Lets it go on."""
        self._free.set()

    def _spawn(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._to))
            self._open += [near, far]
            self._spawn(self._pass_requests, near, far)
            self._spawn(self._pass_answers, far, near)

    def _pass_requests(self, near: socket.socket, far: socket.socket) -> None:
        try:
            while piece := near.recv(1 << 16):
                if self._hold:
                    self._hold = False
                    self._held.set()
                    self._free.wait()
                far.sendall(piece)
            far.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def _pass_answers(self, far: socket.socket, near: socket.socket) -> None:
        try:
            while piece := far.recv(1 << 16):
                with self._lock:
                    lose = self._to_lose > 0
                    self._to_lose -= lose
                    self.lost += lose
                if lose:
                    _hang_up(near)
                    _hang_up(far)
                    return
                near.sendall(piece)
            near.shutdown(socket.SHUT_WR)
        except OSError:
            return


def _hang_up(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
