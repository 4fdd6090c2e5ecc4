"""The programs and commands in docs/transactions.md and docs/positions.md run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository
ROOT = Path(__file__).resolve().parents[2]


def blocks(page, language):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(command, directory):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )


def check_program(code, directory):
    """It prints what its comments say; a loop says it in one line."""
    done = run([sys.executable, "-W", "error", "-c", code], directory)
    assert (0, "") == (done.returncode, done.stderr)
    expected = " ".join(re.findall(r"print\(.*\)  # (.*)", code))
    assert expected.split() == done.stdout.split()


def test_transactions(tmp_path):
    """The page's program."""
    (code,) = blocks("transactions.md", "python")
    check_program(code, tmp_path)


def test_positions(tmp_path):
    """Both programs, one after the other, and the commands on what they leave."""
    for code in blocks("positions.md", "python"):
        check_program(code, tmp_path)
    (commands,) = blocks("positions.md", "bash")
    for line in commands.splitlines():
        command = line.removeprefix("logstore ").split()
        done = run([sys.executable, "-m", "logstore", *command], tmp_path)
        assert 0 == done.returncode, (line, done.stderr)
        assert done.stdout
