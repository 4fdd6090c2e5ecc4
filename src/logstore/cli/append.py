"""``logstore append``: append lines, JSON lines or CSV rows from standard input."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import selectors
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import logstore
from logstore.cli.record_text import RecordInput, from_json

EXAMPLE = """\
examples:
  seq 1000 | logstore append data/numbers-0
  logstore read data/orders-0 --json | logstore append copy/orders-0 --input json
  logstore append data/users-0 --input csv --key-column id < users.csv

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
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
        parse = _json_records
    else:
        parse = _line_records

    first: int | None = None
    end = 0
    with logstore.open(arguments.directory, lock_timeout=arguments.lock_timeout) as log:
        end = log.offsets.log_end_offset
        for lines in _line_batches(sys.stdin.buffer.fileno()):
            records = parse(lines)
            if not records:
                continue
            appended = _extend(log, records, arguments)
            first = appended.start if first is None else first
            end = appended.stop
    if first is None:
        print(f"appended nothing; the log ends at {end}")
    else:
        print(f"appended {end - first} records: offsets {first} to {end - 1}")
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
    rest = b""
    deadline = 0.0
    with selectors.DefaultSelector() as selector:
        try:
            selector.register(descriptor, selectors.EVENT_READ)
        except (PermissionError, ValueError):
            selectable = False  # A regular file is always ready.
        else:
            selectable = True
        while True:
            if pending and selectable:
                wait = max(0.0, deadline - time.monotonic())
                if not selector.select(wait):
                    yield pending
                    pending = []
                    continue
            data = os.read(descriptor, READ_BYTES)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            if not pending:
                deadline = time.monotonic() + BATCH_SECONDS
            pending += lines
            while len(pending) >= BATCH_LINES:
                yield pending[:BATCH_LINES]
                del pending[:BATCH_LINES]
    if rest:
        pending.append(rest)
    if pending:
        yield pending


def _line_records(lines: list[bytes]) -> list[RecordInput]:
    return [RecordInput(line) for line in lines]


def _json_records(lines: list[bytes]) -> list[RecordInput]:
    return [from_json(line.decode("utf-8")) for line in lines if line.strip()]


def _csv_parser(key_column: str) -> Callable[[list[bytes]], list[RecordInput]]:
    """Return a parser of CSV lines that remembers the header row and half a quoted field."""
    columns: list[str] = []
    held: list[str] = []

    def parse(lines: list[bytes]) -> list[RecordInput]:
        records: list[RecordInput] = []
        for line in lines:
            held.append(line.decode("utf-8"))
            text = "\n".join(held)
            if text.count('"') % 2:
                continue  # A quoted field goes on in the next line.
            held.clear()
            row = next(csv.reader(_text(text)), None)
            if row is None or row == []:
                continue
            if not columns:
                if key_column not in row:
                    message = f"no column {key_column!r}; the columns are {', '.join(row)}"
                    raise ValueError(message)
                columns.extend(row)
                continue
            if len(row) != len(columns):
                message = f"a row has {len(row)} fields, the header has {len(columns)}: {text!r}"
                raise ValueError(message)
            fields = dict(zip(columns, row, strict=True))
            value = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
            records.append(RecordInput(value.encode(), fields[key_column].encode()))
        return records

    return parse


def _text(text: str) -> TextIO:
    return io.StringIO(text, newline="")
