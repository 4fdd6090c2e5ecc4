"""The program in docs/compaction.md runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository
ROOT = Path(__file__).resolve().parents[2]


def test_program_runs(tmp_path):
    """It prints what its comments say."""
    page = (ROOT / "docs" / "compaction.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "data").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert re.findall(r"print\(.*\)  # (.*)", code) == done.stdout.splitlines()
