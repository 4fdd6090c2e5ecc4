"""
Producer ids: numbers that are given out once, from blocks that are reserved on disk first.

Each log directory holds the newest block, as JSON, in the form that Kafka once kept in ZooKeeper::

    {"version": 1, "broker": 1, "block_start": "1000000000002000", "block_end": "1000000000002999"}

Both ends are inclusive. A block is durable before its first id is given out. What is left of it is
lost when the process ends: the next one reserves the block behind it.

A broker that serves the directory before or after us has its ids from the controller, which counts
from 0 and does not look into logs. Of the same id and epoch it would take a batch with a sequence
number that it knows for a repetition, and acknowledge it without writing it. So ids begin here
where no controller gets to.

Source: Kafka ``ProducerIdManager``, ``ProducerIdsBlock``.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable
from typing import Final

from logstore.errors import CorruptCheckpointError, StorageError
from logstore.files import REAL_FILES, Files, Path

PRODUCER_ID_BLOCK_FILE: Final = "latest-producer-id-block"
BLOCK_SIZE: Final = 1000

# A controller that hands out a block of 1,000 each millisecond is there after 31 years. And below
# 2**53: up to there a number in JSON is exact everywhere.
FIRST_PRODUCER_ID: Final = 10**15

_VERSION: Final = 1
_INT64_MAX: Final = 2**63 - 1


class ProducerIdManager:
    """
    Gives out producer ids.

    Args:
        directories: Returns those that hold the file; each gets every block, the newest counts.
        first_free: Asked for the lowest id that nobody has used, if there is no file.
        broker: Who reserves, for whoever reads the file.
        files: The door to the file system.

    **Durability**: no id is given out twice, whatever happens to the process or the power.

    **Thread rule**: any thread may call anything.

    Source: Kafka ``ZkProducerIdManager``.
    """

    def __init__(
        self,
        directories: Callable[[], Iterable[Path]],
        *,
        first_free: Callable[[], int] = lambda: 0,
        broker: int = 1,
        files: Files = REAL_FILES,
    ) -> None:
        self._directories = directories
        self._first_free = first_free
        self._broker = broker
        self._files = files
        self._lock = threading.Lock()
        self._next = 0
        self._end = 0

    def generate(self) -> int:
        """
        Return an id that was never returned before.

        Raises:
            CorruptCheckpointError: The file is no block; no id is given out.
            StorageError: The next block cannot be reserved; no id is given out.
        """
        with self._lock:
            if self._next == self._end:
                self._reserve_block()
            producer_id = self._next
            self._next += 1
        return producer_id

    def _reserve_block(self) -> None:
        paths = [
            os.path.join(directory, PRODUCER_ID_BLOCK_FILE) for directory in self._directories()
        ]
        if not paths:
            raise StorageError("no directory is left that could keep producer ids")
        ends = [_read_block_end(path, self._files) for path in paths if self._files.exists(path)]
        if self._end or ends:
            start = max([self._end, *(end + 1 for end in ends)])
        else:
            start = -(-self._first_free() // BLOCK_SIZE) * BLOCK_SIZE
        start = max(start, FIRST_PRODUCER_ID)
        block = {
            "version": _VERSION,
            "broker": self._broker,
            "block_start": str(start),
            "block_end": str(start + BLOCK_SIZE - 1),
        }
        for path in paths:
            self._files.replace_file(path, json.dumps(block, separators=(",", ":")).encode())
        self._next = start
        self._end = start + BLOCK_SIZE


def _read_block_end(path: str, files: Files) -> int:
    try:
        block = json.loads(files.read_file(path))
        if block["version"] != _VERSION:
            raise _corrupt(path, f"version {block['version']!r} is unknown")
        end = int(block["block_end"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _corrupt(path, f"{type(error).__name__}: {error}") from None
    if not 0 <= end <= _INT64_MAX - BLOCK_SIZE:
        raise _corrupt(path, f"the block's end {end} is out of range")
    return end


def _corrupt(path: str, reason: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{path} is no block of producer ids: {reason}; write one whose end is above every"
        " producer id in use",
        path=path,
    )


def latest_block(
    directories: Iterable[Path], files: Files = REAL_FILES
) -> tuple[str, bytes] | None:
    """
    Return the name and the contents of the newest block's file, for a copy of a store.

    Raises:
        CorruptCheckpointError: A file is no block.
        StorageError: It cannot be read.
    """
    paths = [os.path.join(directory, PRODUCER_ID_BLOCK_FILE) for directory in directories]
    found = [path for path in paths if files.exists(path)]
    if not found:
        return None
    newest = max(found, key=lambda path: _read_block_end(path, files))
    return PRODUCER_ID_BLOCK_FILE, files.read_file(newest)
