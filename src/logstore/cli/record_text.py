r"""
Records as text: kcat's format letters, JSON lines, and lines back into records.

Letters of a format (``-f``), as in kcat:

    %s %v  value            %S  value size in bytes, -1 for null
    %k     key              %K  key size in bytes, -1 for null
    %o     offset           %T  timestamp in ms          %t  topic    %p  partition
    %h     headers, name=value joined by commas          %%  a percent sign
    \n \t \r \\ \xHH        the usual escapes
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring as _quoted
from typing import Any

from logstore.record import Record

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\", "0": b"\0"}
_TOKEN = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)|(%|\\)$", re.DOTALL)
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# Kept: json.dumps with options makes one for every call.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

Piece = Callable[[Record], bytes]


def compile_format(text: str, topic: str, partition: int, *, escape: bool) -> Piece:
    r"""
    Return a function that prints a record by a kcat format.

    Args:
        text: The format; see the module.
        topic: What ``%t`` prints.
        partition: What ``%p`` prints.
        escape: Print bytes that are not text as ``\xHH``: for a terminal.

    Raises:
        ValueError: An unknown letter, with the known ones.
    """
    letters: dict[str, Piece] = {
        "s": lambda record: show(record.value, escape=escape),
        "v": lambda record: show(record.value, escape=escape),
        "k": lambda record: show(record.key, escape=escape),
        "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
        "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
        "o": lambda record: b"%d" % record.offset,
        "T": lambda record: b"%d" % record.timestamp,
        "h": lambda record: _headers_text(record, escape=escape),
        "t": lambda _: topic.encode(),
        "p": lambda _: b"%d" % partition,
        "%": lambda _: b"%",
    }
    pieces: list[Piece] = []
    for token in _TOKEN.finditer(text):
        letter, hexadecimal, escaped, literal, dangling = token.groups()
        if letter is not None and letter in letters:
            pieces.append(letters[letter])
        elif hexadecimal is not None:
            pieces.append(_constant(bytes.fromhex(hexadecimal)))
        elif escaped is not None and escaped in _ESCAPES:
            pieces.append(_constant(_ESCAPES[escaped]))
        elif literal is not None:
            pieces.append(_constant(literal.encode()))
        else:
            wrong = dangling or token.group()
            message = f"{wrong!r} in format {text!r} is unknown; letters are %{' %'.join(letters)}"
            raise ValueError(message)
    return lambda record: b"".join(piece(record) for piece in pieces)


def _constant(data: bytes) -> Piece:
    return lambda _: data


def show(data: bytes | None, *, escape: bool) -> bytes:
    """Return bytes for output: as they are, or with all that is not text escaped. Null is empty."""
    if data is None:
        return b""
    if not escape:
        return data
    text = data.decode("utf-8", "backslashreplace")
    return _UNPRINTABLE.sub(lambda found: f"\\x{ord(found[0]):02x}", text).encode()


def _headers_text(record: Record, *, escape: bool) -> bytes:
    parts = (
        name.encode("utf-8", "surrogateescape") + b"=" + show(value, escape=escape)
        for name, value in record.headers
    )
    return b",".join(parts)


def json_line(record: Record) -> bytes:
    """Return a record as one line of JSON."""
    return encoded(json_text(record))


def encoded(text: str) -> bytes:
    """Return JSON text as bytes; a header's name that is no text keeps its bytes as escapes."""
    return text.encode("utf-8", "backslashreplace")


def json_text(record: Record) -> str:
    """
    Return a record as ``read --json`` writes it and ``append --input json`` takes it, a line.

    ``key``/``value`` for valid UTF-8 (or null), ``key_base64``/``value_base64`` otherwise;
    ``headers`` if there are any. Put together here, as that takes a third of the time of an object
    of fields to encode.
    """
    key, value = record.key, record.value
    try:
        key_text = "null" if key is None else _quoted(key.decode())
        value_text = "null" if value is None else _quoted(value.decode())
        content = f'"key":{key_text},"value":{value_text}'
    except UnicodeDecodeError:
        content = f"{_bytes_field('key', key)},{_bytes_field('value', value)}"
    headers = "," + _headers_field(record) if record.headers else ""
    place = f'"offset":{record.offset},"timestamp":{record.timestamp}'
    return f"{{{place},{content}{headers}}}\n"


def json_of(names: Sequence[str], topic: str, partition: int) -> Callable[[Record], str]:
    """
    Return what makes a line of the fields ``names``, in this order; headers only where there are.

    ``names`` are those of :func:`json_text`, or ``topic``, ``partition``, ``timestamp_type``,
    ``leader_epoch``.
    """
    topic_field = f'"topic":{_quoted(topic)}'
    partition_field = f'"partition":{partition}'
    known: dict[str, Callable[[Record], str]] = {
        "offset": lambda record: f'"offset":{record.offset}',
        "timestamp": lambda record: f'"timestamp":{record.timestamp}',
        "key": lambda record: _bytes_field("key", record.key),
        "value": lambda record: _bytes_field("value", record.value),
        "headers": _headers_field,
        "topic": lambda _: topic_field,
        "partition": lambda _: partition_field,
        "timestamp_type": lambda record: f'"timestamp_type":{record.timestamp_type}',
        "leader_epoch": lambda record: f'"leader_epoch":{_ENCODER.encode(record.leader_epoch)}',
    }
    fields = [known[name] for name in dict.fromkeys(names)]

    def text(record: Record) -> str:
        return "{" + ",".join(filter(None, [field(record) for field in fields])) + "}\n"

    return text


def _bytes_field(name: str, data: bytes | None) -> str:
    if data is None:
        return f'"{name}":null'
    try:
        return f'"{name}":{_quoted(data.decode())}'
    except UnicodeDecodeError:
        return f'"{name}_base64":"{base64.b64encode(data).decode()}"'


def _headers_field(record: Record) -> str:
    if not record.headers:
        return ""
    return '"headers":' + _ENCODER.encode([header_json(*header) for header in record.headers])


def _put_bytes(fields: dict[str, Any], name: str, data: bytes | None) -> None:
    if data is None:
        fields[name] = None
        return
    try:
        fields[name] = data.decode("utf-8")
    except UnicodeDecodeError:
        fields[f"{name}_base64"] = base64.b64encode(data).decode()


def header_json(name: str, value: bytes | None) -> dict[str, Any]:
    """Return a header as an object with ``name`` and ``value`` or ``value_base64``."""
    fields: dict[str, Any] = {"name": name}
    _put_bytes(fields, "value", value)
    return fields


class RecordInput:
    """One record to append, as read from a line."""

    __slots__ = ("headers", "key", "timestamp", "value")

    def __init__(
        self,
        value: bytes | None,
        key: bytes | None = None,
        timestamp: int | None = None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
    ) -> None:
        self.value = value
        self.key = key
        self.timestamp = timestamp
        self.headers = headers


def from_json(line: str) -> RecordInput:
    """
    Return the record of one JSON line.

    Raises:
        ValueError: Not an object with ``value`` or ``value_base64``, or a field of the wrong type.
    """
    fields = json.loads(line)
    if not isinstance(fields, dict):
        message = "a line is not a JSON object; write one object with a value on each line"
        raise ValueError(message)  # noqa: TRY004  # Bad input, not a wrong argument.
    if "value" not in fields and "value_base64" not in fields:
        message = 'a JSON line has neither "value" nor "value_base64"'
        raise ValueError(message)
    timestamp = fields.get("timestamp")
    if timestamp is not None and (isinstance(timestamp, bool) or not isinstance(timestamp, int)):
        message = f"timestamp {timestamp!r} is not an integer of milliseconds"
        raise ValueError(message)
    headers = tuple(_header(header) for header in fields.get("headers") or ())
    return RecordInput(_take_bytes(fields, "value"), _take_bytes(fields, "key"), timestamp, headers)


def _header(fields: object) -> tuple[str, bytes | None]:
    if not isinstance(fields, dict) or not isinstance(fields.get("name"), str):
        message = f'a header is {fields!r}, not an object with "name" and "value"'
        raise ValueError(message)  # noqa: TRY004  # Bad input, not a wrong argument.
    return fields["name"], _take_bytes(fields, "value")


def _take_bytes(fields: dict[str, Any], name: str) -> bytes | None:
    encoded = fields.get(f"{name}_base64")
    if encoded is not None:
        return base64.b64decode(encoded, validate=True)
    text = fields.get(name)
    if text is None:
        return None
    if not isinstance(text, str):
        message = f'"{name}" is {text!r}, not a string; use "{name}_base64" for bytes'
        raise ValueError(message)  # noqa: TRY004  # Bad input, not a wrong argument.
    return text.encode("utf-8")


def record_line(record: Record) -> dict[str, Any]:
    """
    Return a record in the form of the golden record lines: all fields, bytes as base64.

    ``leader_epoch`` is None when unknown (-1).
    """
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}[
            record.timestamp_type
        ],
        "key": _base64_or_none(record.key),
        "value": _base64_or_none(record.value),
        "headers": [[name, _base64_or_none(value)] for name, value in record.headers],
        "leader_epoch": record.leader_epoch if (record.leader_epoch or 0) >= 0 else None,
    }


def _base64_or_none(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def bytes_text(data: bytes | None) -> str:
    """Return bytes for people: quoted text where they are text, else base64; ``null`` for None."""
    if data is None:
        return "null"
    try:
        return json.dumps(data.decode("utf-8"), ensure_ascii=False)
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(data).decode()
