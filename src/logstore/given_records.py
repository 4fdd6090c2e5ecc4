"""
Records as a caller gives them: checked before anything is written, in the form that C takes.

====================  ==========================================  ==================================
form                  made by                                     written by
====================  ==========================================  ==================================
lists of buffers      ``extend``; C walks the lists               ``Writer.append_list``
columns               ``extend_arrow``, and lists to compress     ``Writer.append_columns``
====================  ==========================================  ==================================

A value or key is any object with the buffer protocol, or None. ``str`` is refused everywhere: which
bytes it stands for is the caller's to say. Times are milliseconds since the epoch, as int or as an
aware datetime.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from logstore._native import Buffer, Columns, take_list
from logstore.timestamp_type import NO_TIMESTAMP

Headers: TypeAlias = Sequence[tuple[str, bytes | None]] | Mapping[str, bytes | None]

# An int that can only be another unit (DESIGN.md): 10^8 seconds is 1973, 10^10 seconds is 2286.
SECONDS_MIN: Final = 10**8
SECONDS_END: Final = 10**10
MICROSECONDS_MIN: Final = 10**14
NANOSECONDS_MIN: Final = 10**17

# What an iterable without length is taken in.
CHUNK_RECORDS: Final = 65_536
CHUNK_BYTES: Final = 4 << 20

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class GivenRecords(NamedTuple):
    """
    Records in lists or tuples of the same length; None: every key, time or header is absent.

    ``order`` has the indices of those that are meant; None: all of them.
    """

    values: Sequence[Any]
    keys: Sequence[Any] | None
    timestamps: Sequence[int] | None
    headers: Sequence[Any] | None
    order: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:  # A tuple's own length means nothing here.
        return len(self.values if self.order is None else self.order)

    def picked(self, order: npt.NDArray[np.int64]) -> GivenRecords:
        """Return those with these indices, which are contiguous in memory; nothing is copied."""
        assert self.order is None
        return GivenRecords(self.values, self.keys, self.timestamps, self.headers, order)

    def null_key(self) -> int | None:
        """Return the index of the first record without a key, None if all have one."""
        if self.keys is None:
            return 0
        return self.keys.index(None) if None in self.keys else None

    def taken(self) -> GivenRecords:
        """Return those that are meant, in lists of their own."""
        if self.order is None:
            return self
        order = self.order
        return GivenRecords(
            take_list(self.values, order),
            None if self.keys is None else take_list(self.keys, order),
            None if self.timestamps is None else take_list(self.timestamps, order),
            None if self.headers is None else take_list(self.headers, order),
        )


def milliseconds_of(when: int | datetime) -> int:
    """
    Return a time as milliseconds since the epoch.

    Raises:
        ValueError: An int that can only be seconds, micro- or nanoseconds; a naive datetime.
        TypeError: Something else than an int or a datetime.
    """
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError(
                f"{when.isoformat()} has no time zone;"
                " give an aware datetime, such as datetime.now(timezone.utc)"
            )
        return (when - _EPOCH) // _MILLISECOND
    if isinstance(when, bool) or not isinstance(when, (int, np.integer)):
        raise TypeError(f"a timestamp is an int or a datetime, not {type(when).__name__}")
    check_unit(int(when))
    return int(when)


def check_unit(timestamp: int) -> None:
    """Raise ValueError for a time that can only be in another unit than milliseconds."""
    if SECONDS_MIN <= timestamp < SECONDS_END:
        unit, factor = "seconds", "multiply by 1000"
    elif timestamp >= NANOSECONDS_MIN:
        unit, factor = "nanoseconds", "divide by 1000000"
    elif timestamp >= MICROSECONDS_MIN:
        unit, factor = "microseconds", "divide by 1000"
    elif timestamp < NO_TIMESTAMP:
        raise ValueError(f"timestamp {timestamp} is negative; leave it out if there is none")
    else:
        return
    raise ValueError(f"timestamp {timestamp} looks like {unit}; give milliseconds: {factor}")


def check_units(timestamps: npt.NDArray[np.int64]) -> None:
    """Raise ValueError if one of many times can only be in another unit than milliseconds."""
    if len(timestamps) == 0 or (
        timestamps.min() >= SECONDS_END and timestamps.max() < MICROSECONDS_MIN
    ):
        return
    wrong = (timestamps >= SECONDS_MIN) & (timestamps < SECONDS_END)
    wrong |= (timestamps >= MICROSECONDS_MIN) | (timestamps < NO_TIMESTAMP)
    for timestamp in timestamps[wrong][:1].tolist():
        check_unit(timestamp)


def header_pairs(headers: Headers) -> tuple[tuple[str, bytes | None], ...]:
    """
    Return headers as pairs.

    Raises:
        TypeError: A key is not a string, or a value neither bytes nor None.
    """
    if not headers:
        return ()
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    checked = []
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError("headers are a mapping or a sequence of (key, value) pairs")
        key, value = pair
        if not isinstance(key, str):
            raise TypeError(f"a header key is a str, not {type(key).__name__}")
        if isinstance(value, str) or not (value is None or _is_buffer(value)):
            raise TypeError(f"a header value is bytes or None, not {type(value).__name__}")
        checked.append((key, None if value is None else bytes(value)))
    return tuple(checked)


def check_buffer(item: object, what: str) -> None:
    """Raise TypeError unless ``item`` is None or has the buffer protocol."""
    if item is None or isinstance(item, (bytes, bytearray, memoryview)):
        return
    if isinstance(item, str):
        raise TypeError(f"a {what} is bytes, not str; encode it, such as with .encode()")
    if not _is_buffer(item):
        raise TypeError(f"a {what} is bytes or None, not {type(item).__name__}")


def _is_buffer(item: object) -> bool:
    if isinstance(item, (bytes, bytearray, memoryview)):
        return True
    try:
        memoryview(item).release()  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def is_sized(values: object) -> bool:
    """Whether all records are there at once, so that one append can take them."""
    return hasattr(values, "__len__")


def given_records(
    values: Iterable[Buffer | None],
    keys: Iterable[Buffer | None] | None,
    timestamps: Iterable[int | datetime] | None,
    headers: Iterable[Headers] | None,
    *,
    check_items: bool = True,
) -> Iterator[GivenRecords]:
    """
    Yield what a caller gave, all at once if it has a length, else in parts of some thousands.

    Args:
        values: Buffers or None.
        keys: The same, or None: no keys.
        timestamps: Times, or None: the time of the append.
        headers: One set of headers for each record, or None: no headers.
        check_items: Look at the type of each value and key, and the unit of each time. Who walks
            the items in C next leaves that to it: it costs as much as writing them.

    Raises:
        TypeError: ``values`` is a single value, or an item is neither bytes nor None.
        ValueError: The columns have different lengths, or a time is in the wrong unit.
    """
    if values is None or isinstance(values, (str, bytes, bytearray, memoryview)):
        raise TypeError(
            f"extend takes an iterable of values, not a {type(values).__name__};"
            " use append for a single one"
        )
    columns = (values, keys, timestamps, headers)
    if all(column is None or is_sized(column) for column in columns):
        lengths = {len(column) for column in columns if column is not None}  # type: ignore[arg-type]
        if len(lengths) > 1:
            raise ValueError(
                f"values, keys, timestamps and headers have different lengths: {sorted(lengths)}"
            )
        yield _checked(*map(_listed, columns), check_items=check_items)
        return
    iterators = [None if column is None else iter(column) for column in columns]
    while True:
        parts = _next_part(iterators)
        if not parts[0]:
            return
        yield _checked(*parts, check_items=check_items)


def _listed(column: Iterable[Any] | None) -> Sequence[Any] | None:
    """Return a column in a form that C walks; a list or a tuple as it is, without a copy."""
    return column if column is None or type(column) in (list, tuple) else list(column)  # type: ignore[return-value]


def _next_part(iterators: list[Iterator[Any] | None]) -> list[list[Any] | None]:
    values: list[Any] = []
    size_bytes = 0
    assert iterators[0] is not None
    for value in itertools.islice(iterators[0], CHUNK_RECORDS):
        values.append(value)
        size_bytes += 16 + (0 if value is None else len(value))
        if size_bytes >= CHUNK_BYTES:
            break
    parts: list[list[Any] | None] = [values]
    for iterator in iterators[1:]:
        part = None if iterator is None else list(itertools.islice(iterator, len(values)))
        if part is not None and len(part) != len(values):
            raise ValueError("values, keys, timestamps and headers have different lengths")
        parts.append(part)
    if not values:
        for iterator in iterators[1:]:
            if iterator is not None and next(iterator, iterator) is not iterator:
                raise ValueError("values, keys, timestamps and headers have different lengths")
    return parts


def _checked(
    values: Sequence[Any] | None,
    keys: Sequence[Any] | None,
    timestamps: Sequence[Any] | None,
    headers: Sequence[Any] | None,
    *,
    check_items: bool,
) -> GivenRecords:
    assert values is not None
    for column, what in ((values, "value"), (keys, "key")):
        if column is None or not check_items:
            continue
        # A set of types is a quarter of the time of a check of each item.
        for kind in set(map(type, column)) - {bytes, type(None)}:
            if not issubclass(kind, (bytes, bytearray, memoryview)):
                for item in column:
                    check_buffer(item, what)
    times = None if timestamps is None else _milliseconds(timestamps, check_items)
    pairs = None if headers is None else [header_pairs(each) for each in headers]
    if pairs is not None and not any(pairs):
        pairs = None
    return GivenRecords(values, keys, times, pairs)


def _milliseconds(timestamps: Sequence[Any], check_items: bool) -> Sequence[int]:
    if set(map(type, timestamps)) <= {int}:
        if timestamps and check_items:
            checked_times(timestamps)
        return timestamps
    return [milliseconds_of(when) for when in timestamps]


def checked_times(timestamps: Sequence[int]) -> npt.NDArray[np.int64]:
    """
    Return times as an array.

    Raises:
        ValueError: One is in another unit than milliseconds, or does not fit 64 bits.
    """
    try:
        times = np.array(timestamps, np.int64)
    except OverflowError:
        raise ValueError(f"a timestamp does not fit 64 bits: {max(timestamps, key=abs)}") from None
    check_units(times)
    return times


class GivenColumns(NamedTuple):
    """Records in columns, and what must be checked of them."""

    columns: Columns
    timestamps: npt.NDArray[np.int64] | None  #: None: one time for all, which needs no check
    null_key: int | None  #: index of the first record without key


def columns_of(given: GivenRecords, now_ms: int) -> GivenColumns:
    """Return records in lists as columns, for what cannot be written from lists directly."""
    given = given.taken()
    values, value_offsets, value_validity = _joined(given.values)
    keys = key_offsets = key_validity = None
    if given.keys is not None:
        keys, key_offsets, key_validity = _joined(given.keys)
    headers = header_offsets = None
    if given.headers is not None:
        headers, header_offsets, _ = _joined([encoded_headers(each) for each in given.headers])
    timestamps = None if given.timestamps is None else np.array(given.timestamps, np.int64)
    columns = Columns(
        values,
        value_offsets,
        value_validity=value_validity,
        keys=keys,
        key_offsets=key_offsets,
        key_validity=key_validity,
        timestamps=timestamps,
        timestamp=now_ms,
        headers=headers,
        header_offsets=header_offsets,
        count=len(given.values),
    )
    return GivenColumns(columns, timestamps, given.null_key())


def _joined(
    items: Sequence[Buffer | None],
) -> tuple[bytes, npt.NDArray[np.int64], npt.NDArray[np.uint8] | None]:
    """Return the bytes of many items, their offsets, and a bitmap if some are None."""
    plain = [b"" if item is None else bytes(item) for item in items]
    offsets = np.zeros(len(plain) + 1, np.int64)
    np.cumsum([len(item) for item in plain], out=offsets[1:])
    validity = None
    if None in items:
        valid = np.array([item is not None for item in items])
        validity = np.packbits(valid, bitorder="little")
    return b"".join(plain), offsets, validity


def encoded_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Return the headersCount and headers of one record as the format has them; spec 1.4."""
    if not headers:
        return b""
    parts = [varint(len(headers))]
    for key, value in headers:
        name = key.encode("utf-8", "surrogateescape")  # As keys are decoded.
        parts += [varint(len(name)), name]
        parts += [varint(-1)] if value is None else [varint(len(value)), value]
    return b"".join(parts)


def varint(value: int) -> bytes:
    """Return a 32-bit number in Kafka's zig-zag variable-length form."""
    number = ((value << 1) ^ (value >> 31)) & 0xFFFF_FFFF
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
