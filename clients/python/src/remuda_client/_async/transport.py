"""Sends calls over HTTP and reads answers. Never sends a changing call twice without a key."""

from __future__ import annotations

import os
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, AsyncIterator

import httpx

from .._core import (
    ANSWER_SECONDS_MAX,
    CONNECT_SECONDS_MAX,
    LOST_SECONDS_MAX,
    Call,
    Missed,
    Patience,
    Sealed,
    json_of,
    lost,
    refused,
    seal,
)
from ..errors import InputError, OutcomeUnknown, RemudaError, Unreachable
from ..journal import Journal, Kept
from .waiting import blocking, pieces, pieces_of, sleep

#: Kinds of operations that only take away.
TAKING_AWAY = frozenset({"remove", "remove_snapshot", "remove_file", "cancel"})
#: Largest piece that is read from a local file, in bytes.
PIECE_BYTES = 1 << 20
_NOT_CONNECTED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError, httpx.UnsupportedProtocol)


class AsyncTransport:
    """Where a client sends its calls, and how it repeats them."""

    def __init__(
        self,
        url: str | None = None,
        *,
        socket: str | os.PathLike[str] | None = None,
        api_key: str | None = None,
        state_dir: str | os.PathLike[str] | None = None,
        lost_seconds_max: float = LOST_SECONDS_MAX,
    ) -> None:
        """A client of the server at `url`, or behind the unix socket `socket`.

        Without either: `REMUDA_URL` if it is set, or else the socket in `REMUDA_DATA_DIR`, or in the default data
        directory. `api_key` is `REMUDA_API_KEY` unless given; a socket needs none. With `state_dir`, key and request
        of every call that changes something are on disk before it is sent. A server that was lost in the middle of a
        call is looked for during `lost_seconds_max`.
        """
        if url is not None and socket is not None:
            raise InputError("a client has a url or a socket, and not both")
        if url is None and socket is None:
            url = os.environ.get("REMUDA_URL") or None
        if url is None and socket is None:
            socket = Path(os.environ.get("REMUDA_DATA_DIR") or "/var/lib/remuda") / "remuda.sock"
        headers = {}
        transport: httpx.AsyncHTTPTransport | None = None
        if url is not None:
            api_key = api_key or os.environ.get("REMUDA_API_KEY")
            if api_key:
                headers["authorization"] = f"Bearer {api_key}"
            #: Where it sends its calls: a URL, or the path of a socket.
            self.target = url.rstrip("/")
            base = self.target
        else:
            self.target = os.fspath(socket or "")
            base = "http://localhost"
            # A connection that the server just closes would be a lost answer: ours go first.
            limits = httpx.Limits(max_keepalive_connections=32, keepalive_expiry=20)
            transport = httpx.AsyncHTTPTransport(uds=self.target, limits=limits)
        self._base = base
        self._lost_seconds_max = lost_seconds_max
        self.journal = Journal(state_dir) if state_dir is not None else None
        self._http = httpx.AsyncClient(
            headers=headers,
            transport=transport,
            timeout=httpx.Timeout(ANSWER_SECONDS_MAX, connect=CONNECT_SECONDS_MAX, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=20),
            follow_redirects=False,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.target}>"

    async def aclose(self) -> None:
        """Closes its connections. What runs in sandboxes goes on."""
        await self._http.aclose()

    # --- one call -----------------------------------------------------------------------------------------------------

    async def _json(self, call: Call) -> Any:
        sealed, status, _, body = await self._exchange(call)
        return json_of(sealed, status, body)

    async def _done(self, call: Call) -> None:
        await self._exchange(call)

    async def _exchange(self, call: Call) -> tuple[Sealed, int, httpx.Headers, bytes]:
        """Sends it until it has its answer, which is read whole."""
        sealed = seal(call)
        kept = await self._keep(sealed)
        return await self._send_kept(sealed, kept)

    async def _send_kept(self, sealed: Sealed, kept: Kept | None) -> tuple[Sealed, int, httpx.Headers, bytes]:
        patience = Patience(sealed, self._lost_seconds_max)
        while True:
            try:
                status, headers, body = await self._once(sealed)
            except Missed as missed:
                pause = await self._pause(patience, missed, kept)
            else:
                await self._settle(kept)
                return sealed, status, headers, body
            await sleep(pause)

    async def _pause(self, patience: Patience, missed: Missed, kept: Kept | None) -> float:
        """How long to wait before the next sending; or the error with which the call ends."""
        try:
            return patience.after(missed, time.monotonic())
        except RemudaError as error:
            if not isinstance(error, OutcomeUnknown) or missed.replayed:
                await self._settle(kept)
            raise error from missed.error

    async def _keep(self, sealed: Sealed) -> Kept | None:
        if self.journal is None or sealed.kind is None:
            return None
        if sealed.body is not None and not isinstance(sealed.body, (bytes, Path)):
            path, file = await blocking(self.journal.spool)
            with file:
                async for piece in pieces(sealed.body):
                    await blocking(file.write, piece)
                file.flush()
                await blocking(os.fsync, file.fileno())
            sealed.body = path
        try:
            return await blocking(self.journal.keep, sealed, self.target)
        except InputError:
            # A disk that is too full for a key must not keep from making room what finds nothing more the second time.
            if sealed.kind in TAKING_AWAY:
                return None
            raise

    async def _settle(self, kept: Kept | None) -> None:
        if kept is not None and self.journal is not None:
            await blocking(self.journal.settle, kept)

    async def _settle_key(self, key: str, kind: str) -> None:
        """What became of the call of this kind with this key is known by other means."""
        if self.journal is not None:
            for kept in await blocking(self.journal.of_key, key):
                if kept.call.kind == kind and not kept.done:
                    await self._settle(kept)

    async def _once(self, sealed: Sealed) -> tuple[int, httpx.Headers, bytes]:
        try:
            response = await self._http.send(await self._request(sealed), stream=True)
            try:
                body = await response.aread()
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            raise lost(sealed, self.target, error, sent=not isinstance(error, _NOT_CONNECTED)) from error
        if not response.is_success and response.status_code != 304:
            raise refused(sealed, response.status_code, response.headers, body)
        return response.status_code, response.headers, body

    async def _request(self, sealed: Sealed, **more: str) -> httpx.Request:
        content: Any = sealed.body
        headers = {**sealed.headers, **more}
        if isinstance(content, Path):
            headers["content-length"] = str((await blocking(content.stat)).st_size)
            content = _file(content)
        elif content is not None and not isinstance(content, bytes):
            content = pieces(content)
        timeout = httpx.Timeout(ANSWER_SECONDS_MAX + sealed.wait_seconds, connect=CONNECT_SECONDS_MAX, pool=None)
        return self._http.build_request(
            sealed.method, self._base + sealed.target, headers=headers, content=content, timeout=timeout
        )

    # --- answers that stream ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _stream(self, call: Call, **headers: str) -> AsyncIterator[httpx.Response]:
        """A good answer whose body is still to be read. For calls that change nothing."""
        sealed = seal(call)
        patience = Patience(sealed, self._lost_seconds_max)
        while True:
            try:
                response = await self._opened(sealed, headers)
                break
            except Missed as missed:
                pause = await self._pause(patience, missed, None)
            await sleep(pause)
        try:
            yield response
        except httpx.HTTPError as error:
            raise Unreachable(
                f"{sealed.name}: the answer broke off", cause=f"{type(error).__name__}: {error}", remedy="read it again"
            ) from error
        finally:
            await response.aclose()

    async def _opened(self, sealed: Sealed, headers: dict[str, str]) -> httpx.Response:
        """One sending, up to the head of its answer."""
        try:
            response = await self._http.send(await self._request(sealed, **headers), stream=True)
        except httpx.HTTPError as error:
            raise lost(sealed, self.target, error, sent=not isinstance(error, _NOT_CONNECTED)) from error
        if response.is_success or response.status_code == 304:
            return response
        try:
            body = await response.aread()
        except httpx.HTTPError as error:
            raise lost(sealed, self.target, error, sent=True) from error
        finally:
            await response.aclose()
        raise refused(sealed, response.status_code, response.headers, body)


async def _file(path: Path) -> AsyncIterator[bytes]:
    with open(path, "rb") as file:
        async for piece in pieces_of(file, PIECE_BYTES):
            yield piece
