"""The program and the commands in docs/retention.md run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository
ROOT = Path(__file__).resolve().parents[2]


def blocks(language):
    text = (ROOT / "docs" / "retention.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(command, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout


def test_program_runs(tmp_path):
    """It prints what its comments say."""
    (code,) = blocks("python")
    printed = run([sys.executable, "-W", "error", "-c", code], tmp_path)
    assert re.findall(r"print\(.*\)  # (.*)", code) == printed.splitlines()


def test_commands_run(tmp_path):
    """None fails."""
    (code,) = blocks("bash")
    code = re.sub(r"\blogstore ", f"{sys.executable} -m logstore ", code)
    printed = run(["bash", "-euo", "pipefail", "-c", code], tmp_path)
    assert '"retention_ms":86400000' in printed
    assert "retention: nothing goes now; the segment at offset 0 goes at 20" in printed
