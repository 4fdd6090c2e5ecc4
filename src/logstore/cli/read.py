"""``logstore read``: print records."""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import logstore
from logstore.checkpoint import topic_partition_of
from logstore.cli import record_text, times
from logstore.record import Record

EXAMPLE = """\
examples:
  logstore read data/orders-0 --from 2h -f '%o %T %k %v\\n'
  logstore read data/orders-0 --from 2024-05-01T00:00Z --json | jq .value
  logstore read data/orders-0 --tail 10

format letters (as in kcat): %s %v value, %S its size, %k key, %K its size, %o offset,
%T timestamp in ms, %h headers, %t topic, %p partition, %% percent; \\n \\t \\r \\\\ \\xHH.
Bytes that are not text are escaped on a terminal and written as they are into a pipe.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "read",
        help="print records of one partition",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    position = "OFFSET|earliest|latest|ISO-8601|2h"
    parser.add_argument("directory", type=Path, help="a partition directory, such as data/orders-0")
    parser.add_argument(
        "--from", dest="start", metavar=position, type=times.parse_position, default="earliest",
        help="first record (default: earliest); a time without zone is local",
    )  # fmt: skip
    parser.add_argument(
        "--to", dest="stop", metavar=position, type=times.parse_position,
        help="end, exclusive (default: the log end)",
    )  # fmt: skip
    parser.add_argument("-n", dest="limit", type=_count, help="at most N records")
    parser.add_argument("--tail", type=_count, metavar="N", help="only the last N records")
    parser.add_argument("--key", help="only records with this key")
    output = parser.add_mutually_exclusive_group()
    output.add_argument(
        "-f", dest="format", metavar="FORMAT", help=r"how to print a record (default: '%%v\n')"
    )
    output.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--isolation", choices=["read_committed", "read_uncommitted"], default="read_committed",
        help="whether records of aborted and open transactions are shown (default: read_committed)",
    )  # fmt: skip
    parser.set_defaults(run=_run)


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        message = f"{text} is negative"
        raise argparse.ArgumentTypeError(message)
    return count


def _run(arguments: argparse.Namespace) -> int:
    topic, partition = topic_partition_of(arguments.directory.resolve().name, ("", 0))
    if arguments.json:

        def line(record: Record) -> bytes:
            fields = record_text.to_json(record)
            return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"

    else:
        line = record_text.compile_format(
            arguments.format or "%v\\n", topic, partition, escape=sys.stdout.isatty()
        )
    with logstore.open(arguments.directory, mode="r") as log:
        for record in _selected(log, arguments):
            sys.stdout.buffer.write(line(record))
    sys.stdout.buffer.flush()
    return 0


def _selected(log: logstore.Log, arguments: argparse.Namespace) -> Iterable[Record]:
    """Return the records that the arguments ask for, lazily unless the last ones are wanted."""
    stop: int | datetime | None = arguments.stop
    if isinstance(stop, str):
        stop = log.offsets.log_start_offset if stop == "earliest" else None
    records: Iterable[Record] = log.read(arguments.start, stop, isolation=arguments.isolation)
    if arguments.key is not None:
        key = arguments.key.encode("utf-8", "surrogateescape")
        records = (record for record in records if record.key == key)
    if arguments.tail is not None:
        records = deque(records, maxlen=arguments.tail)
    if arguments.limit is not None:
        records = (record for record, _ in zip(records, range(arguments.limit), strict=False))
    return records
