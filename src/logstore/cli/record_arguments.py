"""Which records a command is asked for, and how it prints them: what several commands share."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path
from typing import Final

import logstore
from logstore.checkpoint import topic_partition_of
from logstore.cli import record_text, times

POSITION: Final = "OFFSET|earliest|latest|ISO-8601|2h"


def add_directory(parser: argparse.ArgumentParser) -> None:
    """Add the partition directory."""
    parser.add_argument("directory", type=Path, help="a partition directory, such as data/orders-0")


def add_start(parser: argparse.ArgumentParser, default: str = "earliest") -> None:
    """Add ``--from``."""
    parser.add_argument(
        "--from", dest="start", metavar=POSITION, type=times.parse_position, default=default,
        help=f"first record (default: {default}); a time without zone is local",
    )  # fmt: skip


def add_stop(parser: argparse.ArgumentParser) -> None:
    """Add ``--to``; :func:`stop_of` is what was said."""
    parser.add_argument(
        "--to", dest="stop", metavar=POSITION, type=times.parse_position,
        help="end, exclusive (default: the log end)",
    )  # fmt: skip


def stop_of(log: logstore.Log, arguments: argparse.Namespace) -> int | datetime | None:
    """Return where to end, exclusive; None: at the log end."""
    stop: times.Position | None = arguments.stop
    if isinstance(stop, str):
        return log.offsets.log_start_offset if stop == "earliest" else None
    return stop


def add_limit(parser: argparse.ArgumentParser, text: str) -> None:
    """Add ``-n``."""
    parser.add_argument("-n", dest="limit", metavar="N", type=count, help=text)


def count(text: str) -> int:
    """
    Return a number of records.

    Raises:
        argparse.ArgumentTypeError: It is negative, or no number.
    """
    if not text.isdecimal():
        message = f"{text!r} is no number of records"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add ``--key``; :func:`key_of` is what was said."""
    parser.add_argument("--key", help="only records with this key")


def key_of(arguments: argparse.Namespace) -> bytes | None:
    """Return the key that records must have, None: any."""
    key: str | None = arguments.key
    return None if key is None else key.encode("utf-8", "surrogateescape")


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add ``-f`` and ``--json``; :func:`line_of` is what was said."""
    output = parser.add_mutually_exclusive_group()
    output.add_argument(
        "-f", dest="format", metavar="FORMAT", help=r"how to print a record (default: '%%v\n')"
    )
    output.add_argument("--json", action="store_true", help="one JSON object a line")


def line_of(arguments: argparse.Namespace) -> record_text.Piece:
    """Return what makes a record's line."""
    if arguments.json:
        return record_text.json_line
    topic, partition = topic_partition_of(arguments.directory.resolve().name) or ("", 0)
    return record_text.compile_format(
        arguments.format or "%v\\n", topic, partition, escape=sys.stdout.isatty()
    )


def add_isolation(parser: argparse.ArgumentParser) -> None:
    """Add ``--isolation``."""
    parser.add_argument(
        "--isolation", choices=["read_committed", "read_uncommitted"], default="read_committed",
        help="whether records of aborted and open transactions are included "
        "(default: read_committed)",
    )  # fmt: skip
