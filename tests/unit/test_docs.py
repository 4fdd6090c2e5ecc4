"""The programs and commands on the pages in docs/ run as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from logstore.cli import build_parser

pytestmark = pytest.mark.repository
ROOT = Path(__file__).resolve().parents[2]

# What a page's programs import beside logstore.
PROGRAMS = {
    "arrow.md": ["pyarrow", "polars", "duckdb", "pandas"],
    "compaction.md": [],
    "following.md": ["trio"],
    "positions.md": [],
    "processes-and-threads.md": [],
    "reading.md": [],
    "retention.md": [],
    "snapshots.md": [],
    "store.md": [],
    "transactions.md": [],
}
# Parts of what a page's commands print, in a directory of their own.
COMMANDS = {
    "retention.md": [
        '"retention_ms":86400000',
        "retention: nothing goes now; the segment at offset 0 goes at 20",
    ],
    "snapshots.md": ["1 partition; ", '"aborted":0', "ends at offset 0"],
    "store.md": ['"config":{"segment.bytes":"104857600"}'],
}


def blocks(page, language):
    """Return the code blocks of a language, as a reader would copy them."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(command, directory, *, may_remark=False):
    """Return what a command prints; it must not fail, nor say anything beside that."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert (0, "") == (done.returncode, "" if may_remark else done.stderr)
    return done.stdout


def run_commands(page, directory, **options):
    """Run a page's commands, one after the other."""
    (code,) = blocks(page, "bash")
    command = f"{shlex.quote(sys.executable)} -m logstore "
    code = re.sub(r"\blogstore ", lambda _: command, code)
    return run(["bash", "-euo", "pipefail", "-c", code], directory, **options)


@pytest.mark.parametrize("page", PROGRAMS)
def test_programs(page, tmp_path):
    """One after the other, they print what their comments say."""
    for module in PROGRAMS[page]:
        pytest.importorskip(module)
    for code in blocks(page, "python"):
        printed = run([sys.executable, "-c", code], tmp_path)
        # A loop says in one line what it prints in several.
        assert " ".join(re.findall(r"print\(.*\)  # (.*)", code)).split() == printed.split()
    if page == "positions.md":  # Its commands are about what the programs have left.
        assert run_commands(page, tmp_path, may_remark=True)


@pytest.mark.parametrize("page", COMMANDS)
def test_commands(page, tmp_path):
    """None fails."""
    printed = run_commands(page, tmp_path)
    for part in COMMANDS[page]:
        assert part in printed


def commands_on(page):
    """Return the arguments of each ``logstore`` command that a page shows."""
    found = []
    for line in "\n".join(blocks(page, "bash")).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for at in [at for at, word in enumerate(words) if word == "logstore"]:
            end = next(
                (i for i, word in enumerate(words[at:], at) if word in {"|", "<", ">", "&&"}), None
            )
            found.append(words[at + 1 : end])
    return found


@pytest.mark.parametrize(
    "page", ["../README.md", *sorted(path.name for path in (ROOT / "docs").glob("*.md"))]
)
def test_commands_are_understood(page, capsys):
    """Every command on every page has the arguments that it takes."""
    parser = build_parser()
    for arguments in commands_on(page):
        try:
            parser.parse_args(arguments)
        except SystemExit:
            pytest.fail(f"{shlex.join(arguments)}: {capsys.readouterr().err}")
