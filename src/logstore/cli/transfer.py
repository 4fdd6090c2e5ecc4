"""What the commands that make a store out of another one have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from logstore.checkpoint import TopicPartition
from logstore.cli.counted import counted
from logstore.cli.progress import progress
from logstore.restoring import Restored
from logstore.snapshot import Snapshot


def add_dest(parser: argparse.ArgumentParser) -> None:
    """Add the argument that says where the store goes."""
    parser.add_argument("dest", type=Path, help="where it goes; nothing is there, or nothing in it")


@contextmanager
def transfer_progress(title: str, *directories: Path) -> Iterator[Callable[[int, int], None]]:
    """Show a bar while the block runs; it is told how many bytes are in place, of how many."""
    total = sum(
        file.stat().st_size for directory in directories for file in directory.glob("*/*.log")
    )
    shown = 0
    with progress(title, total) as bar:

        def show(done: int, _total: int) -> None:
            nonlocal shown
            bar.advance(done - shown)
            shown = done

        yield show


def offsets_by_name(offsets: Mapping[TopicPartition, int]) -> dict[str, int]:
    """Return offsets by ``<topic>-<partition>``, in order."""
    return {str(place): offset for place, offset in sorted(offsets.items())}


def summary(made: Snapshot | Restored) -> str:
    """Return what was made, and how its files came to be there, in words."""
    partitions = counted(len(made.end_offsets), "partition")
    how = f"{made.linked_bytes:,} bytes linked, {made.copied_bytes:,} copied"
    text = f"{made.path}: {partitions}; {how}"
    because = made.copied_because
    return text if because is None else f"{text} (files could not be linked: {because})"
