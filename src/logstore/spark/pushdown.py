"""
Filters that make a batch query read less: bounds of topic, partition, offset and time.

Only behind the option ``filterPushdown``. Spark 4.1 to 4.3 keep what a filter has left of a scan on
the object that ``load()`` returned: a second scan of it, in the same plan or a later one, gets the
first one's rows, silently. With one scan for each ``load()`` the results are right.

Every filter is given back, so that Spark applies it too: a bound here only has to be no narrower.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from logstore.given_records import milliseconds_of
from logstore.spark.batch_reader import LogStoreBatchReader
from logstore.spark.planning import OffsetRange
from logstore.spark.source_logs import SourceLogs

logger = logging.getLogger("logstore.spark")

TESTS: Final[dict[Any, Callable[[Any, Any], bool]]] = {
    EqualTo: lambda found, value: bool(found == value),
    In: lambda found, values: found in values,
    StringStartsWith: lambda found, value: str(found).startswith(value),
    GreaterThan: lambda found, value: bool(found > value),
    GreaterThanOrEqual: lambda found, value: bool(found >= value),
    LessThan: lambda found, value: bool(found < value),
    LessThanOrEqual: lambda found, value: bool(found <= value),
}


class FilteringBatchReader(LogStoreBatchReader):
    """Reads a range of offsets, of which filters leave a part."""

    filters: tuple[tuple[str, Any, Any], ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take note of the filters that say something about where records are; give back all."""
        sources = {column.name: column.source for column in self.columns}
        self.filters = tuple(
            (sources[each.attribute[0]], type(each), each.value)
            for each in filters
            if type(each) in TESTS and len(each.attribute) == 1 and each.attribute[0] in sources
        )
        logger.error(
            "filterPushdown is on: with Spark before 5 scan the result of each load() once only;"
            " a second scan of it would silently get this one's rows"
        )
        return filters

    def ranges(self, logs: SourceLogs) -> list[OffsetRange]:
        """Return what to read."""
        return [self._bounded(logs, each) for each in super().ranges(logs)]

    def _bounded(self, logs: SourceLogs, whole: OffsetRange) -> OffsetRange:
        start, stop = whole.start, whole.stop
        for source, kind, value in self.filters:
            if source in ("topic", "partition"):
                if not TESTS[kind](getattr(whole.topic_partition, source), value):
                    stop = start
            elif source == "offset":
                low, high = _offset_bounds(kind, value)
                start, stop = max(start, low), min(stop, high)
            elif source == "timestamp" and kind in (EqualTo, GreaterThan, GreaterThanOrEqual):
                # What comes before the first record at or after a time is before that time. Above
                # there is no bound: times need not ascend.
                milliseconds = _milliseconds(value)
                if milliseconds >= 0:  # Before 1970 is where records without a time are.
                    found = logs.offset_at(whole.topic_partition, milliseconds)
                    start = stop if found is None else max(start, found)
        return OffsetRange(whole.topic_partition, start, max(start, stop))


def _milliseconds(value: Any) -> int:
    """Return a time, -1 if it is not clear which it is."""
    is_clear = isinstance(value, datetime) and value.tzinfo is not None
    return milliseconds_of(value) if is_clear else -1


def _offset_bounds(kind: Any, value: Any) -> tuple[int, int]:
    """Return the offsets ``[low, high)`` that a filter leaves."""
    if kind is In:
        offsets = [offset for offset in value if offset is not None]
        return min(offsets, default=0), max(offsets, default=-1) + 1
    if kind is EqualTo:
        return value, value + 1
    if kind is GreaterThan:
        return value + 1, 2**63 - 1
    if kind is GreaterThanOrEqual:
        return value, 2**63 - 1
    assert kind in (LessThan, LessThanOrEqual)
    return 0, value + (kind is LessThanOrEqual)
