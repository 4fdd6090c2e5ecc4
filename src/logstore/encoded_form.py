"""
Whether the records of a batch are as an encoder of this library, or Kafka's, would write them.

A section that is can be kept when only the codec around it changes.

Source: Kafka ``DefaultRecord.writeTo``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from logstore._native import RecordCheck, decode_records
from logstore.records_builder import DELETE_HORIZON_FLAG, LOG_APPEND_TIME_FLAG
from logstore.timestamp_type import NO_TIMESTAMP

if TYPE_CHECKING:
    import numpy.typing as npt

    from logstore.record import RecordBatch

_NULL: Final = 0x01  # -1 as a varint.


def is_as_encoded(batch: RecordBatch, section: bytes | memoryview, check: RecordCheck) -> bool:
    """Whether encoding the records again, with offsets from 0 on, gives the same bytes."""
    if batch.record_count == 0 or not check.sequential or check.min_timestamp < NO_TIMESTAMP:
        return False
    if batch.attributes & (LOG_APPEND_TIME_FLAG | DELETE_HORIZON_FLAG):
        return False
    columns = decode_records(
        section,
        base_offset=0,
        base_timestamp=batch.base_timestamp,
        record_count=batch.record_count,
    )
    if columns.timestamps[0] != batch.base_timestamp:
        return False
    # Varints can be longer than they need be. Then the sum of the shortest forms is smaller.
    timestamp_bytes = _varint_sizes(columns.timestamps - batch.base_timestamp)
    offset_bytes = _varint_sizes(columns.offsets)
    key_bytes = _sized_bytes(columns.key_sizes)
    bodies = (
        1  # Attributes.
        + timestamp_bytes
        + offset_bytes
        + key_bytes
        + _sized_bytes(columns.value_sizes)
        + columns.header_sizes
    )
    sizes = _varint_sizes(bodies) + bodies
    if int(sizes.sum()) != len(section):
        return False
    # Now the places of the fields are known: attributes are 0, and null is -1, no other number.
    data = np.frombuffer(section, np.uint8)
    attributes_at = np.cumsum(sizes) - bodies
    keys_at = attributes_at + 1 + timestamp_bytes + offset_bytes
    values_at = keys_at + key_bytes
    return not (
        data[attributes_at].any()
        or (data[keys_at[columns.key_sizes < 0]] != _NULL).any()
        or (data[values_at[columns.value_sizes < 0]] != _NULL).any()
    )


def _sized_bytes(sizes: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return the bytes of keys or values, size fields included."""
    wide = sizes.astype(np.int64)
    return _varint_sizes(wide) + np.maximum(wide, 0)


def _varint_sizes(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the bytes of each number as a zig-zag varint."""
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    sizes = np.ones(len(values), np.int64)
    rest = zigzag >> np.uint64(7)
    while rest.any():
        sizes += rest != 0
        rest >>= np.uint64(7)
    return sizes
