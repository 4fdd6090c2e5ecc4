"""The programs in README.md run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

if "pytest_logstore" not in {point.value for point in entry_points(group="pytest11")}:
    pytest.skip("the package is not installed", allow_module_level=True)

pytestmark = pytest.mark.repository
README = Path(__file__).resolve().parents[2] / "README.md"


def blocks(language):
    """Return the code blocks of a language, as a reader would copy them."""
    text = README.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


BLOCKS = blocks("python")


@pytest.mark.parametrize("code", [block for block in BLOCKS if "def test_" not in block])
def test_program_runs(tmp_path, code):
    """Each program runs in an empty directory and prints what its comments say."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    for expected in re.findall(r"print\(.*\)  # (.*)", code):
        assert expected in done.stdout.splitlines()


@pytest.mark.parametrize("code", blocks("bash"))
def test_commands_run(tmp_path, code):
    """The commands run one after the other in an empty directory, and none fails."""
    programs = Path(sys.executable).parent
    assert (programs / "logstore").exists()
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stderr


@pytest.mark.parametrize("code", [block for block in BLOCKS if "def test_" in block])
def test_example_test_passes(tmp_path, code):
    """The test of the README passes with the plugin that the package brings; it has 8 lines."""
    assert len(code.splitlines()) <= 8
    (tmp_path / "test_example.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_example.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout
