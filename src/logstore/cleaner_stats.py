"""
What a round of the cleaner has done, in numbers.

Source: Kafka ``CleanerStats``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logstore._native import Cleaned
    from logstore.batch_filter import Retained


@dataclass
class CleanerStats:
    """
    What a round has done.

    Attributes:
        map_bytes_read: Bytes read to build the offset map.
        map_messages_read: Records looked at for it.
        map_null_keys: Records of the dirty part that have no key.
        bytes_read: Bytes of the segments that were cleaned.
        bytes_written: Bytes of those that replace them.
        messages_read: Records of the former.
        messages_written: Records of the latter.
        invalid_messages_read: Records without a key: they go.
        offset_map_size: Keys in the map.
        buffer_utilization: The share of the map's slots that was taken.
        elapsed_seconds: From the beginning to the end.
        elapsed_index_seconds: Of that, for the offset map.
        first_dirty_offset: Where the dirty part began.
        next_first_dirty_offset: Where it begins now.

    Source: Kafka ``CleanerStats``.
    """

    map_bytes_read: int = 0
    map_messages_read: int = 0
    map_null_keys: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    messages_read: int = 0
    messages_written: int = 0
    invalid_messages_read: int = 0
    offset_map_size: int = 0
    buffer_utilization: float = 0.0
    elapsed_seconds: float = 0.0
    elapsed_index_seconds: float = 0.0
    first_dirty_offset: int = 0
    next_first_dirty_offset: int = 0

    def count(self, cleaned: Cleaned) -> None:
        """Count what C has filtered."""
        self.bytes_read += cleaned.bytes_read
        self.bytes_written += cleaned.bytes_written
        self.messages_read += cleaned.records_read
        self.messages_written += cleaned.records_retained

    def count_batch(self, size_bytes: int, retained: Retained) -> None:
        """Count a batch, and what was retained of it."""
        self.bytes_read += size_bytes
        self.bytes_written += len(retained.data)
        self.messages_read += retained.records_read
        self.messages_written += retained.records_retained

    def add(self, other: CleanerStats) -> None:
        """Count another round of the same log, which came after this one."""
        for name in (
            "map_bytes_read",
            "map_messages_read",
            "map_null_keys",
            "bytes_read",
            "bytes_written",
            "messages_read",
            "messages_written",
            "invalid_messages_read",
            "elapsed_seconds",
            "elapsed_index_seconds",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.offset_map_size = max(self.offset_map_size, other.offset_map_size)
        self.buffer_utilization = max(self.buffer_utilization, other.buffer_utilization)
        self.next_first_dirty_offset = other.next_first_dirty_offset
