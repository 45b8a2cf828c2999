"""Calls that are about to be sent, on disk: key and exact request, so that a new process can ask what became of them.

Never holds an access key. What a request itself holds, such as environment variables, is in it, for its owner alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ._core import Sealed
from .errors import Conflict, InputError, RemudaError

#: Form of the files.
VERSION = 1
#: Larger bodies lie in a file beside the call's, in bytes.
INLINE_BYTES_MAX = 1 << 20
#: How long a call whose outcome is known can still be recovered, in seconds: as long as the server keeps outcomes.
DONE_SECONDS_MAX = 24 * 3600
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Kept:
    """A call on disk."""

    path: Path
    call: Sealed
    target: str
    kept_at_ms: int
    #: Whether its outcome came in.
    done: bool


class Journal:
    """A directory of kept calls. Any number of processes may share it."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)

    def keep(self, call: Sealed, target: str) -> Kept:
        """Writes a call down; it is on the disk when this returns. A stream is written down whole, and sent from there."""
        if call.kind is None or call.key is None:
            raise InputError(f"{call.name} has no key that it could be kept by")
        try:
            return self._keep(call, target)
        except OSError as error:
            raise InputError(
                f"{call.name} can't be written down before it is sent, so it was not sent",
                cause=f"{self.directory}: {error}",
                remedy="make room there, or give another state_dir",
                key=call.key,
            ) from error

    def spool(self) -> tuple[Path, BinaryIO]:
        """A file for a body that can be read only once."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.directory / f"{secrets.token_hex(16)}.body"
        return path, os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")

    def settle(self, kept: Kept) -> None:
        """Its outcome is known. Where this fails, it is only asked about once more than needed."""
        try:
            os.replace(kept.path, kept.path.with_suffix(".done"))
            if isinstance(kept.call.body, Path) and kept.call.body.parent == self.directory:
                kept.call.body.unlink(missing_ok=True)
        except OSError:
            return

    def pending(self) -> list[Kept]:
        """Calls whose outcome did not come in, oldest first. Drops what was done long ago."""
        found = []
        for path in self._files(".json"):
            found.append(self._read(path))
        cutoff = time.time() - DONE_SECONDS_MAX
        for path in self._files(".done"):
            try:
                if path.stat().st_mtime < cutoff:
                    path.unlink()
            except FileNotFoundError:
                continue
        return sorted(found, key=lambda kept: kept.kept_at_ms)

    def of_key(self, key: str) -> list[Kept]:
        """Kept calls with this key, open ones first: one for each kind and sandbox that it was used with."""
        kept = [self._read(path) for suffix in (".json", ".done") for path in self._files(suffix)]
        return [one for one in kept if one.call.key == key]

    def _files(self, suffix: str) -> list[Path]:
        if not self.directory.is_dir():
            return []
        return [path for path in self.directory.iterdir() if path.suffix == suffix]

    def _keep(self, call: Sealed, target: str) -> Kept:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = hashlib.sha256(f"{call.key}\0{call.kind}\0{call.sandbox or ''}".encode()).hexdigest()[:32]
        path = self.directory / f"{name}.json"
        record: dict[str, Any] = {
            "version": VERSION,
            "key": call.key,
            "kind": call.kind,
            "sandbox": call.sandbox,
            "target": target,
            "method": call.method,
            "path": call.target,
            "headers": call.headers,
            "body": self._body(call, name),
            "kept_at_ms": int(time.time() * 1000),
        }
        before = path.with_suffix(".done") if path.with_suffix(".done").exists() else path
        if before.exists():
            other = json.loads(before.read_bytes())
            if any(other[word] != record[word] for word in ("target", "method", "path", "headers", "body")):
                raise Conflict(
                    f"the key {call.key} was used for another request",
                    code="idempotency_key_conflict",
                    remedy="use another key for another request",
                    key=call.key,
                )
            record["kept_at_ms"] = other["kept_at_ms"]
        _write(path, json.dumps(record).encode())
        return self._of(path, record)

    def _body(self, call: Sealed, name: str) -> dict[str, str]:
        body = call.body
        if body is None:
            return {}
        if isinstance(body, Path):
            return {"file": str(body.absolute()), "sha256": digest_of(body)}
        if not isinstance(body, bytes):
            raise InputError("a stream must be spooled before it is kept")
        if len(body) <= INLINE_BYTES_MAX:
            return {"base64": base64.b64encode(body).decode()}
        beside = self.directory / f"{name}.body"
        _write(beside, body)
        call.body = beside
        return {"file": str(beside.absolute()), "sha256": hashlib.sha256(body).hexdigest()}

    def _read(self, path: Path) -> Kept:
        try:
            record = json.loads(path.read_bytes())
            if record["version"] != VERSION:
                raise ValueError(f"it has version {record['version']}, and this client reads {VERSION}")
            return self._of(path, record)
        except (OSError, ValueError, KeyError) as error:
            raise RemudaError(
                f"the kept call {path} can't be read", cause=str(error), remedy="look at it, and move it away"
            ) from error

    def _of(self, path: Path, record: dict[str, Any]) -> Kept:
        written = record["body"]
        body: bytes | Path | None = None
        if "base64" in written:
            body = base64.b64decode(written["base64"])
        elif "file" in written:
            body = Path(written["file"])
        call = Sealed(
            record["method"],
            record["path"],
            dict(record["headers"]),
            body,
            record["kind"],
            record["sandbox"],
            record["key"],
            once=False,
        )
        return Kept(path, call, record["target"], record["kept_at_ms"], path.suffix == ".done")

    def check_body(self, kept: Kept) -> bool:
        """Whether what is to be sent is still there; raises where it has changed."""
        body = kept.call.body
        if not isinstance(body, Path):
            return True
        if not body.exists():
            return False
        written = json.loads(kept.path.read_bytes())["body"]["sha256"]
        if digest_of(body) != written:
            raise InputError(
                f"the call with the key {kept.call.key} was to send {body}, which has changed since",
                remedy="ask with list_operations(key) what became of it",
                key=kept.call.key,
            )
        return True


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path} can't be read", cause=str(error)) from error


def _write(path: Path, text: bytes) -> None:
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    # The name too: without it the file would be lost with the power.
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
