"""``logstore follow``: print records as they come."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import logstore
from logstore.checkpoint import topic_partition_of
from logstore.cli import record_text, times

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
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", type=Path, help="a partition directory, such as data/orders-0")
    parser.add_argument(
        "--from", dest="start", metavar="OFFSET|earliest|latest|ISO-8601|2h",
        type=times.parse_position, default="latest", help="first record (default: latest)",
    )  # fmt: skip
    parser.add_argument("-n", dest="limit", metavar="N", type=int, help="end after N records")
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, help="end after so long without a record"
    )
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


def _run(arguments: argparse.Namespace) -> int:
    topic, partition = topic_partition_of(arguments.directory.resolve().name) or ("", 0)
    line: record_text.Piece = record_text.json_line
    if not arguments.json:
        line = record_text.compile_format(
            arguments.format or "%v\\n", topic, partition, escape=sys.stdout.isatty()
        )
    key = None if arguments.key is None else arguments.key.encode("utf-8", "surrogateescape")
    left = arguments.limit
    if left is not None and left < 0:
        raise ValueError(f"-n {left} is negative; give how many records")
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
