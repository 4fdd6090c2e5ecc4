"""Records of a transaction that wait until they fill a batch of their partition, or for the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from logstore._native import Buffer, measure_list
from logstore.given_records import GivenRecords
from logstore.records_builder import BATCH_OVERHEAD, RECORD_OVERHEAD_MAX, RecordFields

if TYPE_CHECKING:
    from logstore.log import Log


class PendingRecords:
    """
    Records that wait for their partition's batch.

    Args:
        log: The partition's.

    Attributes:
        log: Likewise.
        bytes_max: Of a batch.
        values: Those that wait.
        size_bytes: What they make a batch of, at most.
    """

    __slots__ = ("_headers", "_keys", "_timestamps", "bytes_max", "log", "size_bytes", "values")

    def __init__(self, log: Log) -> None:
        self.log = log
        self.bytes_max = log.config.batch_bytes_max
        self.values: list[Buffer | None] = []
        self._keys: list[Buffer | None] = []
        self._timestamps: list[int] = []
        self._headers: list[Sequence[tuple[str, bytes | None]]] = []
        self.size_bytes = BATCH_OVERHEAD

    def add(self, row: RecordFields, size_bytes: int) -> None:
        """Add a record."""
        _, timestamp, key, value, headers = row
        self.values.append(value)
        self._keys.append(key)
        self._timestamps.append(timestamp)
        self._headers.append(headers)
        self.size_bytes += size_bytes

    def extend(self, given: GivenRecords, now_ms: int) -> None:
        """Add many; what could change until they are written is copied."""
        count = len(given)
        keys = [None] * count if given.keys is None else given.keys
        times = [now_ms] * count if given.timestamps is None else given.timestamps
        self.values.extend(_fixed(given.values))
        self._keys.extend(_fixed(keys))
        self._timestamps.extend(times)
        self._headers.extend([()] * count if given.headers is None else given.headers)
        self.size_bytes += RECORD_OVERHEAD_MAX * count
        self.size_bytes += int(measure_list(given.values).sum() + measure_list(keys).sum())

    def given(self) -> GivenRecords:
        """Return all of them."""
        headers = self._headers if any(self._headers) else None
        return GivenRecords(self.values, self._keys, self._timestamps, headers)

    def drop(self, count: int, size_bytes: int) -> None:
        """Forget the first ones, which are written; the others are a batch of ``size_bytes``."""
        for column in (self.values, self._keys, self._timestamps, self._headers):
            del column[:count]
        self.size_bytes = max(size_bytes, BATCH_OVERHEAD)


def _fixed(items: Sequence[Buffer | None]) -> Sequence[Buffer | None]:
    """Return buffers as bytes, without a copy of those that are."""
    if set(map(type, items)) <= {bytes, type(None)}:
        return items
    return [None if item is None else bytes(item) for item in items]
