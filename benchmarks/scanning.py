"""Contests of scanning: a log's columns as Arrow data, against a copy of the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import logstore
from benchmarks.harness import Contest, Stopwatch, Target, Variant
from benchmarks.material import Values, written_log
from benchmarks.sizes import Size
from benchmarks.yardsticks import copy_mapped

COLUMNS = ("offset", "timestamp", "value")


def scan(directory: Path, size: Size, *, value_size: int) -> Contest:
    """
    Every record of a sealed segment, batch by batch, each dropped when it has been looked at.

    The same bytes in the active segment, which are read and not mapped, are reported beside it.
    """
    values = Values.of(value_size, size.read_bytes)
    sealed = logstore.open(written_log(directory / "scan-0", values))
    sealed.roll()
    active = logstore.open(written_log(directory / "live-0", values))
    path = min((directory / "scan-0").glob("*.log"))

    def scanned(log: logstore.Log, **options: Any) -> Callable[[Stopwatch], None]:
        def run(watch: Stopwatch) -> None:
            rows = 0
            with watch.running():
                for batch in log.scan(columns=COLUMNS, **options).to_arrow():
                    rows += batch.num_rows
            assert values.count == rows

        return run

    amount = path.stat().st_size
    variants = (
        copy_mapped(path),
        Variant("scan", scanned(sealed, verify_crc=False), "cpu", amount),
        Variant("scan, crc", scanned(sealed), "cpu", amount),
        Variant("views", scanned(sealed, views=True, verify_crc=False), "cpu", amount),
        Variant("views, crc", scanned(sealed, views=True), "cpu", amount),
        Variant("live", scanned(active, verify_crc=False), "cpu", amount),
        Variant("live, crc", scanned(active), "cpu", amount),
    )

    def close() -> None:
        sealed.close()
        active.close()

    return Contest(f"scan {value_size} B", variants, SCAN_TARGETS[value_size], close=close)


def _target(size: str, variant: str, floor: float | None, ambition: float | None) -> Target:
    name, _, crc = variant.partition(", ")
    what = {
        "scan": "scan to Arrow binary",
        "views": "scan to views",
        "live": "scan, active segment",
    }
    path = f"{what[name]}, {size}, {crc or 'no crc'}"
    return Target(path, variant, "M", floor, ambition, unit="M")


SCAN_TARGETS = {
    100: (
        _target("100 B", "scan", 0.65, 0.85),
        _target("100 B", "scan, crc", 0.48, 0.65),
        _target("100 B", "views", 0.95, 1.2),
        _target("100 B", "views, crc", 0.60, 0.85),
        _target("100 B", "live", None, None),
        _target("100 B", "live, crc", None, None),
    ),
    1024: (
        _target("1 KiB", "scan", None, None),
        _target("1 KiB", "scan, crc", None, None),
        _target("1 KiB", "views", None, None),
        _target("1 KiB", "views, crc", 1.2, 1.5),
        _target("1 KiB", "live", None, None),
        _target("1 KiB", "live, crc", None, None),
    ),
}
