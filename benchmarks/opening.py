"""Contests of opening: after a clean end, and after an unclean one with much or little to find."""

from __future__ import annotations

from pathlib import Path

import logstore
from benchmarks.harness import Contest, Stopwatch, Target, Variant
from benchmarks.material import Values, written_log
from benchmarks.sizes import Size
from benchmarks.yardsticks import sum_mapped

# What a log that stands alone keeps beside its segments: without it, its end was unclean.
STATE = (".kafka_cleanshutdown", "recovery-point-offset-checkpoint")


def recovery(directory: Path, size: Size) -> Contest:
    """The same bytes in one segment and in many, all to be checked again."""
    total = size.segment_count * size.segment_bytes
    values = Values.of(100, int(total * 0.9))
    one = written_log(directory / "one-0", values, segment_bytes=2 * total)
    many = written_log(directory / "many-0", values, segment_bytes=size.segment_bytes)
    (segment,) = one.glob("*.log")
    log_bytes = segment.stat().st_size

    def unclean(path: Path) -> None:
        for name in STATE:
            (path / name).unlink()

    def opening(name: str, path: Path) -> Variant:
        def run(watch: Stopwatch) -> None:
            unclean(path)
            with watch.running():
                log = logstore.open(path)
            assert values.count == log.log_end_offset
            log.close()

        return Variant(name, run, "cpu", log_bytes)

    return Contest(
        "recovery",
        (sum_mapped(segment), opening("one segment", one), opening("many segments", many)),
        (
            Target(
                "recovery: CRC and index rebuild",
                "one segment",
                "S",
                0.40,
                0.47,
                unit="S",
                peer="0.11-0.18 S",
            ),
            Target(
                f"unclean open, {size.segment_count:,} segments against one",
                "many segments",
                "one segment",
                1.5,
                1.2,
                at_most=True,
                unit="one",
                peer="40x",
            ),
        ),
        rounds=7,
    )


def clean_open(directory: Path, size: Size) -> Contest:
    """Many segments that were closed cleanly: nothing is scanned."""
    values = Values.of(100, int(size.segment_count * size.segment_bytes * 0.9))
    path = written_log(directory / "clean-0", values, segment_bytes=size.segment_bytes)

    def run(watch: Stopwatch) -> float:
        with watch.running():
            log = logstore.open(path)
        assert values.count == log.log_end_offset
        log.close()
        return watch.seconds * 1e3

    return Contest(
        "clean open",
        (Variant("open", run, "wall"),),
        (
            Target(
                f"clean open, {size.segment_count:,} segments",
                "open",
                None,
                50.0,
                25.0,
                at_most=True,
                unit="ms",
            ),
        ),
    )
