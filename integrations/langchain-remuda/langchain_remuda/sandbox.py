"""A Remuda sandbox as a backend of Deep Agents. It names one generation and never reaches another."""

from __future__ import annotations

import asyncio
from typing import Any, Iterable

from deepagents.backends.protocol import (
    DeleteResult,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    LsResult,
    WriteResult,
)
from deepagents.backends.sandbox import BaseSandbox
from remuda_client import Completed, NotStarted, RemudaError, check_id, models, new_key

from langchain_remuda.connection import Connection, off_loop
from langchain_remuda.words import file_error, file_info, long_script, response, time_limit_ms

#: How long a command may run unless it says otherwise, in seconds.
TIMEOUT_SECONDS = 1800
#: How many files of one call are on their way at once.
FILES_AT_ONCE_MAX = 4


class RemudaSandbox(BaseSandbox):
    """One generation of a sandbox.

    Commands and files of a call go out with a key, and are sent again with it alone. A cancelled `aexecute` ends its
    command in the guest. Whatever a call needs of the server is looked for when it is made.
    """

    def __init__(
        self,
        sandbox_id: str,
        *,
        url: str | None = None,
        socket: str | None = None,
        api_key: str | None = None,
        state_dir: str | None = None,
        timeout: int = TIMEOUT_SECONDS,
        connection: Connection | None = None,
    ) -> None:
        """The sandbox `slot@generation`, on the server that these name, or else the environment."""
        self._id = check_id(sandbox_id)
        self._connection = connection or Connection(url=url, socket=socket, api_key=api_key, state_dir=state_dir)
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"<RemudaSandbox {self._id}>"

    @property
    def id(self) -> str:
        """`slot@generation`."""
        return self._id

    @property
    def connection(self) -> Connection:
        """The clients that it uses."""
        return self._connection

    # --- commands -----------------------------------------------------------------------------------------------------

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a command and gives both of its outputs in the order in which they were written."""
        return off_loop(lambda: self._execute(command, timeout))

    def _execute(self, command: str, timeout: int | None) -> ExecuteResponse:
        client, key = self._connection.sync, new_key()
        if script := long_script(command, key):
            client.write_file(self._id, script.path, command, key=f"{key}-script")
            command = script.command
        done = client.run(self._id, command, timeout_ms=time_limit_ms(timeout, self._timeout), key=key)
        output = done.stdout.encode()
        if done.stderr:
            output = client.all_output(self._id, done.id)
        return self._response(done, output, timeout)

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:  # noqa: ASYNC109
        """The same; whoever is cancelled here ends the command in the guest, also where it is only on its way there."""
        client, key = self._connection.asynchronous, new_key()
        if script := long_script(command, key):
            await client.write_file(self._id, script.path, command, key=f"{key}-script")
            command = script.command
        done = await client.run(self._id, command, timeout_ms=time_limit_ms(timeout, self._timeout), key=key)
        output = done.stdout.encode()
        if done.stderr:
            output = await client.all_output(self._id, done.id)
        return self._response(done, output, timeout)

    def _response(self, done: Completed, output: bytes, timeout: int | None) -> ExecuteResponse:
        if done.state == "not_started":
            raise NotStarted(f"{done.id} in {self._id} was not started: nothing ran", code="not_started")
        return response(done.execution, output, self._timeout if timeout is None else timeout)

    # --- files --------------------------------------------------------------------------------------------------------

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Writes files, each whole or not at all; one that can't be written keeps no other from being written."""
        return [FileUploadResponse(path, self._write(path, content)) for path, content in files]

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """The same, a few at once."""
        errors = await _some_at_once(self._awrite(path, content) for path, content in files)
        return [FileUploadResponse(path, error) for (path, _), error in zip(files, errors, strict=True)]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Reads files; one that can't be read keeps no other from being read."""
        found = []
        for path in paths:
            content, error = None, _of_path(path)
            if error is None:
                try:
                    content = self._connection.sync.read_bytes(self._id, path)
                except RemudaError as failed:
                    error = file_error(failed)
            found.append(FileDownloadResponse(path, content, error))
        return found

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """The same, a few at once."""

        async def one(path: str) -> FileDownloadResponse:
            error = _of_path(path)
            if error is None:
                try:
                    return FileDownloadResponse(path, await self._connection.asynchronous.read_bytes(self._id, path))
                except RemudaError as failed:
                    error = file_error(failed)
            return FileDownloadResponse(path, None, error)

        return list(await _some_at_once(one(path) for path in paths))

    def write(self, file_path: str, content: str) -> WriteResult:
        """Writes a file, new or not, with the directories that it needs."""
        return _written(file_path, self._write(file_path, content.encode()))

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """The same."""
        return _written(file_path, await self._awrite(file_path, content.encode()))

    def ls(self, path: str) -> LsResult:
        """Lists a directory."""
        try:
            return _listed(self._connection.sync.list_files(self._id, path=path))
        except RemudaError as error:
            return LsResult(error=f"Error: '{path}': {file_error(error)}")

    async def als(self, path: str) -> LsResult:
        """The same."""
        try:
            return _listed(await self._connection.asynchronous.list_files(self._id, path=path))
        except RemudaError as error:
            return LsResult(error=f"Error: '{path}': {file_error(error)}")

    def delete(self, file_path: str) -> DeleteResult:
        """Removes a file, or a directory with all that is in it; never the sandbox."""
        try:
            self._connection.sync.remove_file(self._id, path=file_path, recursive=True)
        except RemudaError as error:
            return _not_deleted(file_path, file_error(error))
        return DeleteResult(path=file_path)

    async def adelete(self, file_path: str) -> DeleteResult:
        """The same."""
        try:
            await self._connection.asynchronous.remove_file(self._id, path=file_path, recursive=True)
        except RemudaError as error:
            return _not_deleted(file_path, file_error(error))
        return DeleteResult(path=file_path)

    def _write(self, path: str, content: bytes) -> str | None:
        if error := _of_path(path):
            return error
        try:
            self._connection.sync.write_file(self._id, path, content, parents=True)
        except RemudaError as failed:
            return file_error(failed)
        return None

    async def _awrite(self, path: str, content: bytes) -> str | None:
        if error := _of_path(path):
            return error
        try:
            await self._connection.asynchronous.write_file(self._id, path, content, parents=True)
        except RemudaError as failed:
            return file_error(failed)
        return None

    # --- copies -------------------------------------------------------------------------------------------------------

    def fork(self, count: int = 1, **options: Any) -> list[RemudaSandbox]:
        """Copies of the running machine, each with an id of its own. Options are those of the client's `fork_sandbox`.

        Where a branch fails, the others are removed again and its error is raised.
        """
        fork = self._connection.sync.fork_sandbox(self._id, count=count, **options)
        ids, errors = _branches(fork)
        if errors:
            for id in ids:
                self._connection.sync.discard(id)
            raise RemudaError(f"{self._id} can't be forked: {errors[0]}")
        return [RemudaSandbox(id, timeout=self._timeout, connection=self._connection) for id in ids]

    async def afork(self, count: int = 1, **options: Any) -> list[RemudaSandbox]:
        """The same."""
        client = self._connection.asynchronous
        ids, errors = _branches(await client.fork_sandbox(self._id, count=count, **options))
        if errors:
            for id in ids:
                await client.discard(id)
            raise RemudaError(f"{self._id} can't be forked: {errors[0]}")
        return [RemudaSandbox(id, timeout=self._timeout, connection=self._connection) for id in ids]


def _of_path(path: str) -> str | None:
    return None if path.startswith("/") else "invalid_path"


def _written(path: str, error: str | None) -> WriteResult:
    return WriteResult(error=f"Error writing file '{path}': {error}") if error else WriteResult(path=path)


def _not_deleted(path: str, error: str) -> DeleteResult:
    if error == "file_not_found":
        return DeleteResult(error=f"Error: '{path}' not found")
    return DeleteResult(error=f"Error deleting '{path}': {error}")


def _listed(found: models.FileList) -> LsResult:
    return LsResult(entries=[file_info(stat) for stat in found["entries"]])


def _branches(fork: models.Fork) -> tuple[list[str], list[str]]:
    ids, errors = [], []
    for branch in fork["branches"]:
        sandbox, error = branch.get("sandbox"), branch.get("error")
        if isinstance(sandbox, dict):
            ids.append(str(sandbox["id"]))
        if isinstance(error, dict):
            errors.append(str(error["message"]))
    return ids, errors


async def _some_at_once(work: Iterable[Any]) -> list[Any]:
    turn = asyncio.Semaphore(FILES_AT_ONCE_MAX)

    async def one(task: Any) -> Any:
        async with turn:
            return await task

    return list(await asyncio.gather(*(one(task) for task in work)))
