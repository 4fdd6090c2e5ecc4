"""``logstore follow``: print records as they come."""

from __future__ import annotations

import argparse
import sys

import logstore
from logstore.cli import record_arguments

EXAMPLE = """\
examples:
  logstore follow data/orders-0
  logstore follow data/orders-0 --from earliest -f '%o %T %v\\n'
  logstore follow data/orders-0 --json | jq .value

It goes on over rolls, and when the writer is restarted or there is none yet; Ctrl-C ends it.
The format letters are those of `logstore read`.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "follow",
        help="print records of one partition as they come",
        epilog=EXAMPLE,
    )
    record_arguments.add_directory(parser)
    record_arguments.add_start(parser, "latest")
    record_arguments.add_limit(parser, "end after N records")
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, help="end after so long without a record"
    )
    record_arguments.add_key(parser)
    record_arguments.add_output(parser)
    record_arguments.add_isolation(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    line = record_arguments.line_of(arguments)
    key = record_arguments.key_of(arguments)
    left: int | None = arguments.limit
    output = sys.stdout.buffer
    with (
        logstore.open(arguments.directory, mode="r") as log,
        log.follow(
            arguments.start, timeout=arguments.timeout, isolation=arguments.isolation
        ) as records,
    ):
        while left != 0 and (batch := records.batch()):
            wanted = [record for record in batch if key is None or record.key == key][:left]
            output.write(b"".join([line(record) for record in wanted]))
            output.flush()  # Whoever reads this follows, too.
            if left is not None:
                left -= len(wanted)
    return 0
