"""Contests of opening: after a clean end, and after an unclean one with much or little to find."""

from __future__ import annotations

import gc
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import logstore
from benchmarks.harness import Contest, Stopwatch, Target, Variant
from benchmarks.material import Values, written_log
from benchmarks.sizes import Size
from benchmarks.yardsticks import sum_mapped
from logstore.clock import ManualClock
from logstore.config import LogConfig
from logstore.log import Log
from logstore.scheduler import ManualScheduler

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


@dataclass(frozen=True)
class Partitions:
    """
    Partitions of the same contents that were closed cleanly.

    Attributes:
        paths: Their directories.
        segment_count: Segments of each, with a record in each.
        indexes: Contents of the active segment's indexes, by name.
    """

    paths: list[Path]
    segment_count: int
    indexes: dict[str, bytes]

    @classmethod
    def written(cls, directory: Path, partition_count: int, segment_count: int) -> Partitions:
        """Write one, and copy it."""
        paths = [directory / f"of-{segment_count}-{number}" for number in range(partition_count)]
        with logstore.open(paths[0], "x") as log:
            for number in range(segment_count):
                if number > 0:
                    log.roll()
                log.append(b"value")
            active = log.active_segment
            names = [Path(index.path).name for index in (active.offset_index, active.time_index)]
        for path in paths[1:]:
            shutil.copytree(paths[0], path)
        indexes = {name: (paths[0] / name).read_bytes() for name in names}
        return cls(paths, segment_count, indexes)

    def open(self, watch: Stopwatch, config: LogConfig) -> float:
        """Open each as a store does, and return the microseconds that one took."""
        clock = ManualClock()
        scheduler = ManualScheduler(clock)
        # Logs of an earlier run are garbage in cycles: to free them, and to close their files, is
        # no part of this opening, and would be, above all where many are opened.
        gc.collect()
        with watch.running():
            logs = [
                Log.create(
                    path,
                    config,
                    recovery_point=self.segment_count,
                    clock=clock,
                    scheduler=scheduler,
                )
                for path in self.paths
            ]
        for path, log in zip(self.paths, logs, strict=True):
            assert self.segment_count == log.log_end_offset
            log.abandon()
            for name, data in self.indexes.items():  # As after a clean end, which is slower.
                (path / name).write_bytes(data)
        return watch.seconds * 1e6 / len(self.paths)


def open_partitions(directory: Path, size: Size) -> Contest:
    """Many partitions that were closed cleanly, opened one by one in one thread."""
    config = LogConfig.of(None)
    short, more = 2, 20
    many = Partitions.written(directory, size.segment_count, short)
    few = replace(many, paths=many.paths[: max(2, size.segment_count // 10)])
    long = Partitions.written(directory, len(few.paths), short + more)

    return Contest(
        "open partitions",
        (
            Variant("few", lambda watch: few.open(watch, config)),
            Variant("many", lambda watch: many.open(watch, config)),
            Variant("long", lambda watch: long.open(watch, config)),
        ),
        (
            Target("open, a partition of 2 segments", "many", None, at_most=True, unit="us"),
            Target(
                f"open, one of {len(many.paths):,} partitions against one of {len(few.paths):,}",
                "many",
                "few",
                1.2,
                1.05,
                at_most=True,
                unit="few",
            ),
            Target(
                f"open, a partition of {short + more} segments against one of {short}",
                "long",
                "few",
                at_most=True,
                unit="few",
            ),
        ),
        rounds=7,
    )
