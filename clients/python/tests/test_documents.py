"""What the documents show is run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from world import ROOT, Server


@pytest.mark.parametrize("page", ["docs/python.md", "clients/python/README.md", "README.md"])
def test_the_examples_run(page: str, server: Server, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)
    assert blocks
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)],
        cwd=tmp_path,
        env={**os.environ, "REMUDA_URL": server.url, "REMUDA_API_KEY": server.key},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
