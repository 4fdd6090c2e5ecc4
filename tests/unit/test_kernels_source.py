"""The C sources: strict warnings, small files, and no processor that they cannot do without."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository
NATIVE = Path(__file__).resolve().parents[2] / "src/logstore/_native"
SOURCES = sorted(NATIVE.glob("ls_*.c"))
KERNELS = [path for path in SOURCES if not path.name.startswith(("ls_io", "ls_py", "ls_writer"))]
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)] or ["cc"]
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror", "-fsyntax-only"]
MACROS = ["-D_GNU_SOURCE", "-DPy_LIMITED_API=0x030b0000"]


def compiled(compiler, paths, *flags):
    """Return what a compiler says of ``paths``; what Python's own headers do is not judged."""
    headers = ["-isystem", sysconfig.get_paths()["include"]]
    command = [compiler, *STRICT, *MACROS, *headers, "-O2", *flags, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.returncode, done.stderr)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("asserts", ["-DNDEBUG", "-UNDEBUG"])
def test_no_warning(compiler, asserts):
    """With and without asserts, also where conversions change a value."""
    assert (0, "") == compiled(compiler, SOURCES, asserts)


def test_portable_variant_compiles():
    """The kernels without the parts of x86 and ARM, as any other processor sees them."""
    assert (0, "") == compiled(COMPILERS[0], KERNELS, "-DLS_PORTABLE")


def test_arm_variant_compiles():
    """The kernels as 64-bit ARM sees them, where a compiler for it is at hand."""
    compiler = "aarch64-linux-gnu-gcc"
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    assert (0, "") == compiled(compiler, KERNELS)


def test_files_are_small():
    """A C file is read in one sitting."""
    lengths = {
        path.name: len(path.read_text(encoding="utf-8").splitlines())
        for path in [*NATIVE.glob("ls_*.c"), *NATIVE.glob("ls_*.h")]
    }
    assert {} == {name: length for name, length in lengths.items() if length > 400}
