"""A part of docs/compatibility.md, made from what the tests came to. With UPDATE=1 it is written, else compared."""

from __future__ import annotations

import os

from world import ROOT

PAGE = ROOT / "docs" / "compatibility.md"


def hold(marker: str, lines: list[str]) -> str | None:
    """What is wrong with the part of the page between this marker's two lines; None where it is current."""
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    page = PAGE.read_text()
    if page.count(begin) != 1 or page.count(end) != 1:
        return f"{PAGE} needs one line {begin} and one line {end}"
    before, rest = page.split(begin)
    _, after = rest.split(end)
    wanted = f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{after}"
    if page == wanted:
        return None
    if os.environ.get("UPDATE") == "1":
        PAGE.write_text(wanted)
        return None
    return f"{PAGE} does not tell what the tests came to: run them with UPDATE=1"
