"""The operations whose bodies are bytes, streams or events, and the ways around them."""

from __future__ import annotations

import os
import secrets
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, AsyncIterable, AsyncIterator, Iterable, Literal, Mapping, TypeVar

import time

import httpx

from .. import _sse, models
from .._core import Call, Missed, Patience, seal, segment
from .._download import Download, OutputBytes, PortAnswer, TerminalAddress
from ..errors import ProtocolError, Unreachable
from .calls import AsyncCalls
from .waiting import blocking, sleep

E_ = TypeVar("E_")
Body = bytes | Path | Iterable[bytes] | AsyncIterable[bytes]


class AsyncStreams(AsyncCalls):
    """Files, output, input, events and ports."""

    # --- files --------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def read_file(
        self,
        id: str,
        path: str,
        *,
        user: str | None = None,
        range: str | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
    ) -> AsyncIterator[Download]:
        """Reads a file in pieces, or a part of it with a `range` such as `bytes=0-99` (`GET /v1/sandboxes/{id}/files`).

        With `if_none_match` the answer may be that the caller has it: `not_modified`.
        """
        headers = {"range": range, "if-match": if_match, "if-none-match": if_none_match}
        call = Call("GET", f"/v1/sandboxes/{segment(id)}/files", {"path": path, "user": user}, headers=headers)
        async with self._stream(call) as response:
            yield _download(response)

    async def read_bytes(self, id: str, path: str, *, user: str | None = None, range: str | None = None) -> bytes:
        """A file, or a part of it, whole in memory. A connection that breaks off is no error: it is read again."""
        headers = {"range": range}
        call = Call("GET", f"/v1/sandboxes/{segment(id)}/files", {"path": path, "user": user}, headers=headers)
        _, _, _, body = await self._exchange(call)
        return body

    async def read_text(self, id: str, path: str, *, user: str | None = None) -> str:
        """A file of UTF-8 text."""
        return (await self.read_bytes(id, path, user=user)).decode()

    async def download_file(
        self, id: str, path: str, to: str | os.PathLike[str], *, user: str | None = None
    ) -> models.FileStat:
        """Copies a file of the guest to a local one, which is replaced whole or not at all."""
        stat = await self.stat_file(id, path=path, user=user)
        to = Path(to)
        beside = to.with_name(f".{to.name}.{secrets.token_hex(4)}.part")
        try:
            with open(beside, "wb") as file:
                async with self.read_file(id, path, user=user) as download:
                    async for piece in download:
                        await blocking(file.write, piece)
            os.replace(beside, to)
        finally:
            beside.unlink(missing_ok=True)
        return stat

    async def write_file(
        self,
        id: str,
        path: str,
        body: Body | str,
        *,
        mode: str | None = None,
        user: str | None = None,
        parents: bool | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        key: str | None = None,
    ) -> models.FileStat:
        """Writes a file, whole or not at all (`PUT /v1/sandboxes/{id}/files`).

        `body` is bytes, text, the `Path` of a local file, or anything that gives bytes. What gives bytes only once is
        sent only once, unless the client has a `state_dir`, where it is written down first.
        """
        call = Call(
            "PUT",
            f"/v1/sandboxes/{segment(id)}/files",
            {"path": path, "mode": mode, "user": user, "parents": parents},
            headers={
                "if-match": if_match,
                "if-none-match": if_none_match,
                "content-type": "application/octet-stream",
            },
            body=body.encode() if isinstance(body, str) else body,
            kind="write_file",
            sandbox=id,
            key=key,
        )
        answer: models.FileStat = await self._json(call)
        return answer

    @asynccontextmanager
    async def read_tree(self, id: str, path: str, *, user: str | None = None) -> AsyncIterator[Download]:
        """Reads a directory with all that is in it as a tar archive (`GET /v1/sandboxes/{id}/files/tar`)."""
        call = Call("GET", f"/v1/sandboxes/{segment(id)}/files/tar", {"path": path, "user": user})
        async with self._stream(call) as response:
            yield _download(response)

    async def write_tree(
        self,
        id: str,
        path: str,
        archive: Body,
        *,
        user: str | None = None,
        parents: bool | None = None,
        key: str | None = None,
    ) -> models.UnpackedTree:
        """Unpacks a tar archive into a directory (`PUT /v1/sandboxes/{id}/files/tar`)."""
        call = Call(
            "PUT",
            f"/v1/sandboxes/{segment(id)}/files/tar",
            {"path": path, "user": user, "parents": parents},
            headers={"content-type": "application/x-tar"},
            body=archive,
            kind="unpack_tree",
            sandbox=id,
            key=key,
        )
        answer: models.UnpackedTree = await self._json(call)
        return answer

    async def watch_files(
        self,
        id: str,
        path: str,
        *,
        recursive: bool | None = None,
        user: str | None = None,
        last_event_id: str | None = None,
    ) -> AsyncIterator[_sse.Watched]:
        """Tells of changes as they happen, over lost connections too (`GET /v1/sandboxes/{id}/files/watch`)."""
        query = {"path": path, "recursive": recursive, "user": user}
        call = Call("GET", f"/v1/sandboxes/{segment(id)}/files/watch", query)
        async for event in self._follow(_sse.WatchFollower(call, last_event_id)):
            yield event

    # --- executions ---------------------------------------------------------------------------------------------------

    async def follow_execution(
        self, id: str, execution: str, *, offset: int = 0, last_event_id: str | None = None
    ) -> AsyncIterator[_sse.ExecutionEvent]:
        """Its output as it comes, without a gap or a byte twice over lost connections and restarts of the server.

        Ends with its end (`GET /v1/sandboxes/{id}/executions/{execution}/events`).
        """
        path = f"/v1/sandboxes/{segment(id)}/executions/{segment(execution)}/events"
        call = Call("GET", path, {"offset": offset or None})
        async for event in self._follow(_sse.ExecutionFollower(call, last_event_id)):
            yield event

    async def read_output_bytes(
        self,
        id: str,
        execution: str,
        *,
        offset: int = 0,
        since_ms: int | None = None,
        wait_ms: int | None = None,
        stream: Literal["stdout", "stderr"] | None = None,
    ) -> OutputBytes:
        """Output from an offset on, byte for byte (`GET /v1/sandboxes/{id}/executions/{execution}/output`)."""
        path = f"/v1/sandboxes/{segment(id)}/executions/{segment(execution)}/output"
        query = {"offset": offset, "since_ms": since_ms, "wait_ms": wait_ms, "stream": stream}
        sealed, status, headers, body = await self._exchange(
            Call("GET", path, query, headers={"accept": "application/octet-stream"})
        )
        try:
            return OutputBytes(
                body,
                int(headers["x-remuda-next-offset"]),
                int(headers["x-remuda-skipped-bytes"]),
                headers["x-remuda-complete"] == "true",
            )
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"{sealed.name} was answered without its place in the output", status=status) from error

    async def write_input(
        self,
        id: str,
        execution: str,
        piece: bytes,
        *,
        offset: int,
        writer: str | None = None,
        close: bool | None = None,
        wait_ms: int | None = None,
    ) -> models.InputTaken:
        """A piece of standard input. The guest takes no byte twice, so that it is sent again where an answer is lost.

        (`POST /v1/sandboxes/{id}/executions/{execution}/stdin`)
        """
        path = f"/v1/sandboxes/{segment(id)}/executions/{segment(execution)}/stdin"
        query = {"offset": offset, "writer": writer, "close": close, "wait_ms": wait_ms}
        headers = {"content-type": "application/octet-stream"}
        answer: models.InputTaken = await self._json(Call("POST", path, query, headers=headers, body=piece))
        return answer

    def join_terminal(
        self, id: str, execution: str, *, offset: int = 0, writer: str | None = None, typed: int | None = None
    ) -> TerminalAddress:
        """Where a WebSocket client finds the terminal, with the headers and the protocol that it gives.

        (`GET /v1/sandboxes/{id}/executions/{execution}/terminal`)
        """
        path = f"/v1/sandboxes/{segment(id)}/executions/{segment(execution)}/terminal"
        sealed = seal(Call("GET", path, {"offset": offset, "writer": writer, "typed": typed}))
        authorization = self._http.headers.get("authorization")
        headers = {"authorization": authorization} if authorization else {}
        return TerminalAddress("ws" + self._base.removeprefix("http") + sealed.target, headers, "remuda.terminal")

    # --- events, snapshots, ports -------------------------------------------------------------------------------------

    async def follow_events(self, *, after: int | None = None) -> AsyncIterator[_sse.AccountEvent]:
        """What happens in the account, from an event on, over lost connections too (`GET /v1/events`)."""
        last = None if after is None else str(after)
        async for event in self._follow(_sse.EventFollower(Call("GET", "/v1/events"), last)):
            yield event

    @asynccontextmanager
    async def export_snapshot(
        self, snapshot: str, *, offset: int | None = None, if_match: str | None = None
    ) -> AsyncIterator[Download]:
        """Reads a snapshot as one file; go on after a broken connection with `offset` and the first `etag`.

        (`GET /v1/snapshots/{snapshot}/export`)
        """
        path = f"/v1/snapshots/{segment(snapshot)}/export"
        async with self._stream(Call("GET", path, {"offset": offset}, headers={"if-match": if_match})) as response:
            yield _download(response)

    async def write_import(self, digest: str, piece: Body, *, offset: int | None = None) -> models.ImportState:
        """Adds a piece to a file that is to become a snapshot. It is sent once: `show_import` tells where to go on.

        (`PUT /v1/imports/{digest}`)
        """
        headers = {"content-type": "application/octet-stream"}
        call = Call("PUT", f"/v1/imports/{segment(digest)}", {"offset": offset}, headers=headers, body=piece, once=True)
        answer: models.ImportState = await self._json(call)
        return answer

    async def openapi(self) -> dict[str, Any]:
        """The API's own document (`GET /v1/openapi.json`)."""
        answer: dict[str, Any] = await self._json(Call("GET", "/v1/openapi.json"))
        return answer

    async def request_port(
        self,
        id: str,
        port: int,
        path: str = "/",
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> PortAnswer:
        """Asks the application that listens on a port of the guest, once, and gives whatever it answers.

        An error is raised only where the server itself answers (`/v1/sandboxes/{id}/ports/{port}/{path}`).
        """
        where = f"/v1/sandboxes/{segment(id)}/ports/{port}/{path.removeprefix('/')}"
        sealed = seal(Call(method, where, headers=headers or {}, body=content, once=method not in ("GET", "HEAD")))
        request = await self._request(sealed)
        try:
            response = await self._http.send(request)
        except httpx.HTTPError as error:
            raise Unreachable(f"{sealed.name}: no answer", cause=f"{type(error).__name__}: {error}") from error
        if response.is_error and "x-remuda-error" in response.headers:
            from .._core import refused

            raise refused(sealed, response.status_code, response.headers, response.content).error
        return PortAnswer(response.status_code, dict(response.headers), response.content)

    # --- following ----------------------------------------------------------------------------------------------------

    async def _follow(self, follower: _sse.Follower[E_]) -> AsyncIterator[E_]:
        """Events of a stream that is gone on with where a connection broke off."""
        sealed = seal(follower.call)
        patience = Patience(sealed, self._lost_seconds_max)
        while not follower.ended:
            try:
                response = await self._opened(sealed, follower.headers())
            except Missed as missed:
                await sleep(patience.after(missed, time.monotonic()))
                continue
            try:
                if response.status_code == 204:
                    return
                async for piece in response.aiter_raw():
                    for event in follower.feed(piece):
                        patience = Patience(sealed, self._lost_seconds_max)
                        yield event
                    if follower.ended:
                        return
            except httpx.HTTPError as error:
                broke = Unreachable(f"{sealed.name}: the stream broke off", cause=f"{type(error).__name__}: {error}")
                await sleep(patience.after(Missed(broke), time.monotonic()))
            else:
                # It ended without its last event, as when the server ends.
                broke = Unreachable(f"{sealed.name}: the stream ended early")
                await sleep(patience.after(Missed(broke), time.monotonic()))
            finally:
                await response.aclose()


def _download(response: httpx.Response) -> Download:
    return Download(
        response.status_code,
        dict(response.headers),
        None if response.status_code == 304 else response.aiter_raw(PIECE_BYTES),
    )


#: How much of a download comes at once at most, in bytes.
PIECE_BYTES = 1 << 18
