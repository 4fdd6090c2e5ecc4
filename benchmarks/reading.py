"""Contests of reading: iteration, lookup in an index, one record by its offset, two threads."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

import logstore
from benchmarks.harness import Contest, Stopwatch, Target, Variant
from benchmarks.material import Values, written_log
from benchmarks.sizes import Size
from benchmarks.yardsticks import MIB, iterate_list, page_aligned
from logstore._native import crc32c
from logstore.index import OffsetIndex

ENTRY_COUNT = 10_000
OFFSET_STEP = 37
THREADS = 2


def iteration(directory: Path, size: Size) -> Contest:
    """Every record as an object, or its value alone, against a loop over a list of the same."""
    values = Values.of(100, size.read_bytes)
    log = logstore.open(written_log(directory / "read-0", values))
    last = values.plain["value"][-1].as_py()

    def records(watch: Stopwatch) -> None:
        value = None
        with watch.running():
            for record in log.read():
                value = record.value
        assert last == value

    def bare_values(watch: Stopwatch) -> None:
        value = None
        with watch.running():
            for item in log.read_values():
                value = item
        assert last == value

    return Contest(
        "iteration",
        (
            iterate_list("L of Records", list(log.read())),
            iterate_list("L of values", list(log.read_values())),
            Variant("records", records, "cpu", values.count),
            Variant("values", bare_values, "cpu", values.count),
        ),
        (
            Target(
                "iterate Records, 100 B", "records", "L of Records", 9, 6.5, at_most=True, unit="L"
            ),
            Target(
                "iterate values, 100 B", "values", "L of values", 4, 2.7, at_most=True, unit="L"
            ),
        ),
        close=log.close,
    )


def lookup(directory: Path, size: Size) -> Contest:
    """One lookup among 10,000 entries, against numpy's search of a native copy."""
    index = OffsetIndex(str(directory / f"{0:020d}.index"), 0, 8 * ENTRY_COUNT)
    for slot in range(ENTRY_COUNT):
        index.append(slot * OFFSET_STEP, slot)
    native = np.arange(0, ENTRY_COUNT * OFFSET_STEP, OFFSET_STEP, dtype=np.int32)
    draw = random.Random(3)
    wanted = [draw.randrange(ENTRY_COUNT * OFFSET_STEP) for _ in range(size.calls)]

    def with_numpy(watch: Stopwatch) -> None:
        search = native.searchsorted
        keys = [np.int32(offset) for offset in wanted]
        with watch.running():
            for key in keys:
                slot = search(key, side="right")
        assert wanted[-1] // OFFSET_STEP == slot - 1

    def with_index(watch: Stopwatch) -> None:
        search = index.lookup
        with watch.running():
            for offset in wanted:
                found = search(offset)
        assert wanted[-1] // OFFSET_STEP == found.position

    def with_core(watch: Stopwatch) -> None:
        search = index.make_lookup()
        with watch.running():
            for offset in wanted:
                slot = search(offset)
        assert wanted[-1] // OFFSET_STEP == slot

    return Contest(
        "lookup",
        (
            Variant("searchsorted", with_numpy, "cpu", size.calls),
            Variant("core", with_core, "cpu", size.calls),
            Variant("OffsetIndex.lookup", with_index, "cpu", size.calls),
        ),
        (
            Target(
                "lookup, 10 k entries, C function",
                "core",
                "searchsorted",
                0.15,
                0.07,
                at_most=True,
                unit="searchsorted",
            ),
        ),
        close=index.close,
    )


def random_get(directory: Path, size: Size) -> Contest:
    """
    One record by its offset, 16 KiB batches, less what a Record object costs.

    That cost is what iteration takes for a record: it makes the same object, in the same kind of
    loop. Sealed segments are mapped, the active one is read: each has a log of its own. A handle
    that only reads looks for changes at each get. Of compressed batches the neighbours are asked
    for, one after the other.
    """
    values = Values.of(100, size.read_bytes)
    log = logstore.open(written_log(directory / "get-0", values, batch_bytes=16 << 10))
    sealed = logstore.open(written_log(directory / "get-1", values, batch_bytes=16 << 10))
    sealed.roll()
    viewed = logstore.open(directory / "get-1", "r")
    packed = logstore.open(directory / "get-2", config={"batch.bytes": 16 << 10})
    packed.extend(values.as_list()[: size.calls], compression="lz4")
    draw = random.Random(5)
    wanted = [draw.randrange(values.count) for _ in range(size.calls)]
    iterated = min(values.count, 20_000)

    def get_from(log: logstore.Log, offsets: Sequence[int], watch: Stopwatch) -> float:
        with watch.running():
            for offset in offsets:
                record = log[offset]
        assert offsets[-1] == record.offset

        making = Stopwatch("cpu")
        with making.running():
            for _record in log.read(limit=iterated):
                pass
        return (watch.seconds / len(offsets) - making.seconds / iterated) * 1e6

    def close() -> None:
        for each in (viewed, packed, sealed, log):
            each.close()

    return Contest(
        "random get",
        (
            Variant("sealed", partial(get_from, sealed, wanted)),
            Variant("active", partial(get_from, log, wanted)),
            Variant("viewed", partial(get_from, viewed, wanted)),
            Variant("packed", partial(get_from, packed, range(packed.log_end_offset))),
        ),
        (
            Target(
                "random get, 100 B, 16 KiB batches, less the object",
                "sealed",
                None,
                2.0,
                1.0,
                at_most=True,
                unit="us",
                peer="1.2 us (indexes each record)",
            ),
            Target(
                "the same in the active segment, which is read",
                "active",
                None,
                at_most=True,
                unit="us",
            ),
            Target(
                "the same through a handle that only reads", "viewed", None, at_most=True, unit="us"
            ),
            Target("neighbours in compressed batches", "packed", None, at_most=True, unit="us"),
        ),
        close=close,
    )


def threads(directory: Path, size: Size) -> Contest:
    """
    The same reads by two threads, one each, and by one thread after the other: how they scale.

    Two is the most that two cores give, and only if nobody else wants them. Scans and reads into
    memory drop the GIL; values are made under it, and so cannot scale.
    """
    values = Values.of(1024, size.read_bytes)
    log = logstore.open(written_log(directory / "threads-0", values))
    log.roll()

    def scan() -> None:
        rows = 0
        for batch in log.scan(columns=["offset", "value"]).to_arrow():
            rows += batch.num_rows
        assert values.count == rows

    def read_into() -> None:
        part = log.fetch(0, max_bytes=1 << 40)
        buffer = page_aligned(MIB)
        position = 0
        while position < part.size:
            position += part.read_into(buffer, position)

    def views() -> None:
        view = log.fetch(0, max_bytes=1 << 40).memoryview()
        assert crc32c(view) > 0  # It reads every byte.

    def iterate() -> None:
        assert values.count == sum(1 for _ in log.read_values())

    def by_threads(count: int, work: Callable[[], None], watch: Stopwatch) -> None:
        def share() -> None:
            for _ in range(THREADS // count):
                work()

        workers = [threading.Thread(target=share) for _ in range(count)]
        with watch.running():
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()

    works = {"scan": scan, "read_into": read_into, "memoryview": views, "values": iterate}
    amount = THREADS * values.count
    return Contest(
        "threads",
        tuple(
            Variant(f"{name}, {count}", partial(by_threads, count, work), "wall", amount)
            for name, work in works.items()
            for count in (1, THREADS)
        ),
        tuple(
            Target(f"{what}: two threads against one", f"{name}, 2", f"{name}, 1", unit="of one")
            for name, what in (
                ("scan", "scan to Arrow"),
                ("read_into", "fetch, read_into"),
                ("memoryview", "fetch, memoryview and CRC"),
                ("values", "values, one by one"),
            )
        ),
        close=log.close,
    )
