"""What ``copy`` and ``diff`` have in common: a path is one partition, or a store."""

from __future__ import annotations

import argparse
from pathlib import Path

from logstore.checkpoint import topic_partition_of
from logstore.cli import record_arguments
from logstore.log_directory import META_PROPERTIES


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
