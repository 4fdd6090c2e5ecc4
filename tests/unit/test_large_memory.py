"""Memory in files: zeros, writable, gone with its last view; refused where there is no room."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from logstore.compression import CompressionType, compress, decompress
from logstore.errors import CorruptRecordError, StorageError
from logstore.large_memory import LARGE_BYTES, LargeMemory, write_zeros

HALF = os.urandom(LARGE_BYTES // 2 + 1000)
LARGE = HALF + bytes(len(HALF))
CODECS = [each for each in CompressionType if each is not CompressionType.NONE]


def test_it_is_a_file_without_a_name(tmp_path):
    """Nothing is left of it, not even after a crash."""
    view = LargeMemory(tmp_path).take(5000)
    assert bytes(5000) == view
    view[:3] = b"abc"
    assert b"abc\0" == view[:4]
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(("directory", "size"), [("nowhere", 1), (".", 1 << 62)])
def test_no_room(tmp_path, directory, size):
    """An error before the memory is used: a page that cannot be had would end the process."""
    with pytest.raises(StorageError, match=f"cannot have {size} bytes for a large record in"):
        LargeMemory(tmp_path / directory).take(size)


def test_zeros_where_files_cannot_be_allocated(tmp_path):
    """As macOS does it: the size, and blocks for all of it."""
    with (tmp_path / "file").open("wb") as file:
        write_zeros(file, LARGE_BYTES + 5000)
        found = os.fstat(file.fileno())
    assert LARGE_BYTES + 5000 == found.st_size <= 512 * found.st_blocks


@pytest.mark.parametrize("codec", CODECS)
def test_decompressing(tmp_path, codec):
    """The same bytes, in a file; the same bound."""
    memory, stored = LargeMemory(tmp_path), compress(codec, LARGE)
    found = decompress(codec, stored, large_memory=memory)
    assert isinstance(found, memoryview)
    assert LARGE == found
    assert b"small" == decompress(codec, compress(codec, b"small"), large_memory=memory)
    with pytest.raises(CorruptRecordError, match="beyond the bound"):
        decompress(codec, stored, bytes_max=len(LARGE) - 1, large_memory=memory)


def test_several_members_of_gzip(tmp_path):
    """The size at the end is of the last one only; what is behind them is not looked at."""
    memory, codec = LargeMemory(tmp_path), CompressionType.GZIP
    small, large = compress(codec, b"small"), compress(codec, LARGE)
    for stored, expected in (
        (large + small + large, LARGE + b"small" + LARGE),
        (small + large, b"small" + LARGE),
        (large + bytes(20_000) + large[-4:], LARGE),
    ):
        assert expected == decompress(codec, stored, bytes_max=1 << 26, large_memory=memory)
    for stored in (large[:-5] + large[-4:], large[: len(large) // 2] + large[-4:]):
        with pytest.raises(CorruptRecordError, match="damaged gzip"):
            decompress(codec, stored, large_memory=memory)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="ASan wants more itself")
def test_it_is_no_data_of_the_process(tmp_path):
    """What a limit of memory counts is a process's own; a file's pages are the kernel's."""
    code = """
import re, resource, sys
from pathlib import Path
from logstore.large_memory import LargeMemory
now = int(re.search(r"VmData:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
resource.setrlimit(resource.RLIMIT_DATA, (now + (64 << 20), hard))
view = LargeMemory(sys.argv[1]).take(128 << 20)
view[::4096] = bytes(len(view) // 4096)
try:
    bytearray(128 << 20)
except MemoryError:
    print("as it should be")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "as it should be\n" == done.stdout, done.stderr
