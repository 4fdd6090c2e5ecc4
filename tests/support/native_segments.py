"""A native writer on three open files, without a log around it."""

from __future__ import annotations

import contextlib
import os
import struct

import numpy as np

from logstore._native.columns import Columns, encode_batch
from logstore._native.kernels import SCAN_STOP_END, scan_batches
from logstore._native.records import BlockStop, read_block
from logstore._native.writer import (
    NativeLog,
    Writer,
)
from logstore.clock import ManualClock
from logstore.files import REAL_FILES

NOW = 1_700_000_000_000


class Segment:
    """Three open files and a writer on them."""

    def __init__(self, directory, files=REAL_FILES, base_offset=0, **config):
        self.files = files
        self.clock = ManualClock(NOW)
        names = ("log", "index", "timeindex")
        self.paths = [os.path.join(directory, f"{base_offset:020d}.{name}") for name in names]
        self.fds = [files.open(path, os.O_RDWR | os.O_CREAT) for path in self.paths]
        self.base_offset = base_offset
        self.writer = Writer(files.io, clock_address=self.clock.address)
        self.writer.configure(**config)
        self.attach()

    def attach(self, **arguments):
        defaults = {"next_offset": self.base_offset, "created_ms": NOW, "path": self.paths[0]}
        defaults |= {"offset_entries_max": 1 << 20, "time_entries_max": 1 << 20}
        log_fd, index_fd, timeindex_fd = self.fds
        self.writer.attach(
            log_fd=log_fd,
            index_fd=index_fd,
            timeindex_fd=timeindex_fd,
            base_offset=self.base_offset,
            **(defaults | arguments),
        )

    def data(self):
        with open(self.paths[0], "rb") as file:
            return file.read()

    def batches(self):
        data = self.data()
        result = scan_batches(data, records=True, order=True)
        assert (SCAN_STOP_END, len(data)) == (result.stop, result.valid_bytes)
        return result.batches

    def records(self):
        data = self.data()
        block = read_block(data, 0, len(data), max_records=1 << 20)
        assert BlockStop.END == block.stop
        return block.items

    def values(self):
        return [record.value for record in self.records()]

    def offset_entries(self):
        with open(self.paths[1], "rb") as file:
            data = file.read()[: 8 * self.writer.state().offset_entry_count]
        return [struct.unpack_from(">ii", data, at) for at in range(0, len(data), 8)]

    def time_entries(self):
        with open(self.paths[2], "rb") as file:
            data = file.read()[: 12 * self.writer.state().time_entry_count]
        return [struct.unpack_from(">qi", data, at) for at in range(0, len(data), 12)]

    def close(self):
        for fd in self.fds:
            self.files.close(fd)


@contextlib.contextmanager
def segments_in(directory):
    """Give what makes segments there; they are closed at the end of the block."""
    segments = []

    def make(**arguments):
        segments.append(Segment(directory, **arguments))
        return segments[-1]

    yield make
    for segment in segments:
        segment.close()


class Log(NativeLog):
    """What Log makes of NativeLog, as far as append goes."""

    def __init__(self):
        self.general = []

    def _append_general(self, *args, **kwargs):
        self.general.append((args, kwargs))
        return -1


def columns_of(values, **arguments):
    offsets = np.cumsum([0, *(len(value) for value in values)])
    return Columns(b"".join(values), offsets.astype(np.int64), **({"timestamp": NOW} | arguments))


def ready(values, base_offset, leader_epoch=4, timestamp=NOW):
    columns = columns_of(values, timestamp=timestamp)
    return encode_batch(columns, 0, base_offset=base_offset, leader_epoch=leader_epoch).data


def headers_of(data):
    return scan_batches(data).batches
