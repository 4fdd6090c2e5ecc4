"""What the commands that make a store out of another one have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from logstore.checkpoint import TopicPartition
from logstore.cli.progress import progress


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


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print one JSON object."""
    print(json.dumps(fields, separators=(",", ":")))


def how_it_came(linked_bytes: int, copied_bytes: int, because: str | None) -> str:
    """Return what was linked and copied, in words."""
    text = f"{linked_bytes:,} bytes linked, {copied_bytes:,} copied"
    return text if because is None else f"{text} (files could not be linked: {because})"
