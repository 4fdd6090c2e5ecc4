"""``assert_records``: compare what a log holds with what a test expects, showing differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from logstore._native import Record

# In this order they are shown.
FIELDS: Final = ("offset", "timestamp", "key", "value", "headers", "timestamp_type", "leader_epoch")

# Records that are shown around a difference, and bytes of a key or value.
CONTEXT_RECORDS: Final = 2
SHOWN_BYTES: Final = 60

Expected: TypeAlias = bytes | tuple[Any, Any] | Mapping[str, Any] | Record | None


def assert_records(actual: Iterable[Record], expected: Iterable[Expected]) -> None:
    """
    Fail, with a readable difference, unless a log's records are as expected.

    Args:
        actual: A log (all that a committed read delivers), or any iterable of records.
        expected: For each record its value, ``(key, value)``, a mapping of the fields that matter,
            or a whole Record.

    Raises:
        AssertionError: They differ; the message shows where, and what is around it.
    """
    __tracebackhide__ = True
    found = list(actual)
    wanted = [_fields_of(each) for each in expected]
    for index in range(max(len(found), len(wanted))):
        difference = _difference(found, wanted, index)
        if difference is not None:
            raise AssertionError("\n".join([*difference, *_around(found, wanted, index)]))


def _fields_of(expected: Expected) -> Mapping[str, Any]:
    if isinstance(expected, Record):
        return {name: getattr(expected, name) for name in FIELDS}
    if isinstance(expected, Mapping):
        unknown = set(expected) - set(FIELDS)
        if unknown:
            raise TypeError(f"no field of a record: {', '.join(sorted(unknown))}")
        fields = dict(expected)
        if "headers" in fields:
            headers = fields["headers"]
            pairs = headers.items() if isinstance(headers, Mapping) else headers
            fields["headers"] = tuple((name, value) for name, value in pairs)
        return fields
    if isinstance(expected, tuple):
        key, value = expected
        return {"key": key, "value": value}
    if expected is None or isinstance(expected, (bytes, bytearray, memoryview)):
        return {"value": expected}
    raise TypeError(
        "expect of a record its value, (key, value), a mapping of fields or a Record,"
        f" not {type(expected).__name__}"
    )


def _difference(
    found: list[Record], wanted: list[Mapping[str, Any]], index: int
) -> list[str] | None:
    """Return what is different about one record, None if nothing is."""
    if index >= len(found):
        missing = len(wanted) - len(found)
        return [f"{_count(missing)} missing at the end: {len(wanted)} expected, {len(found)} found"]
    if index >= len(wanted):
        surplus = len(found) - len(wanted)
        return [f"{_count(surplus)} too many: {len(wanted)} expected, {len(found)} found"]
    record = found[index]
    names = [name for name in FIELDS if name in wanted[index]]
    wrong = [name for name in names if getattr(record, name) != wanted[index][name]]
    if not wrong:
        return None
    lines = [f"record {index} (offset {record.offset}) differs in {', '.join(wrong)}"]
    for name in wrong:
        lines.append(f"    {name}: expected {_shown(wanted[index][name])}")
        lines.append(f"    {' ' * len(name)}  found    {_shown(getattr(record, name))}")
    return lines


def _around(found: list[Record], wanted: list[Mapping[str, Any]], index: int) -> list[str]:
    """Return the neighbours of a difference: ``=`` as expected, ``-`` expected, ``+`` found."""
    lines = []
    first = max(0, index - CONTEXT_RECORDS)
    for at in range(first, index + CONTEXT_RECORDS + 1):
        is_found, is_wanted = at < len(found), at < len(wanted)
        if is_found and is_wanted and _difference(found, wanted, at) is None:
            lines.append(f"  = {at}: {_line(found[at], wanted[at])}")
            continue
        if is_wanted:
            names = [name for name in FIELDS if name in wanted[at]]
            shown = " ".join(f"{name}={_shown(wanted[at][name])}" for name in names)
            lines.append(f"  - {at}: {shown}")
        if is_found:
            lines.append(f"  + {at}: {_line(found[at], wanted[at] if is_wanted else {})}")
    return lines


def _line(record: Record, wanted: Mapping[str, Any]) -> str:
    names = [name for name in FIELDS if name in wanted or name in ("offset", "key", "value")]
    return " ".join(f"{name}={_shown(getattr(record, name))}" for name in names)


def _shown(value: object) -> str:
    if isinstance(value, (bytes, bytearray)) and len(value) > SHOWN_BYTES:
        return f"{bytes(value[:SHOWN_BYTES])!r}… ({len(value)} bytes)"
    return repr(value)


def _count(records: int) -> str:
    return "1 record" if records == 1 else f"{records} records"
