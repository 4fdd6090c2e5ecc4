"""
The yardsticks: what this machine does without a log, measured in the rounds of every contest.

    P   pwrite of the same number of value bytes: hot page-aligned buffer, 1 MiB calls, fresh file
    W1  os.pwrite of one bare value per call, median time of a call
    M   copy of a file's bytes from a held mapping to a page-aligned buffer that is there already
    S   sum over a held mapping, read only
    L   ``for item in list: pass``, by item, over objects as a read makes them
"""

from __future__ import annotations

import mmap
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Stopwatch, Variant, fresh_file

MIB = 1 << 20


def page_aligned(size_bytes: int) -> memoryview:
    """Return zeroed memory of its own pages: misaligned copies run at a fifth of the speed."""
    return memoryview(mmap.mmap(-1, size_bytes))


def pwrite_mib(directory: Path, value_bytes: int) -> Variant:
    """P: the page cache's own speed at taking ``value_bytes``."""
    buffer = page_aligned(MIB)
    buffer[:] = bytes(range(256)) * (MIB // 256)

    def run(watch: Stopwatch) -> None:
        with fresh_file(directory) as fd:
            with watch.running():
                for position in range(0, value_bytes, MIB):
                    os.pwrite(fd, buffer[: value_bytes - position], position)
            assert os.fstat(fd).st_size == value_bytes

    return Variant("P", run, "cpu", value_bytes)


def pwrite_value(directory: Path, value: bytes, call_count: int) -> Variant:
    """W1: one system call for each value; the median, since the machine is shared."""

    def run(_: Stopwatch) -> float:
        now = time.perf_counter_ns
        times = []
        size = len(value)
        with fresh_file(directory) as fd:
            for position in range(0, call_count * size, size):
                begin = now()
                os.pwrite(fd, value, position)
                times.append(now() - begin)
        return statistics.median(times) / 1e9

    return Variant("W1", run, "wall", 1)


def copy_mapped(path: Path) -> Variant:
    """M: a file's bytes from its mapping into memory of ours."""
    source = np.frombuffer(_mapped(path), np.uint8)
    target = np.frombuffer(page_aligned(source.size), np.uint8)
    target[:] = source

    def run(watch: Stopwatch) -> None:
        with watch.running():
            np.copyto(target, source)
        assert target[-1] == source[-1]

    return Variant("M", run, "cpu", source.size)


def sum_mapped(path: Path) -> Variant:
    """S: every byte of a file seen once; numpy's loop is as fast as one in C with AVX2."""
    mapped = _mapped(path)
    words = np.frombuffer(mapped, np.uint64, count=len(mapped) // 8)
    expected = int(words.sum())

    def run(watch: Stopwatch) -> None:
        with watch.running():
            total = words.sum()
        assert int(total) == expected

    return Variant("S", run, "cpu", words.size * 8)


def iterate_list(name: str, items: list[Any]) -> Variant:
    """L: what a bare loop over a list of objects costs, each of its own as when it is read."""

    def run(watch: Stopwatch) -> None:
        with watch.running():
            for _item in items:
                pass

    return Variant(name, run, "cpu", len(items))


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
