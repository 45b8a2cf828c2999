"""The backend of one thread's sandbox: Deep Agents' backend with Open SWE's ids and exceptions."""

from __future__ import annotations

import asyncio
from typing import Any

from deepagents.backends.protocol import (
    DeleteResult,
    ExecuteOffloadResult,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    LsResult,
    WriteResult,
)
from langchain_remuda import NotStarted, RemudaSandbox
from langchain_remuda.lifecycle import WORKING_DIR

from remuda_openswe.ids import native_id, thread_id
from remuda_openswe.words import told

#: How often a command is sent that was not started, and how long is waited before the second time, in seconds.
STARTS_MAX = 4
FIRST_PAUSE_SECONDS = 0.25


class OpenSWESandbox(RemudaSandbox):
    """One generation, for the thread that is bound to it."""

    def __init__(self, bound: str, *, notice: str | None = None, **options: Any) -> None:
        """`notice` is said once to the agent, above the output of its first command."""
        super().__init__(native_id(bound), **options)
        self._notice = notice

    @property
    def id(self) -> str:
        """What the thread is bound to: `sb-slot-generation`."""
        return thread_id(self._id)

    @property
    def native_id(self) -> str:
        """`slot@generation`."""
        return self._id

    @property
    def notice(self) -> str | None:
        """What the agent has not been told yet about where this sandbox comes from."""
        return self._notice

    def get_work_dir(self) -> str:
        """Where repositories go."""
        return WORKING_DIR

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:  # noqa: ASYNC109
        """Runs a command. One that was not started is tried again, since nothing ran; no other is."""
        with told(self.id):
            for attempt in range(STARTS_MAX):
                try:
                    return await super().aexecute(command, timeout=timeout)
                except NotStarted as error:
                    # The server has said what is wrong with the command; only its silence may pass.
                    if error.code or attempt == STARTS_MAX - 1:
                        raise
                await asyncio.sleep(FIRST_PAUSE_SECONDS * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """The same for whoever has no event loop, without a second try."""
        with told(self.id):
            return super().execute(command, timeout=timeout)

    async def aexecute_with_offload(
        self,
        command: str,
        capture_path: str,
        *,
        max_inline_bytes: int,
        max_capture_bytes: int | None = None,
        timeout: int | None = None,  # noqa: ASYNC109
    ) -> ExecuteOffloadResult:
        """An agent's own command: the first one brings the notice."""
        result = await super().aexecute_with_offload(
            command,
            capture_path,
            max_inline_bytes=max_inline_bytes,
            max_capture_bytes=max_capture_bytes,
            timeout=timeout,
        )
        if self._notice is not None:
            result.response.output = f"[{self._notice}]\n{result.response.output}"
            self._notice = None
        return result

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """As the base class."""
        with told(self.id):
            return await super().aupload_files(files)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """As the base class."""
        with told(self.id):
            return await super().adownload_files(paths)

    async def als(self, path: str) -> LsResult:
        """As the base class."""
        with told(self.id):
            return await super().als(path)

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """As the base class."""
        with told(self.id):
            return await super().awrite(file_path, content)

    async def adelete(self, file_path: str) -> DeleteResult:
        """Removes a file or directory; never the sandbox."""
        with told(self.id):
            return await super().adelete(file_path)
