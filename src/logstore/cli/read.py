"""``logstore read``: print records."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterable
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


# Printed at once: the end of a pipe is noticed in between.
WRITTEN_RECORDS = 256


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
    parser.add_argument("-n", dest="limit", metavar="N", type=_count, help="at most N records")
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
    topic, partition = topic_partition_of(arguments.directory.resolve().name) or ("", 0)
    line: record_text.Piece = record_text.json_line
    if not arguments.json:
        line = record_text.compile_format(
            arguments.format or "%v\\n", topic, partition, escape=sys.stdout.isatty()
        )
    output = sys.stdout.buffer
    with logstore.open(arguments.directory, mode="r") as log:
        records = iter(_selected(log, arguments))
        while lines := [line(record) for record in itertools.islice(records, WRITTEN_RECORDS)]:
            output.write(b"".join(lines))
    output.flush()
    return 0


def _selected(log: logstore.Log, arguments: argparse.Namespace) -> Iterable[Record]:
    """Return the records that the arguments ask for, lazily unless the last ones are wanted."""
    stop = arguments.stop
    if isinstance(stop, str):
        stop = log.offsets.log_start_offset if stop == "earliest" else None
    key = None if arguments.key is None else arguments.key.encode("utf-8", "surrogateescape")

    def read(start: times.Position) -> Iterable[Record]:
        limit = arguments.limit if key is None and arguments.tail is None else None
        records = log.read(start, stop, isolation=arguments.isolation, limit=limit)
        return records if key is None else (record for record in records if record.key == key)

    if arguments.tail is None:
        records = read(arguments.start)
    else:
        records = _last(log, read, arguments.start, stop, arguments.tail)
    return records if arguments.limit is None else itertools.islice(records, arguments.limit)


def _last(
    log: logstore.Log,
    read: Callable[[times.Position], Iterable[Record]],
    start: times.Position,
    stop: int | datetime | None,
    count: int,
) -> Iterable[Record]:
    """Return the last records before ``stop``, reading back from there as far as it takes."""
    offsets = log.offsets
    first = offsets.log_start_offset if start == "earliest" else start
    end = offsets.log_end_offset if stop is None else stop
    if not isinstance(first, int) or not isinstance(end, int):
        return deque(read(start), maxlen=count)
    window = max(count, 1)
    while True:
        begin = max(first, end - window)
        found = deque(read(begin), maxlen=count)
        if len(found) == count or begin <= first:
            return found
        window *= 4
