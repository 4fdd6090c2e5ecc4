"""``logstore read``: print records."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime

import logstore
from logstore.cli import record_arguments, times
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
    )
    record_arguments.add_directory(parser)
    record_arguments.add_start(parser)
    record_arguments.add_stop(parser)
    record_arguments.add_limit(parser, "at most N records")
    parser.add_argument(
        "--tail", type=record_arguments.count, metavar="N", help="only the last N records"
    )
    record_arguments.add_key(parser)
    record_arguments.add_output(parser)
    record_arguments.add_isolation(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    line = record_arguments.line_of(arguments)
    output = sys.stdout.buffer
    with logstore.open(arguments.directory, mode="r") as log:
        records = iter(_selected(log, arguments))
        while lines := [line(record) for record in itertools.islice(records, WRITTEN_RECORDS)]:
            output.write(b"".join(lines))
    output.flush()
    return 0


def _selected(log: logstore.Log, arguments: argparse.Namespace) -> Iterable[Record]:
    """Return the records that the arguments ask for, lazily unless the last ones are wanted."""
    stop = record_arguments.stop_of(log, arguments)
    key = record_arguments.key_of(arguments)

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
