"""The C sources of the kernels: strict warnings, small files, no machine of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository
NATIVE = Path(__file__).resolve().parents[2] / "src/logstore/_native"
KERNELS = sorted(
    path
    for name in ("crc32c", "scan", "index", "encode", "decode")
    for path in NATIVE.glob(f"ls_{name}*.c")
)
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)] or ["cc"]
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror", "-fsyntax-only"]


def compiled(compiler, path, *flags):
    command = [compiler, *STRICT, "-D_GNU_SOURCE", "-O2", *flags, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.returncode, done.stderr)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
@pytest.mark.parametrize("asserts", ["-DNDEBUG", "-UNDEBUG"])
def test_no_warning(compiler, path, asserts):
    """With and without asserts, also where conversions change a value."""
    assert (0, "") == compiled(compiler, path, asserts)


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
def test_portable_variant_compiles(path):
    """Without the x86 parts, as another processor sees the source."""
    assert (0, "") == compiled(COMPILERS[0], path, "-DLS_PORTABLE")


def test_files_are_small():
    """A C file is read in one sitting."""
    lengths = {
        path.name: len(path.read_text(encoding="utf-8").splitlines())
        for path in [*NATIVE.glob("ls_*.c"), *NATIVE.glob("ls_*.h")]
    }
    assert {} == {name: length for name, length in lengths.items() if length > 400}
