"""
Two logs, record by record: what is the same, what differs, and where.

Records are told apart by their offset; of the same offset the timestamp, its type, key, value and
headers are compared. Batches, codecs and leader epochs are not: a log that was compressed anew is
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from logstore.readable_log import Isolation, Start, start_offset, stop_offset
from logstore.record import Record

if TYPE_CHECKING:
    from logstore.log import Log

Kind: TypeAlias = Literal["different", "only in a", "only in b"]

# How often a caller is told how far it is.
ADVANCE_OFFSETS: Final = 1 << 14

FIELDS: Final = ("timestamp", "timestamp_type", "key", "value", "headers")


@dataclass(slots=True)
class Difference:
    """
    Records that follow each other and differ in the same way.

    Attributes:
        kind: ``different``, ``only in a``, ``only in b``.
        fields: What differs, of ``different``.
        first: The first offset.
        last: The last one, inclusive; what lies between and is in neither log does not count.
        count: How many records.
        a: The first of them in ``a``.
        b: The first of them in ``b``.
    """

    kind: Kind
    fields: tuple[str, ...]
    first: int
    last: int
    count: int
    a: Record | None
    b: Record | None


@dataclass(slots=True)
class LogComparison:
    """
    How two logs compare.

    Attributes:
        same: How many records are the same.
        counts: How many differ, by kind.
        differences: The first ones, as ranges.
        omitted: How many ranges more there are.
    """

    same: int = 0
    counts: dict[Kind, int] = field(
        default_factory=lambda: {"different": 0, "only in a": 0, "only in b": 0}
    )
    differences: list[Difference] = field(default_factory=list)
    omitted: int = 0
    _run: Difference | None = None  # The range that the next record may belong to.

    @property
    def is_same(self) -> bool:
        """Whether no record differs."""
        return not any(self.counts.values())

    def _note(
        self,
        kind: Kind,
        fields: tuple[str, ...],
        one: Record | None,
        other: Record | None,
        differences_max: int,
    ) -> None:
        record = other if one is None else one
        assert record is not None
        self.counts[kind] += 1
        run = self._run
        if run is not None and (run.kind, run.fields) == (kind, fields):
            run.last = record.offset
            run.count += 1
            return
        run = Difference(kind, fields, record.offset, record.offset, 1, one, other)
        self._run = run
        if len(self.differences) < differences_max:
            self.differences.append(run)
        else:
            self.omitted += 1


def compare_logs(
    a: Log,
    b: Log,
    start: Start = "earliest",
    stop: int | datetime | None = None,
    *,
    isolation: Isolation = "read_committed",
    differences_max: int = 100,
    advance: Callable[[int], None] | None = None,
) -> LogComparison:
    """
    Compare the records of two logs that ``isolation`` shows.

    Args:
        a: One log.
        b: The other one.
        start: Where to begin; an offset that one of them does not have yet, or any more, is fine.
        stop: Where to end, exclusive; None: at the end of each.
        isolation: What is compared of transactions.
        differences_max: How many ranges are kept; the rest is counted.
        advance: Told how many offsets more are compared.

    Cost: reads and decodes both.

    Raises:
        CorruptRecordError: One is damaged.
    """
    comparison = LogComparison()
    ours, theirs = _read(a, start, stop, isolation), _read(b, start, stop, isolation)
    one, other = next(ours, None), next(theirs, None)
    reported = max(a.log_start_offset, b.log_start_offset)
    while one is not None or other is not None:
        if other is None or (one is not None and one.offset < other.offset):
            assert one is not None
            offset = one.offset
            comparison._note("only in a", (), one, None, differences_max)
            one = next(ours, None)
        elif one is None or other.offset < one.offset:
            offset = other.offset
            comparison._note("only in b", (), None, other, differences_max)
            other = next(theirs, None)
        else:
            offset = one.offset
            if fields := _different_fields(one, other):
                comparison._note("different", fields, one, other, differences_max)
            else:
                comparison.same += 1
                comparison._run = None
            one, other = next(ours, None), next(theirs, None)
        if advance is not None and offset - reported >= ADVANCE_OFFSETS:
            advance(offset - reported)
            reported = offset
    return comparison


def _read(
    log: Log, start: Start, stop: int | datetime | None, isolation: Isolation
) -> Iterator[Record]:
    """Yield the records of the part of a range that a log has."""
    if isinstance(start, int):
        start = min(max(start, log.log_start_offset), log.log_end_offset)
    first = start_offset(log, start, isolation)
    return iter(log.read(first, stop_offset(log, stop, isolation), isolation=isolation))


def _different_fields(one: Record, other: Record) -> tuple[str, ...]:
    if (
        one.value == other.value
        and one.key == other.key
        and one.timestamp == other.timestamp
        and one.headers == other.headers
        and one.timestamp_type == other.timestamp_type
    ):
        return ()
    return tuple(name for name in FIELDS if getattr(one, name) != getattr(other, name))
