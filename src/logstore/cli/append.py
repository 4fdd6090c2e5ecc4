"""``logstore append``: append lines, JSON lines or CSV rows from standard input."""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import os
import selectors
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import logstore
from logstore.cli.counted import counted
from logstore.cli.record_text import RecordInput, from_json

EXAMPLE = """\
examples:
  seq 1000 | logstore append data/numbers-0
  logstore read data/orders-0 --json | logstore append copy/orders-0 --input json
  logstore append data/users-0 --input csv --key-column id < users.csv

A JSON line is an object with value or value_base64, and if wanted key or key_base64, timestamp (ms)
and headers: a list of objects with name and value or value_base64.
Records are sent after 1,000 lines or 50 ms, whichever is first. The range of offsets is printed
at the end.
"""

BATCH_LINES = 1_000
BATCH_SECONDS = 0.05
READ_BYTES = 1 << 18


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "append",
        help="append lines, JSON lines or CSV rows from standard input",
        epilog=EXAMPLE,
    )
    parser.add_argument("directory", type=Path, help="a partition directory; created if missing")
    parser.add_argument(
        "--input", choices=["lines", "json", "csv"], default="lines",
        help="lines: each line is a value (default); json: what `read --json` writes; "
        "csv: a header row, then each row as a JSON object",
    )  # fmt: skip
    parser.add_argument("--key-column", metavar="NAME", help="csv: the column that becomes the key")
    parser.add_argument(
        "--compression", choices=["uncompressed", "gzip", "snappy", "lz4", "zstd"], help="codec"
    )
    parser.add_argument(
        "--sync", action="store_true", help="wait for the device before each batch is acknowledged"
    )
    parser.add_argument(
        "--lock-timeout", type=float, default=0.0, metavar="SECONDS",
        help="how long to wait for another writer to finish (default: not at all)",
    )  # fmt: skip
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if (arguments.input == "csv") != (arguments.key_column is not None):
        message = "--key-column goes with --input csv, and csv needs it"
        raise ValueError(message)
    if arguments.input == "csv":
        parse = _csv_parser(arguments.key_column)
    elif arguments.input == "json":
        parse = _json_parser()
    else:
        parse = _line_records

    first: int | None = None
    end = 0
    try:
        with logstore.open(arguments.directory, lock_timeout=arguments.lock_timeout) as log:
            end = log.offsets.log_end_offset
            for lines in _line_batches(sys.stdin.buffer.fileno()):
                records = parse(lines)
                if not records:
                    continue
                appended = _extend(log, records, arguments)
                first = appended.start if first is None else first
                end = appended.stop
            parse([])
    finally:
        # Also after an error or Ctrl-C: what was appended stays.
        if first is not None:
            count = counted(end - first, "record")
            print(f"appended {count}: offsets {first} to {end - 1}")
    if first is None:
        print(f"appended nothing; the log ends at {end}")
    return 0


def _extend(log: logstore.Log, records: list[RecordInput], arguments: argparse.Namespace) -> range:
    timestamps = None
    if any(record.timestamp is not None for record in records):
        now = int(time.time() * 1000)
        timestamps = [now if record.timestamp is None else record.timestamp for record in records]
    return log.extend(
        [record.value for record in records],
        keys=[record.key for record in records],
        headers=[record.headers for record in records]
        if any(record.headers for record in records)
        else None,
        timestamps=timestamps,
        compression=arguments.compression,
        sync=arguments.sync,
    )


def _line_batches(descriptor: int) -> Iterator[list[bytes]]:
    """
    Yield the lines of a descriptor, at most 1,000 at a time and none older than 50 ms.

    The descriptor is read as it is: Python's buffered reader would wait for more.
    """
    pending: list[bytes] = []
    rest: list[bytes] = []  # Pieces of a line whose end has not come yet.
    deadline = 0.0
    with selectors.DefaultSelector() as selector:
        try:
            selector.register(descriptor, selectors.EVENT_READ)
        except (PermissionError, ValueError):
            is_selectable = False  # A regular file is always ready.
        else:
            is_selectable = True
        while True:
            if pending and is_selectable:
                wait = deadline - time.monotonic()
                if wait <= 0 or not selector.select(wait):
                    yield pending
                    pending = []
                    continue
            data = os.read(descriptor, READ_BYTES)
            if not data:
                break
            head, *lines = data.split(b"\n")
            rest.append(head)
            if not lines:
                continue
            if not pending:
                deadline = time.monotonic() + BATCH_SECONDS
            pending += [b"".join(rest), *lines[:-1]]
            rest = [lines[-1]]
            while len(pending) >= BATCH_LINES:
                yield pending[:BATCH_LINES]
                del pending[:BATCH_LINES]
    if any(rest):
        pending.append(b"".join(rest))
    if pending:
        yield pending


def _line_records(lines: list[bytes]) -> list[RecordInput]:
    return [RecordInput(line) for line in lines]


def _json_parser() -> Callable[[list[bytes]], list[RecordInput]]:
    """Return a parser of JSON lines that counts them, for its errors."""
    numbers = itertools.count(1)

    def parse(lines: list[bytes]) -> list[RecordInput]:
        records: list[RecordInput] = []
        for line, number in zip(lines, numbers, strict=False):
            if not line.strip():
                continue
            try:
                records.append(from_json(line.decode("utf-8")))
            except ValueError as error:
                message = f"line {number}: {error}"
                raise ValueError(message) from error
        return records

    return parse


def _csv_parser(key_column: str) -> Callable[[list[bytes]], list[RecordInput]]:
    """
    Return a parser of CSV lines that remembers the header row and half a quoted field.

    It is called without lines at the end.
    """
    columns: list[str] = []
    held: list[str] = []
    is_quoted = False

    def parse(lines: list[bytes]) -> list[RecordInput]:
        nonlocal is_quoted
        if not lines and held:
            message = f"a quoted field does not end: {held[0]!r}"
            raise ValueError(message)
        records: list[RecordInput] = []
        for line in lines:
            text = line.decode("utf-8")
            held.append(text)
            is_quoted ^= bool(text.count('"') % 2)
            if is_quoted:
                continue  # A quoted field goes on in the next line.
            whole = "\n".join(held)
            held.clear()
            row = next(csv.reader(io.StringIO(whole, newline="")), None)
            if not row:
                continue
            if not columns:
                columns.extend(name.removeprefix("\ufeff") for name in row)
                if key_column not in columns:
                    message = f"no column {key_column!r}; the columns are {', '.join(columns)}"
                    raise ValueError(message)
                continue
            if len(row) != len(columns):
                message = f"a row has {len(row)} fields, the header has {len(columns)}: {whole!r}"
                raise ValueError(message)
            fields = dict(zip(columns, row, strict=True))
            value = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
            records.append(RecordInput(value.encode(), fields[key_column].encode()))
        return records

    return parse
