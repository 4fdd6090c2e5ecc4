"""
Memory for single things that are very large, such as a record of 200 MB: in files, not in RAM.

A process that has a bound of its memory (a task of Spark, a container) may have to hold such a
record two or three times on the way: as it is in the log, decompressed, as a column. What is mapped
from a file does not count there: the kernel writes its pages out and takes them away whenever it
needs them. The file has no name, and goes with the last view of it, as a rule before any of it was
written to the device.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from typing import IO, Final

import numpy as np
import numpy.typing as npt

from logstore.errors import StorageError

#: What is smaller is better in ordinary memory.
LARGE_BYTES: Final = 16 << 20


class LargeMemory:
    """
    Where memory for what is larger than ``LARGE_BYTES`` comes from.

    Args:
        directory: For the files; None: the system's for temporary ones.

    **Thread rule**: any thread.
    """

    def __init__(self, directory: str | os.PathLike[str] | None) -> None:
        self._directory: Final = directory

    def take(self, size_bytes: int) -> memoryview:
        """
        Return so many zero bytes, page-aligned and writable; freed with the last view of them.

        Raises:
            StorageError: The file system has no room.
        """
        assert size_bytes > 0
        try:
            with tempfile.TemporaryFile(dir=self._directory) as file:
                # A page that the file system had no room for would end the process.
                if sys.platform == "darwin":
                    write_zeros(file, size_bytes)
                else:
                    os.posix_fallocate(file.fileno(), 0, size_bytes)
                return memoryview(mmap.mmap(file.fileno(), size_bytes))
        except OSError as error:
            where = self._directory or tempfile.gettempdir()
            raise StorageError(
                f"cannot have {size_bytes} bytes for a large record in {os.fspath(where)}:"
                f" {error.strerror}; make room, or set another temporary directory",
                error.errno,
                path=where,
            ) from error


def room_for(size_bytes: int, large_memory: LargeMemory | None) -> npt.NDArray[np.uint8]:
    """
    Return an array of bytes to write into, of ordinary memory unless it is large.

    Args:
        size_bytes: Of it.
        large_memory: For what is large; None: ordinary memory always.

    Raises:
        StorageError: The file system has no room.
    """
    if large_memory is None or size_bytes <= LARGE_BYTES:
        return np.empty(size_bytes, np.uint8)
    return np.frombuffer(large_memory.take(size_bytes), np.uint8)


def write_zeros(file: IO[bytes], size_bytes: int) -> None:
    """Make an empty file so large, all of it allocated: where there is no posix_fallocate."""
    zeros = bytes(min(size_bytes, LARGE_BYTES))
    for position in range(0, size_bytes, len(zeros)):
        file.write(zeros[: size_bytes - position])
    file.flush()
