"""
Free memory that the machine keeps, for contests whose writes need new pages by the gigabyte.

A virtual machine may give free memory back to its host, in blocks of 2 MiB on Linux (free page
reporting). A page of such a block is fetched anew when it is used, which can take 12 µs: more than
all that whoever writes it does with it, so that a contest measures how much memory the machine has
left. A block is not given back while one of its pages is in use.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.sizes import MIB

AT_ONCE = 64 * MIB


@contextmanager
def kept_memory(size_bytes: int) -> Iterator[None]:
    """
    Touch so much memory and free it but for one page of each MiB, which is held in the block.

    No more than half of what is available. Where the system cannot say so, or cannot free parts of
    a mapping, nothing happens.
    """
    size_bytes = min(size_bytes, _available_bytes() // 2) // AT_ONCE * AT_ONCE
    if size_bytes == 0 or not hasattr(mmap, "MADV_DONTNEED"):
        yield
        return
    with mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        for start in range(0, size_bytes, AT_ONCE):
            pages = AT_ONCE // mmap.PAGESIZE
            memory[start : start + AT_ONCE : mmap.PAGESIZE] = b"1" * pages
        for start in range(0, size_bytes, MIB):
            memory.madvise(mmap.MADV_DONTNEED, start, MIB - mmap.PAGESIZE)
        yield


def _available_bytes() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0
