"""The C sources: strict warnings, small files, and no processor that they cannot do without."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository
ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "src/logstore/_native"
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
def test_no_warning(compiler):
    """As it is built, also where conversions change a value."""
    assert (0, "") == compiled(compiler, SOURCES, "-DNDEBUG")


def test_no_warning_with_asserts():
    """As the sanitizers see it."""
    assert (0, "") == compiled(COMPILERS[0], SOURCES)


def test_portable_variant_compiles():
    """The kernels without the parts of x86 and ARM, as any other processor sees them."""
    assert (0, "") == compiled(COMPILERS[0], KERNELS, "-DLS_PORTABLE")


def test_arm_variant_compiles():
    """The kernels as 64-bit ARM sees them, where a compiler for it is at hand."""
    compiler = "aarch64-linux-gnu-gcc"
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    assert (0, "") == compiled(compiler, KERNELS)


def test_inline_encoder(tmp_path):
    """What writers put record by record is the format, at every size where a varint grows."""
    program = tmp_path / "put_records"
    source = ROOT / "tests/support/put_records.c"
    encoder = [path for path in KERNELS if path.name.startswith(("ls_encode", "ls_crc32c"))]
    command = [COMPILERS[0], "-std=c11", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
    command += [*MACROS, f"-I{NATIVE}", str(source), *map(str, encoder), "-o", str(program)]
    subprocess.run(command, check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stdout)


def test_files_are_small():
    """A C file is read in one sitting."""
    lengths = {
        path.name: len(path.read_text(encoding="utf-8").splitlines())
        for path in [*NATIVE.glob("ls_*.c"), *NATIVE.glob("ls_*.h")]
    }
    assert {} == {name: length for name, length in lengths.items() if length > 400}
