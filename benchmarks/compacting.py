"""The contest of compaction: a log with many records of few keys, cleaned against P."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

import logstore
from benchmarks.harness import Contest, Stopwatch, Target, Variant
from benchmarks.sizes import Size
from benchmarks.yardsticks import pwrite_mib
from logstore.cleaner_config import CleanerConfig

VALUE_BYTES = 100
KEY_BYTES = 8
# A tenth of the records stays, as with 1 M keys in 1 GiB of values of 100 B.
RECORDS_PER_KEY = 10
CONFIG = {"cleanup.policy": "compact", "segment.bytes": 64 << 20}
MEMORY = CleanerConfig()  # Kafka's: 128 MiB of offset map, 512 KiB of buffers.


def compacting(directory: Path, size: Size) -> Contest:
    """An uncompressed log of keyed values, written again and again, cleaned in one round."""
    value_bytes = 8 * size.value_bytes  # 1 GiB: the offset map costs the same for less.
    count = value_bytes // VALUE_BYTES
    key_count = max(1, count // RECORDS_PER_KEY)
    source = directory / "source-0"
    expected = write_source(source, count, key_count)

    def run(watch: Stopwatch) -> None:
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            path = Path(scratch) / "log-0"
            link_tree(source, path)
            with logstore.open(path, config=CONFIG) as log:
                with watch.running():
                    stats = log.compact(config=MEMORY)
                assert expected == (stats.messages_read, stats.messages_written)

    return Contest(
        "compaction",
        (
            pwrite_mib(directory, 2 * size.value_bytes),
            Variant("compact", run, "cpu", value_bytes),
        ),
        (
            Target(
                "compact an uncompressed log, 100 B, a tenth stays",
                "compact",
                "P",
                0.25,
                0.35,
                unit="P",
            ),
        ),
        rounds=5,
    )


def write_source(path: Path, count: int, key_count: int) -> tuple[int, int]:
    """Write the log, and return how many records a cleaning reads, and how many stay."""
    random = np.random.default_rng(1)
    keys = random.integers(0, key_count, count, np.uint32)
    with logstore.open(path, config=CONFIG) as log:
        for first in range(0, count, 1 << 17):
            part = keys[first : first + (1 << 17)]
            columns = pa.table(
                {
                    "key": fixed_width(part, KEY_BYTES),
                    "value": fixed_width(part, VALUE_BYTES),
                }
            )
            log.extend_arrow(columns, value="value", key="key")
        log.roll()
    return count, len(np.unique(keys))


def fixed_width(numbers: np.ndarray, width: int) -> pa.Array:
    """Return binary items of one width that begin with these numbers."""
    data = np.zeros((len(numbers), width), np.uint8)
    data[:, :4] = numbers.astype(">u4").view(np.uint8).reshape(-1, 4)
    offsets = np.arange(0, (len(numbers) + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def link_tree(source: Path, target: Path) -> None:
    """Let a log have the same files: sealed ones are never written, only renamed and replaced."""
    target.mkdir()
    for path in source.iterdir():
        if path.suffix == ".log" and path.stat().st_size > 0:
            os.link(path, target / path.name)
        else:
            shutil.copy2(path, target / path.name)
