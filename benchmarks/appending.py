"""Contests of writing: columns, lists, ready batches, small segments, single records, flushes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import logstore
from benchmarks.harness import (
    Contest,
    InTurns,
    Piece,
    Stopwatch,
    Target,
    Variant,
    fresh_file,
)
from benchmarks.material import (
    Values,
    fresh_log,
    segment_bytes,
    spread_directories,
    written_log,
)
from benchmarks.sizes import Size
from benchmarks.yardsticks import MIB, pwrite_mib, pwrite_value

# Batches of a megabyte are the largest that max.message.bytes lets through by default.
READY_BATCH_BYTES = 1_000_000


def bulk(directory: Path, size: Size, value_size: int) -> Contest:
    """Columns, a list, and ready batches, each against P."""
    values = Values.of(value_size, size.value_bytes)
    items = values.as_list()
    source = written_log(directory / "source-0", values, batch_bytes=READY_BATCH_BYTES)
    ready = memoryview(segment_bytes(source))
    batches = cut(ready)
    produced = [bytes(8) + bytes(batch[8:]) for batch in batches]  # As a producer sends them.

    def appending(name: str, append: Callable[[logstore.Log], object], **config: Any) -> Variant:
        def run(watch: Stopwatch) -> None:
            with fresh_log(directory, **config) as log:
                with watch.running():
                    append(log)
                assert values.count == log.log_end_offset

        return Variant(name, run, "cpu", values.total_bytes)

    def full_columns(log: logstore.Log) -> None:
        log.extend_arrow(values.full, value="value", key="key", timestamp="timestamp")

    def as_leader(log: logstore.Log) -> None:
        for batch in produced:
            log.append_batches(batch, leader_epoch=1)

    def as_follower(log: logstore.Log) -> None:
        for batch in batches:
            log.append_batches(batch, leader_epoch=1, origin="replication")

    small = value_size < 1024
    label = "100 B" if small else "1 KiB"

    def target(path: str, variant: str, floor: float, ambition: float, peer: str = "-") -> Target:
        return Target(f"{path}, {label}", variant, "P", floor, ambition, unit="P", peer=peer)

    plain = values.plain
    return Contest(
        f"bulk {label}",
        (
            pwrite_mib(directory, values.total_bytes),
            appending("columns", lambda log: log.extend_arrow(plain, value="value")),
            unallocated(
                appending("unallocated", lambda log: log.extend_arrow(plain, value="value"))
            ),
            appending("full columns", full_columns),
            appending("list", lambda log: log.extend(items)),
            appending("leader", as_leader),
            appending("follower", as_follower),
        ),
        (
            target("append columns", "columns", *((0.60, 0.75) if small else (0.72, 0.85))),
            target(
                "append columns, no fallocate",
                "unallocated",
                *((0.48, 0.59) if small else (0.55, 0.68)),
            ),
            target(
                "append columns, keys and timestamps",
                "full columns",
                *((0.48, 0.60) if small else (0.68, 0.82)),
            ),
            target("append list", "list", *((0.50, 0.62) if small else (0.70, 0.85))),
            target(
                "ready batches as leader",
                "leader",
                *((0.45, 0.65, "0.35 P") if small else (0.70, 0.85, "0.66 P")),
            ),
            target(
                "ready batches as follower",
                "follower",
                *((0.68, 0.85, "0.66 P") if small else (0.75, 0.95, "0.73 P")),
            ),
        ),
    )


def unallocated(variant: Variant) -> Variant:
    """Return the variant without space allocated ahead of its writes."""

    def run(watch: Stopwatch) -> None:
        with mock.patch.object(logstore.LogConfig, "preallocation_bytes", 0):
            variant.run(watch)

    return dataclasses.replace(variant, run=run)


def cut(batches: memoryview) -> list[memoryview]:
    """Return one view for each v2 batch."""
    views = []
    position = 0
    while position < len(batches):
        end = position + 12 + int.from_bytes(batches[position + 8 : position + 12], "big")
        views.append(batches[position:end])
        position = end
    return views


def small_segments(directory: Path, size: Size) -> Contest:
    """
    Columns into segments of 1 MiB, each roll's flush awaited before the clock stops.

    Files are made by the hundred, which ext4 without a journal is slow at where some were deleted
    in the last minutes: it passes over their inodes one by one, at up to forty times the cost. So
    each log gets a place of its own, and no file is deleted between the rounds, only emptied.
    """
    spread_directories(directory)
    values = Values.of(100, size.value_bytes)

    def appending(*, closed: bool = False) -> Callable[[Stopwatch], None]:
        def run(watch: Stopwatch) -> None:
            path = Path(tempfile.mkdtemp(dir=directory)) / "bench-0"
            log = logstore.open(path, "x", config={"segment_bytes": MIB})
            with watch.running():
                log.extend_arrow(values.plain, value="value")
                log.flush()
                if closed:
                    log.close()
            assert values.count == log.log_end_offset == log.recovery_point
            log.close()
            for file in path.glob("*.log"):
                os.truncate(file, 0)

        return run

    yardstick = pwrite_mib(directory, values.total_bytes)
    return Contest(
        "small segments",
        (
            yardstick,
            Variant("P wall", yardstick.run, "wall", yardstick.amount),
            Variant("cpu", appending(), "cpu", values.total_bytes),
            Variant("closed", appending(closed=True), "cpu", values.total_bytes),
            Variant("wall", appending(), "wall", values.total_bytes),
        ),
        (
            Target(
                "append columns in 1 MiB segments, 100 B",
                "cpu",
                "P",
                0.35,
                0.55,
                unit="P",
                peer="0.24-0.30 P",
            ),
            Target("the same, indexes flushed and closed, too", "closed", "P", unit="P"),
            Target("the same, flushes waited for", "wall", "P wall", unit="P"),
        ),
        rounds=7,
    )


def single(directory: Path, size: Size) -> Contest:
    """One record a call, median time of a call, against one bare system call."""
    variants: list[Variant] = []
    targets: list[Target] = []
    for value_size, label in ((100, "100 B"), (1024, "1 KiB")):
        value = bytes(value_size)
        yardstick = pwrite_value(directory, value, size.calls)
        variants.append(Variant(f"W1 {label}", yardstick.run, "wall"))

        def run(_: Stopwatch, value: bytes = value) -> float:
            now = time.perf_counter_ns
            times = []
            with fresh_log(directory) as log:
                append = log.append
                for _call in range(size.calls):
                    begin = now()
                    append(value)
                    times.append(now() - begin)
                assert size.calls == log.log_end_offset
            return statistics.median(times) / 1e9

        variants.append(Variant(f"append {label}", run, "wall"))
        targets.append(
            Target(
                f"single append p50, {label}",
                f"append {label}",
                f"W1 {label}",
                1.05,
                0.92,
                at_most=True,
                unit="W1",
                peer="1.4 us (Rust, Kafka's format)",
            )
        )
    return Contest("single", tuple(variants), tuple(targets))


def beside_spinner(directory: Path, size: Size) -> Contest:
    """Single appends in a second beside a Python thread that never waits, against without it."""
    value = bytes(100)

    def appends(seconds: float) -> int:
        with fresh_log(directory) as log:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                for _call in range(10):
                    log.append(value)
            return log.log_end_offset

    def alone(_: Stopwatch) -> float:
        return size.spin_seconds / appends(size.spin_seconds)

    def beside(_: Stopwatch) -> float:
        done = threading.Event()

        def spin() -> None:
            while not done.is_set():
                pass

        thread = threading.Thread(target=spin)
        thread.start()
        try:
            return size.spin_seconds / appends(size.spin_seconds)
        finally:
            done.set()
            thread.join()

    return Contest(
        "beside a spinning thread",
        (Variant("alone", alone, "wall"), Variant("beside", beside, "wall")),
        (
            Target(
                "single appends beside a spinning thread",
                "beside",
                "alone",
                0.20,
                0.30,
                unit="alone",
            ),
        ),
        rounds=7,
    )


def durable(directory: Path, size: Size) -> Contest:
    """
    Batches of 1,000 records, each on the device when the call returns; and single records so.

    A batch before the watch makes the files, for both: what is measured is a log in use. Batches of
    the log and bare ones take turns, because a device is not as fast now as a moment ago.
    """
    values = [bytes(100)] * 1000
    batch = bytes(100 * len(values))

    @contextlib.contextmanager
    def pieces() -> Iterator[tuple[Piece, Piece]]:
        def write(number: int) -> None:
            os.pwrite(fd, batch, (1 + number) * len(batch))
            os.fdatasync(fd)

        def extend(_: int) -> None:
            log.extend(values, sync=True)

        with fresh_file(directory) as fd, fresh_log(directory) as log:
            write(-1)
            extend(-1)
            yield write, extend
            assert (1 + size.durable_batches) * len(values) == log.recovery_point

    turns = InTurns(pieces, size.durable_batches)

    def threads(thread_count: int) -> Callable[[Stopwatch], None]:
        def run_threads(watch: Stopwatch) -> None:
            def work() -> None:
                for _record in range(size.durable_batches):
                    log.append(b"value", sync=True)

            with fresh_log(directory) as log:
                log.append(b"value", sync=True)
                workers = [threading.Thread(target=work) for _ in range(thread_count)]
                with watch.running():
                    for worker in workers:
                        worker.start()
                    for worker in workers:
                        worker.join()
                assert 1 + thread_count * size.durable_batches == log.recovery_point

        return run_threads

    return Contest(
        "durable",
        (
            Variant("pwrite + fdatasync", turns.seconds_of(0), "wall", size.durable_batches),
            Variant("extend", turns.seconds_of(1), "wall", size.durable_batches),
            Variant("1 thread", threads(1), "wall", size.durable_batches),
            Variant("8 threads", threads(8), "wall", 8 * size.durable_batches),
        ),
        (
            Target(
                "durable batches of 1,000",
                "extend",
                "pwrite + fdatasync",
                0.9,
                1.0,
                unit="raw",
                peer="0.71 raw",
            ),
            Target(
                "durable single records by 8 threads that share flushes",
                "8 threads",
                "1 thread",
                unit="of 1 thread",
            ),
        ),
        rounds=19,
    )
