"""Contests of spreading: many records to the partitions of their keys, against one log."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import logstore
from benchmarks.harness import Contest, Stopwatch, Target, Variant
from benchmarks.material import Values
from benchmarks.sizes import Size
from logstore.partitioner import partitions_for_keys

PARTITIONS = 4
KEY_BYTES = 8
KEYS_MAX = 100_000


@contextmanager
def fresh_topic(directory: Path) -> Iterator[logstore.Topic]:
    """A topic of some partitions in a store of its own, removed afterwards."""
    path = tempfile.mkdtemp(dir=directory)
    try:
        with logstore.open_store(path) as store:
            yield store.create_topic("orders", partitions=PARTITIONS)
    finally:
        shutil.rmtree(path)


def spreading(directory: Path, size: Size) -> Contest:
    """Lists of keys and values of 100 B to a topic, and to one partition; a column of keys."""
    values = Values.of(100, size.value_bytes)
    items = values.as_list()
    numbers = np.random.default_rng(3).integers(0, min(KEYS_MAX, values.count), values.count)
    keys = [b"%08d" % number for number in numbers.tolist()]
    column = b"".join(keys)
    offsets = np.arange(0, len(column) + 1, KEY_BYTES, dtype=np.int64)

    def appending(name: str, append: Callable[[logstore.Topic], object]) -> Variant:
        def run(watch: Stopwatch) -> None:
            with fresh_topic(directory) as topic:
                for log in topic.logs():
                    log.append(b"the files are there", key=b"")
                with watch.running():
                    append(topic)
                assert values.count + PARTITIONS == sum(log.log_end_offset for log in topic.logs())

        return Variant(name, run, "cpu", values.total_bytes)

    def hashing(watch: Stopwatch) -> None:
        with watch.running():
            partitions = partitions_for_keys(column, offsets, PARTITIONS)
        assert PARTITIONS > partitions.max() >= partitions.min() >= 0

    return Contest(
        "spreading",
        (
            appending("one log", lambda topic: topic[0].extend(items, keys=keys)),
            appending("topic", lambda topic: topic.extend(items, keys=keys)),
            appending("one log, no keys", lambda topic: topic[0].extend(items)),
            appending("topic, no keys", lambda topic: topic.extend(items)),
            Variant("hash", hashing, "cpu", values.total_bytes),
        ),
        (
            Target(
                "extend of a topic with keys, 4 partitions",
                "topic",
                "one log",
                0.35,
                0.5,
                unit="of one log",
            ),
            Target(
                "extend of a topic without keys",
                "topic, no keys",
                "one log, no keys",
                unit="of one log",
            ),
            Target("partitions of a column of keys", "hash", "one log", unit="of one log"),
        ),
    )
