"""What ``copy``, ``diff`` and ``info`` have in common: a path is one partition, or a store."""

from __future__ import annotations

import argparse
from pathlib import Path

from logstore.checkpoint import topic_partition_of
from logstore.cli import record_arguments
from logstore.cli.counted import counted
from logstore.log_directory import META_PROPERTIES
from logstore.topic_names import INTERNAL_TOPICS


def is_partition(path: Path) -> bool:
    """
    Return whether a directory is one partition, and not a store.

    Raises:
        FileNotFoundError: It is not there.
    """
    if not path.is_dir():
        message = f"there is no directory {path}; check the path"
        raise FileNotFoundError(message)
    if (path / META_PROPERTIES).exists():
        return False
    return any(path.glob("*.log")) or topic_partition_of(path.resolve().name) is not None


def is_internal(partition: str) -> bool:
    """Return whether a partition, such as ``__consumer_offsets-7``, is one of an internal topic."""
    name = topic_partition_of(partition)
    return name is not None and name.topic in INTERNAL_TOPICS


def print_left_out(count: int, what: str = "empty") -> None:
    """Say in one line how many partitions of internal topics have nothing that is worth one."""
    if count:
        print(f"{counted(count, 'partition')} of internal topics: {what}")


def add_range(parser: argparse.ArgumentParser) -> None:
    """Add ``--from``, ``--to``, ``--isolation``, ``--topic`` and ``--json``."""
    record_arguments.add_start(parser)
    record_arguments.add_stop(parser)
    record_arguments.add_isolation(parser)
    parser.add_argument(
        "--topic", action="append", metavar="NAME",
        help="of stores, only this topic; may be given several times",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object for each partition")
