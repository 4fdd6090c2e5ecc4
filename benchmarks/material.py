"""What the contests write and read: values, columns, encoded batches, logs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import logstore

BATCH_BYTES = 64 << 10
NOW_MS = 1_700_000_000_000

# Of Linux's <linux/fs.h>.
FS_IOC_GETFLAGS = 0x80086601
FS_IOC_SETFLAGS = 0x40086602
FS_TOPDIR_FL = 0x00020000


@dataclass(frozen=True)
class Values:
    """
    The values of one run, as columns and as a list, in memory that is cold after the last run.

    Attributes:
        size: Bytes of each value.
        count: Number of values.
        plain: Table with the column ``value``.
        full: Table with ``value``, ``key`` (10 bytes, every second one null) and ``timestamp``.
    """

    size: int
    count: int
    plain: pa.Table
    full: pa.Table

    @classmethod
    def of(cls, size: int, total_bytes: int) -> Values:
        """Return random values of ``size`` bytes, ``total_bytes`` in all."""
        count = max(1, total_bytes // size)
        noise = np.random.default_rng(2).integers(0, 256, size * count, np.uint8)
        values = _binary(noise, size, count)
        keys = _binary(np.resize(noise, 10 * count), 10, count)
        present = pa.array(np.arange(count) % 2 == 0)
        keys = pc.if_else(present, keys, pa.scalar(None, pa.binary()))
        timestamps = pa.array(NOW_MS + np.arange(count) // 100, pa.int64())
        return cls(
            size,
            count,
            pa.table({"value": values}),
            pa.table({"value": values, "key": keys, "timestamp": timestamps}),
        )

    @property
    def total_bytes(self) -> int:
        """Value bytes in all."""
        return self.size * self.count

    def as_list(self) -> list[bytes]:
        """Return the values as bytes objects of their own."""
        values: list[bytes] = self.plain["value"].to_pylist()
        return values


def _binary(data: np.ndarray[Any, Any], size: int, count: int) -> pa.Array:
    offsets = np.arange(0, size * count + 1, size, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


@contextmanager
def fresh_log(directory: Path, **config: Any) -> Iterator[logstore.Log]:
    """Yield a new log; its files are gone afterwards, outside any clock."""
    with (
        tempfile.TemporaryDirectory(dir=directory) as path,
        logstore.open(Path(path) / "bench-0", "x", config=config) as log,
    ):
        yield log


def written_log(path: Path, values: Values, **config: Any) -> Path:
    """Write a log of the values, close it, and return its path."""
    with logstore.open(path, "x", config=config) as log:
        log.extend_arrow(values.plain, value="value")
    return path


def segment_bytes(path: Path) -> bytes:
    """Return the bytes of all segments of a log, oldest first."""
    return b"".join(file.read_bytes() for file in sorted(path.glob("*.log")))


def spread_directories(directory: Path) -> None:
    """
    Have ext4 place each directory made in here where there is room, not beside this one.

    As ``chattr +T``; other file systems have no such flag, and need none.
    """
    fd = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            flags = bytearray(8)
            fcntl.ioctl(fd, FS_IOC_GETFLAGS, flags)
            (value,) = struct.unpack_from("i", flags)
            struct.pack_into("i", flags, 0, value | FS_TOPDIR_FL)
            fcntl.ioctl(fd, FS_IOC_SETFLAGS, flags)
    finally:
        os.close(fd)
