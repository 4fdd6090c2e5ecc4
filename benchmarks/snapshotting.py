"""A contest of snapshots: a store whose segments are shared, against a copy of its files."""

from __future__ import annotations

import shutil
from pathlib import Path

import logstore
from benchmarks.harness import Contest, Stopwatch, Target, Variant
from benchmarks.material import Values
from benchmarks.sizes import Size


def snapshots(directory: Path, size: Size) -> Contest:
    """One partition of many segments; the copy is what another tool does, and is not durable."""
    total = size.segment_count * size.segment_bytes
    values = Values.of(1024, int(total * 0.9))
    config = {"segment.bytes": size.segment_bytes}
    with logstore.open_store(directory / "store", config=config) as store:
        store.create_topic("orders")
        store["orders", 0].extend_arrow(values.plain, value="value")

    def snapshot(watch: Stopwatch) -> None:
        dest = directory / "snapshot"
        with logstore.open_store(directory / "store", config=config) as store:
            with watch.running():
                taken = store.snapshot(dest)
            assert {("orders", 0): values.count} == taken.end_offsets
            assert taken.linked_bytes > taken.copied_bytes
        shutil.rmtree(dest)

    def copy(watch: Stopwatch) -> None:
        dest = directory / "copy"
        with watch.running():
            shutil.copytree(directory / "store", dest)
        assert len(list((dest / "orders-0").glob("*.log"))) >= size.segment_count * 0.9
        shutil.rmtree(dest)

    return Contest(
        "snapshot",
        (Variant("copy", copy, "wall", total), Variant("snapshot", snapshot, "wall", total)),
        (
            Target(
                f"durable snapshot of {size.segment_count:,} segments, against a copy of the files",
                "snapshot",
                "copy",
                0.30,
                0.10,
                at_most=True,
                unit="copy",
            ),
        ),
        rounds=5,
    )
