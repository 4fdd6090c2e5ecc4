"""
A range of a log as Arrow data, for whatever reads Arrow: Polars, DuckDB, pandas, pyarrow.

``arrow_buffers.py`` has the columns, ``arrow_batches.py`` makes them. The way in, Arrow data to
records, is ``Log.extend_arrow``. Needs pyarrow, the extra ``arrow``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from logstore.arrow_batches import ArrowBatches, ScannableLog
from logstore.arrow_buffers import Layout
from logstore.checkpoint import topic_partition_of
from logstore.readable_log import Isolation, Start, check_isolation, start_offset, stop_offset

__all__ = ["Scan"]


class _Range(NamedTuple):
    start: int
    stop: int
    truncations: int


class Scan:
    """
    A range of a log as Arrow data: lazy, and to be read any number of times.

    It has the Arrow PyCapsule interface: ``polars.DataFrame(scan)``, ``duckdb.sql("FROM scan")``,
    ``pandas.DataFrame.from_arrow(scan)`` and ``pyarrow.table(scan)`` take it as it is.

    The range is fixed at the first use, so that all uses agree; a scan of what was written since is
    a new one. Nothing is read before it is asked for.

    **Lifetime**: reading needs the open log. What was read stays valid after the log is closed and
    its segments are deleted.

    **Thread rule**: any thread may use it; each reader that it returns is one thread's at a time.

    Raises:
        CorruptRecordError: At damage, with its path, offset and position, once what lies before it
            was delivered.
        OffsetOutOfRangeError: The start is not in the log, or the log was cut inside the range;
            it has the offsets that there are.
        ClosedError: The log was closed.
    """

    __slots__ = (
        "_batch_rows",
        "_guard",
        "_isolation",
        "_layout",
        "_log",
        "_range",
        "_start",
        "_stop",
        "_verify_crc",
    )

    def __init__(
        self,
        log: ScannableLog,
        start: Start,
        stop: int | datetime | None,
        *,
        columns: Sequence[str] | None,
        isolation: Isolation,
        batch_rows: int | None,
        verify_crc: bool,
        views: bool,
    ) -> None:
        check_isolation(isolation)
        if batch_rows is not None and batch_rows < 1:
            raise ValueError(f"batch_rows is {batch_rows}; give 1 or more, or None")
        self._log = log
        self._start: Start = start
        self._stop = stop
        self._layout = Layout.of(columns, _topic_partition(log.directory), views=views)
        self._isolation: Isolation = isolation
        self._batch_rows = batch_rows
        self._verify_crc = verify_crc
        self._range: _Range | None = None
        self._guard = threading.Lock()

    @property
    def schema(self) -> Any:
        """The pyarrow schema of what it gives."""
        return self._layout.schema

    @property
    def start(self) -> int:
        """The offset that it begins with; fixes the range."""
        return self._fixed().start

    @property
    def stop(self) -> int:
        """The offset that it ends before; fixes the range."""
        return self._fixed().stop

    def to_arrow(self) -> Any:
        """Return a pyarrow RecordBatchReader, which reads as it goes."""
        return self._layout.pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def to_table(self) -> Any:
        """Return everything as a pyarrow Table."""
        return self._layout.pa.Table.from_batches(self._batches(), self.schema)

    def count(self) -> int:
        """
        Return the number of records.

        **Cost**: batches that lie wholly inside the range are counted by their headers, and neither
        decoded nor verified.
        """
        fixed = self._fixed()
        return ArrowBatches(
            self._log,
            None,
            fixed.start,
            fixed.stop,
            self._isolation,
            truncations=fixed.truncations,
            verify_crc=self._verify_crc,
        ).count()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        fixed = self._range
        place = f"{self._start!r}, {self._stop!r}" if fixed is None else f"{fixed[0]}, {fixed[1]}"
        return f"<Scan {self._log.directory!r} [{place}) {', '.join(self.schema.names)}>"

    def _batches(self) -> ArrowBatches:
        fixed = self._fixed()
        return ArrowBatches(
            self._log,
            self._layout,
            fixed.start,
            fixed.stop,
            self._isolation,
            truncations=fixed.truncations,
            batch_rows=self._batch_rows,
            verify_crc=self._verify_crc,
        )

    def _fixed(self) -> _Range:
        with self._guard:
            if self._range is None:
                truncations = self._log.truncations
                start = start_offset(self._log, self._start, self._isolation)
                stop = stop_offset(self._log, self._stop, self._isolation)
                self._range = _Range(start, max(start, stop), truncations)
            return self._range


def _topic_partition(directory: str) -> tuple[str, int] | None:
    return topic_partition_of(os.path.basename(os.path.abspath(directory)))
