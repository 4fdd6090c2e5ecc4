"""Transactions over partitions: how many are durable in a second."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import logstore
from benchmarks.harness import Contest, Stopwatch, Target, Variant, fresh_file
from benchmarks.sizes import Size

PARTITIONS = 2
RECORDS = 10
VALUE = bytes(100)
PRODUCERS = 8
# Of the records of one partition, of a step in __transaction_state, of a marker.
BATCH_BYTES, STEP_BYTES, MARKER_BYTES = 1200, 150, 78
CONFIG = {"transaction.state.log.num.partitions": PRODUCERS, "offsets.topic.num.partitions": 1}


@contextmanager
def fresh_store(directory: Path) -> Iterator[logstore.LogStore]:
    """A store with a topic of two partitions, removed afterwards."""
    path = tempfile.mkdtemp(dir=directory)
    try:
        with logstore.open_store(path, config=CONFIG) as store:
            store.create_topic("orders", partitions=PARTITIONS)
            yield store
    finally:
        shutil.rmtree(path)


def transact(store: logstore.LogStore, name: str, count: int) -> None:
    """Do some transactions of ten records in each partition."""
    for _ in range(count):
        with store.transaction(name) as transaction:
            for partition in range(PARTITIONS):
                transaction.extend(("orders", partition), [VALUE] * RECORDS)


def transactions(directory: Path, size: Size) -> Contest:
    """
    Twenty records in two partitions, all or nothing, durable when commit returns.

    The yardstick writes and flushes what has to be written and flushed, to bare files. A
    transaction before the watch makes the files, for all.
    """
    count = size.durable_batches

    def raw(watch: Stopwatch) -> None:
        with ExitStack() as stack:
            state, *partitions = [
                stack.enter_context(fresh_file(directory)) for _ in range(1 + PARTITIONS)
            ]
            ends = dict.fromkeys((state, *partitions), 0)

            def write(fd: int, size_bytes: int, *, sync: bool) -> None:
                os.pwrite(fd, bytes(size_bytes), ends[fd])
                ends[fd] += size_bytes
                if sync:
                    os.fdatasync(fd)

            def transaction() -> None:
                write(state, STEP_BYTES, sync=True)
                for size_bytes in (BATCH_BYTES, MARKER_BYTES):
                    for fd in partitions:
                        write(fd, size_bytes, sync=True)
                    write(state, STEP_BYTES, sync=size_bytes == BATCH_BYTES)

            transaction()
            with watch.running():
                for _ in range(count):
                    transaction()

    def producers(number: int) -> Callable[[Stopwatch], None]:
        def run(watch: Stopwatch) -> None:
            with fresh_store(directory) as store:
                for each in range(number):
                    transact(store, str(each), 1)
                workers = [
                    threading.Thread(target=transact, args=(store, str(each), count))
                    for each in range(number)
                ]
                with watch.running():
                    for worker in workers:
                        worker.start()
                    for worker in workers:
                        worker.join()
                seen = sum(1 for _ in store["orders", 1].read_values())
                assert seen == number * (1 + count) * RECORDS

        return run

    return Contest(
        "transactions",
        (
            Variant("bare files", raw, "wall", count),
            Variant("1 producer", producers(1), "wall", count),
            Variant(f"{PRODUCERS} producers", producers(PRODUCERS), "wall", PRODUCERS * count),
        ),
        (
            Target(
                "transactions of 20 records in 2 partitions",
                "1 producer",
                "bare files",
                unit="raw",
            ),
            Target(
                f"the same by {PRODUCERS} producers that share flushes",
                f"{PRODUCERS} producers",
                "1 producer",
                unit="of 1 producer",
            ),
        ),
        rounds=7,
    )
