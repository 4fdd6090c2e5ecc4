"""Formats, times, JSON lines and CSV of the command line, without a log."""

from __future__ import annotations

import argparse
import base64
import json
from datetime import UTC, datetime, timedelta

import pytest

from logstore.cli.append import _csv_parser, _json_parser
from logstore.cli.record_text import (
    compile_format,
    encoded,
    from_json,
    json_line,
    json_of,
    record_line,
    show,
)
from logstore.cli.times import format_timestamp, parse_position
from logstore.record import Record

RECORD = Record(7, 1_700_000_000_123, b"k", b"v\x00\xff", (("h", b"1"), ("n", None)), 0, 3)


class TestPositions:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("0", 0),
            ("42", 42),
            ("earliest", "earliest"),
            ("latest", "latest"),
            ("2024-05-01T12:00Z", datetime(2024, 5, 1, 12, tzinfo=UTC)),
            ("2024-05-01T14:00:00.5+02:00", datetime(2024, 5, 1, 12, 0, 0, 500_000, tzinfo=UTC)),
        ],
    )
    def test_offsets_names_and_times(self, text, expected, capsys):
        """What needs no guessing is not echoed."""
        assert expected == parse_position(text)
        assert "" == capsys.readouterr().err

    @pytest.mark.parametrize(
        ("text", "age"), [("2h", 7200), ("90s", 90), ("1.5m", 90), ("250ms", 0.25), ("1w", 604_800)]
    )
    def test_ages(self, text, age, capsys):
        """An age is before now, and said as UTC."""
        earliest = datetime.now(tz=UTC) - timedelta(seconds=age, milliseconds=1)
        found = parse_position(text)
        assert earliest <= found <= datetime.now(tz=UTC) - timedelta(seconds=age)
        assert capsys.readouterr().err.startswith(f"{text} is 20")

    def test_local_time_is_echoed_as_utc(self, monkeypatch, capsys):
        """A time without a zone is local; nobody has to guess what it was taken for."""
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        import time

        time.tzset()
        try:
            found = parse_position("2024-05-01T09:30")
        finally:
            monkeypatch.undo()
            time.tzset()
        assert datetime(2024, 5, 1, 0, 30, tzinfo=UTC) == found
        assert "2024-05-01T09:30 is 2024-05-01T00:30:00.000Z\n" == capsys.readouterr().err

    @pytest.mark.parametrize("text", ["", "-1", "yesterday", "2y", "2024-13-01", "0x10"])
    def test_nonsense(self, text):
        """The error names what would do."""
        with pytest.raises(argparse.ArgumentTypeError, match="earliest"):
            parse_position(text)

    def test_timestamps_as_text(self):
        """No time, the epoch, and times that a datetime does not reach."""
        assert "-" == format_timestamp(-1)
        assert "1970-01-01T00:00:00.001Z" == format_timestamp(1)
        assert str(2**62) == format_timestamp(2**62)


class TestFormats:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("%s", b"v\x00\xff"),
            ("%v|%S", b"v\x00\xff|3"),
            ("%k %K", b"k 1"),
            ("%o %T", b"7 1700000000123"),
            ("%t %p", b"orders 4"),
            ("%h", b"h=1,n="),
            ("100%%\\n", b"100%\n"),
            ("\\t\\r\\\\\\0", b"\t\r\\\0"),
            ("\\x41\\xff", b"A\xff"),
            ("kö%o", "kö7".encode()),
            ("", b""),
        ],
    )
    def test_letters_and_escapes(self, text, expected):
        """The letters are kcat's."""
        assert expected == compile_format(text, "orders", 4, escape=False)(RECORD)

    def test_null_key_and_value(self):
        """Null is empty, and its size is -1."""
        record = Record(1, 2, None, None)
        assert b"[][] -1 -1" == compile_format("[%k][%v] %K %S", "t", 0, escape=False)(record)

    @pytest.mark.parametrize("text", ["%y", "%", "\\", "\\q", "\\x1", "%o %é"])
    def test_unknown(self, text):
        """An unknown letter is refused, with the known ones."""
        with pytest.raises(ValueError, match=r"letters are %s %v %k"):
            compile_format(text, "t", 0, escape=False)

    def test_escaping(self):
        """On a terminal control characters and what is no text cannot do anything."""
        assert b"v\\x00\\xff" == show(b"v\x00\xff", escape=True)
        assert b"\\x1b[31m" == show(b"\x1b[31m", escape=True)
        assert "größe\t1\n".encode() == show("größe\t1\n".encode(), escape=True)
        assert b"\\x9b" == show("\x9b".encode(), escape=True)


def as_field(name, data):
    """Return a name and what JSON holds for these bytes."""
    try:
        return name, None if data is None else data.decode()
    except UnicodeDecodeError:
        return f"{name}_base64", base64.b64encode(data).decode()


def as_line(fields):
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace") + b"\n"


class TestJson:
    @pytest.mark.parametrize(
        "record",
        [
            RECORD,
            Record(0, 0, None, None),
            Record(1, 5, b"", b""),
            Record(2, 5, b"\xff\xfe", "größe \u2028".encode(), (("ä", b"\x80"), ("", b""))),
            Record(3, 5, b"null", b'{"a": "\n"}'),
        ],
    )
    def test_round_trip(self, record):
        """A line says everything that an append needs."""
        line = json_line(record)
        assert 1 == line.count(b"\n")
        found = from_json(line.decode())
        assert (record.key, record.value, record.timestamp, tuple(record.headers)) == (
            found.key,
            found.value,
            found.timestamp,
            found.headers,
        )

    def test_is_what_json_makes_of_the_fields(self):
        """Lines are put together by hand; they are those of the json module, byte for byte."""
        for record in (
            RECORD,
            Record(1, 2, None, None),
            Record(-1, -2, b"", '"\\\x00\x1f\x7f/\u2028ä'.encode(), (("ä", b"\x80"), ("", b""))),
            Record(3, 5, b"\xff", b"text", (), 1, 4),
        ):
            fields = {"offset": record.offset, "timestamp": record.timestamp}
            fields |= dict([as_field("key", record.key), as_field("value", record.value)])
            if record.headers:
                fields["headers"] = [
                    dict([("name", name), as_field("value", value)])
                    for name, value in record.headers
                ]
            assert as_line(fields) == json_line(record)
            more = {"leader_epoch": record.leader_epoch, "topic": 't"', "partition": 3}
            more |= {"timestamp_type": record.timestamp_type}
            more |= fields
            names = [name.removesuffix("_base64") for name in more]
            assert as_line(more) == encoded(json_of(names, 't"', 3)(record))
        assert "{}\n" == json_of(["headers"], "t", 0)(Record(1, 2, None, None))

    def test_text_and_bytes(self):
        """Valid UTF-8 is text, the rest base64."""
        fields = json.loads(json_line(RECORD))
        assert "k" == fields["key"]
        assert base64.b64encode(RECORD.value).decode() == fields["value_base64"]
        assert "value" not in fields
        assert [{"name": "h", "value": "1"}, {"name": "n", "value": None}] == fields["headers"]

    @pytest.mark.parametrize(
        ("line", "why"),
        [
            ("[1]", "not a JSON object"),
            ('{"key": "k"}', "neither"),
            ('{"value": 1}', "not a string"),
            ('{"value": "v", "timestamp": "now"}', "not an integer"),
            ('{"value": "v", "timestamp": true}', "not an integer"),
            ('{"value_base64": "!"}', "base64"),
            ('{"value": "v", "headers": [["a", "b"]]}', "a header is"),
            ("{", "line 2"),
        ],
    )
    def test_what_is_refused(self, line, why):
        """The error says which line and why."""
        with pytest.raises(ValueError, match="line 2: ") as caught:
            _json_parser()([b"", line.encode()])
        assert why in str(caught.value) or "Only base64" in str(caught.value)

    def test_record_line(self):
        """The form of the golden record lines."""
        assert {
            "offset": 7,
            "timestamp": 1_700_000_000_123,
            "timestamp_type": "CreateTime",
            "key": "aw==",
            "value": base64.b64encode(b"v\x00\xff").decode(),
            "headers": [["h", "MQ=="], ["n", None]],
            "leader_epoch": 3,
        } == record_line(RECORD)
        assert record_line(Record(1, 2, None, None, (), -1, -1))["leader_epoch"] is None


class TestCsv:
    def test_rows_are_json_objects_keyed_by_a_column(self):
        """A quoted field may hold separators, quotes and line ends, also over two calls."""
        parse = _csv_parser("id")
        first = parse([b"\xef\xbb\xbfid,note", b'1,"a, ""b""', b"second line"])
        rest = parse([b'end"', b"", b"2,\xc3\xb6"])
        assert [] == first
        assert [b"1", b"2"] == [record.key for record in rest]
        assert [
            {"id": "1", "note": 'a, "b"\nsecond line\nend'},
            {"id": "2", "note": "ö"},
        ] == [json.loads(record.value) for record in rest]
        assert [] == parse([])

    def test_errors(self):
        """No such column, a row of another length, a quote that is never closed."""
        with pytest.raises(ValueError, match="no column 'id'; the columns are a, b"):
            _csv_parser("id")([b"a,b"])
        with pytest.raises(ValueError, match="1 fields, the header has 2"):
            _csv_parser("a")([b"a,b", b"1"])
        parse = _csv_parser("a")
        parse([b"a", b'"open'])
        with pytest.raises(ValueError, match="does not end"):
            parse([])
