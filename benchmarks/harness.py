"""
Rounds, ratios and verdicts: how a speed is measured here.

A *contest* is a set of variants that do the same work. Each round runs every variant once, in
random order, and the yardstick is one of them: a target is the median over the rounds of
(variant / yardstick) *within* a round, so that the slow drift of a shared machine cancels out.
Single-threaded variants are timed in CPU time, all others in wall time. A variant checks its own
result outside the clock: a fast wrong answer is not a result.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

Clock: TypeAlias = Literal["cpu", "wall"]
Piece: TypeAlias = Callable[[int], object]
NOW: dict[Clock, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}

# A round whose yardstick is this far below the median met something else: it is thrown away.
DISTURBED = 0.6


class Stopwatch:
    """Seconds between :meth:`running` blocks' begin and end, summed up."""

    def __init__(self, clock: Clock) -> None:
        self._now = NOW[clock]
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of the block."""
        begin = self._now()
        try:
            yield
        finally:
            self.seconds += self._now() - begin


@dataclass(frozen=True)
class Variant:
    """
    One way to do the work of a contest.

    Attributes:
        name: Unique within the contest.
        run: Does the work once; its argument is the watch to run around what counts. A number that
            it returns replaces the time: a median latency, or megabytes.
        clock: CPU time for one thread, wall time where anything waits.
        amount: Bytes, records or calls done by one run; rates are ``amount / seconds``.
    """

    name: str
    run: Callable[[Stopwatch], float | None]
    clock: Clock = "cpu"
    amount: float = 1.0


class InTurns:
    """
    Two ways to do a work of many pieces, a piece of one and a piece of the other in turn.

    Where a piece waits for a device, whose pace changes from one moment to the next, runs of one
    way after the other compare moments. Both seconds come of one run, which is made by the variant
    that is asked first in a round.

    Args:
        pieces: A context: it prepares the work and yields two functions, each of which does one
            piece, given its number.
        count: Pieces of each way in one run.
    """

    def __init__(
        self,
        pieces: Callable[[], AbstractContextManager[tuple[Piece, Piece]]],
        count: int,
    ) -> None:
        self._pieces = pieces
        self._count = count
        self._unasked: dict[int, float] = {}

    def seconds_of(self, way: int) -> Callable[[Stopwatch], float]:
        """Return what a variant runs: the seconds of all pieces of the first (0) or second (1)."""

        def run(_: Stopwatch) -> float:
            if way not in self._unasked:
                self._unasked = dict(enumerate(self._run()))
            return self._unasked.pop(way)

        return run

    def _run(self) -> tuple[float, float]:
        watches = Stopwatch("wall"), Stopwatch("wall")
        with self._pieces() as pieces:
            for number in range(self._count):
                for way in (0, 1) if number % 2 == 0 else (1, 0):
                    with watches[way].running():
                        pieces[way](number)
        return watches[0].seconds, watches[1].seconds


@dataclass(frozen=True)
class Target:
    """
    One line of the table: what a variant must reach of its yardstick.

    Attributes:
        path: The line's name in the table of targets.
        variant: The variant judged.
        yardstick: The variant that it is compared with; None judges time by amount as it is.
        floor: The least that is accepted; None if the line only reports.
        ambition: What is hoped for.
        at_most: True if less is better (times, sizes), False if more is (rates).
        unit: What a ratio of one is called: P, W1, M, S, L.
        peer: The best other engine, as PERFORMANCE figures give it.
    """

    path: str
    variant: str
    yardstick: str | None
    floor: float | None = None
    ambition: float | None = None
    at_most: bool = False
    unit: str = ""
    peer: str = "-"

    def holds(self, reached: float, limit: float | None) -> bool:
        """Return whether ``reached`` is within ``limit``; no limit is no promise."""
        if limit is None:
            return False
        return reached <= limit if self.at_most else reached >= limit


@dataclass(frozen=True)
class Contest:
    """Variants measured in the same rounds, and the targets that their ratios are held against."""

    name: str
    variants: tuple[Variant, ...]
    targets: tuple[Target, ...]
    rounds: int = 9
    warm_ups: int = 1
    close: Callable[[], None] = lambda: None


@dataclass
class Outcome:
    """The figures of one contest: costs by variant (seconds, as a rule), one for each round."""

    contest: Contest
    seconds: dict[str, list[float]]
    rounds_thrown_away: int = 0

    def rates(self, variant: str) -> list[float]:
        """Return the amount per second of each round."""
        amount = next(v.amount for v in self.contest.variants if v.name == variant)
        return [amount / seconds for seconds in self.seconds[variant]]

    def ratios(self, target: Target) -> list[float]:
        """Return variant against yardstick for each round: rates, or times if less is better."""
        of = self.rates(target.variant)
        if target.yardstick is None:
            return [1 / rate if target.at_most else rate for rate in of]
        to = self.rates(target.yardstick)
        if target.at_most:
            return [b / a for a, b in zip(of, to, strict=True)]
        return [a / b for a, b in zip(of, to, strict=True)]


@dataclass(frozen=True)
class Spread:
    """Median, tenth and ninetieth percentile."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Return the spread of at least one value."""
        assert values
        ordered = sorted(values)
        return cls(statistics.median(ordered), quantile(ordered, 0.1), quantile(ordered, 0.9))


def quantile(ordered: list[float], share: float) -> float:
    """Return a quantile of ascending values, between neighbours by their distance."""
    assert ordered
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def run_contest(contest: Contest, *, rounds: int | None = None, seed: int = 0) -> Outcome:
    """Run the warm-up rounds and then those that count; close the contest."""
    shuffled = random.Random(seed)
    outcome = Outcome(contest, {variant.name: [] for variant in contest.variants})
    assert len(outcome.seconds) == len(contest.variants)
    try:
        for number in range(contest.warm_ups + (rounds or contest.rounds)):
            order = list(contest.variants)
            shuffled.shuffle(order)
            for variant in order:
                watch = Stopwatch(variant.clock)
                figure = variant.run(watch)
                seconds = watch.seconds if figure is None else figure
                assert seconds > 0, f"{variant.name} ran nothing inside the watch"
                if number >= contest.warm_ups:
                    outcome.seconds[variant.name].append(seconds)
    finally:
        contest.close()
    throw_away_disturbed_rounds(outcome)
    return outcome


def throw_away_disturbed_rounds(outcome: Outcome) -> None:
    """Drop the rounds in which a yardstick fell far below its own median."""
    disturbed: set[int] = set()
    for yardstick in {t.yardstick for t in outcome.contest.targets if t.yardstick is not None}:
        rates = outcome.rates(yardstick)
        least = DISTURBED * statistics.median(rates)
        disturbed |= {number for number, rate in enumerate(rates) if rate < least}
    for seconds in outcome.seconds.values():
        seconds[:] = [value for number, value in enumerate(seconds) if number not in disturbed]
    outcome.rounds_thrown_away = len(disturbed)


@dataclass(frozen=True)
class Line:
    """One line of the table: a target, and what was reached of it."""

    target: Target
    reached: Spread
    cost: Spread
    clock: Clock
    rounds: int
    rounds_thrown_away: int

    @property
    def verdict(self) -> Literal["ambition", "floor", "below floor", "-"]:
        """The better of the two limits that the median is within."""
        if self.target.floor is None:
            return "-"
        if self.target.holds(self.reached.median, self.target.ambition):
            return "ambition"
        return (
            "floor" if self.target.holds(self.reached.median, self.target.floor) else "below floor"
        )

    @property
    def cells(self) -> tuple[str, ...]:
        """The line as text."""
        sign = "<=" if self.target.at_most else ">="
        limits = [
            "-" if value is None else f"{sign} {value:.3g} {self.target.unit}".rstrip()
            for value in (self.target.floor, self.target.ambition)
        ]
        reached = f"{self.reached.median:.3g} [{self.reached.p10:.3g}..{self.reached.p90:.3g}]"
        return (self.target.path, *limits, self.target.peer, reached, self.clock, self.verdict)


HEADINGS = ("path", "floor", "ambition", "best peer", "reached [p10..p90]", "clock", "holds")


def judge(outcome: Outcome) -> list[Line]:
    """Return one line for each target of the contest."""
    clocks = {variant.name: variant.clock for variant in outcome.contest.variants}
    return [
        Line(
            target,
            Spread.of(outcome.ratios(target)),
            Spread.of(outcome.seconds[target.variant]),
            clocks[target.variant],
            len(outcome.seconds[target.variant]),
            outcome.rounds_thrown_away,
        )
        for target in outcome.contest.targets
    ]


def table(lines: list[Line]) -> str:
    """Return the lines as a Markdown table."""
    rows = [HEADINGS, *(line.cells for line in lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def text(row: tuple[str, ...]) -> str:
        return "| " + " | ".join(f"{cell:{w}}" for cell, w in zip(row, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([text(rows[0]), rule, *map(text, rows[1:])])


@contextmanager
def fresh_file(directory: Path) -> Iterator[int]:
    """Yield a descriptor of a new file without a name: its pages go when it is closed."""
    path = directory / f"yardstick-{os.getpid()}-{time.monotonic_ns()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        path.unlink()
        yield fd
    finally:
        os.close(fd)
