"""
Files and time enter by their doors: `files.py` over `ls_io`, and `clock.py`.

This reads the sources; the crash tests look at the system calls of a running log.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository
SOURCE = Path(__file__).resolve().parents[2] / "src" / "logstore"

# What changes or opens a file, or asks for the time, without the door.
FORBIDDEN = {
    "builtins": {"open"},
    "os": {
        *(
            "open",
            "write",
            "pwrite",
            "writev",
            "truncate",
            "ftruncate",
            "fsync",
            "fdatasync",
            "utime",
        ),
        *("rename", "replace", "unlink", "remove", "mkdir", "makedirs", "rmdir", "link", "symlink"),
    },
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep"},
    "shutil": {"copy", "copyfile", "copytree", "move", "rmtree"},
}
FORBIDDEN_METHODS = {"write_bytes", "write_text", "touch"}

# The doors themselves, and what is outside the engine.
DOORS = {"files", "simulated_files", "clock", "_native"}
OUTSIDE = {"cli", "testing"}
# What wakes an event loop is a pipe, and no file.
NO_FILES = {("waiting.py", "os.write")}


def calls(tree):
    """Yield (line number, dotted name) of each call that goes around a door."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in FORBIDDEN["builtins"]:
            yield node.lineno, function.id
        elif isinstance(function, ast.Attribute):
            owner = function.value.id if isinstance(function.value, ast.Name) else ""
            if function.attr in FORBIDDEN.get(owner, FORBIDDEN_METHODS):
                yield node.lineno, f"{owner}.{function.attr}"


def modules():
    """Return the files of the engine."""
    paths = sorted(SOURCE.rglob("*.py"))
    return [
        path
        for path in paths
        if path.relative_to(SOURCE).parts[0].removesuffix(".py") not in DOORS | OUTSIDE
    ]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_module_goes_through_the_doors(path):
    """No module opens a file, changes a directory, sleeps or reads the clock by itself."""
    found = calls(ast.parse(path.read_text(encoding="utf-8")))
    assert [] == [(line, name) for line, name in found if (path.name, name) not in NO_FILES]


@pytest.mark.parametrize("code", ["open('x')", "os.rename(a, b)", "time.sleep(1)", "p.touch()"])
def test_detours_are_found(code):
    """A check that never finds anything would pass everything."""
    assert 1 == len(list(calls(ast.parse(code))))
