"""Ids as Open SWE recognises them in texts: `sb-c1-20261008T120000000Z` for `c1@2026-10-08T12:00:00.000Z`. No I/O."""

from __future__ import annotations

import re

from remuda_client import InvalidRequest, check_id

_NATIVE = re.compile(r"([A-Za-z0-9-]+)@(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)\.(\d{3})Z")
_THREAD = re.compile(r"sb-([A-Za-z0-9-]+)-(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)(\d{3})Z")


def thread_id(native: str) -> str:
    """The id that a thread is bound to. It names the generation as the native one does."""
    found = _NATIVE.fullmatch(native)
    if found is None:
        raise InvalidRequest(
            f"{native!r} can't be written as an id of Open SWE",
            code="invalid_id",
            remedy="use slots of letters, digits and hyphens",
        )
    slot, year, month, day, hour, minute, second, milli = found.groups()
    return f"sb-{slot}-{year}{month}{day}T{hour}{minute}{second}{milli}Z"


def native_id(bound: str) -> str:
    """The native id of what a thread is bound to; a native one stays as it is, and a bare slot is refused."""
    found = _THREAD.fullmatch(bound)
    if found is None:
        return check_id(bound)
    slot, year, month, day, hour, minute, second, milli = found.groups()
    return f"{slot}@{year}-{month}-{day}T{hour}:{minute}:{second}.{milli}Z"
