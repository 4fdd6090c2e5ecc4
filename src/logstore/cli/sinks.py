"""``logstore forget-sink``, and the lines of ``logstore info --sinks``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import logstore
from logstore.cli import stores
from logstore.cli.json_lines import print_json
from logstore.cli.times import format_timestamp
from logstore.sink_commits import CommittedVersion

EXAMPLE = """\
examples:
  logstore info --sinks data                       # which sinks there are, and their versions
  logstore forget-sink data nightly-load           # says what would be forgotten, changes nothing
  logstore forget-sink data nightly-load --yes
  logstore forget-sink data 8f14e45f-ceea-467f-a9c1-1b2d3c4d5e6f --topic orders --yes

A sink is a streaming query of Spark, by the id in its checkpoint, or a job with txnAppId. A version
that it has committed is never written again; once that is forgotten, it is: a query that is still
running, or starts again from its checkpoint, may then write its last batch twice.
"""

EXIT_NOT_CONFIRMED = 2


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "forget-sink",
        help="forget what a sink has committed",
        epilog=EXAMPLE,
    )
    stores.add_store_arguments(parser, writes=True, prints_each="sink")
    parser.add_argument("sink", help="the sink's id")
    parser.add_argument("--topic", help="only what it has committed to this topic")
    parser.add_argument("--yes", action="store_true", help="do it")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    stores.check_is_store(arguments)
    with stores.open_store(arguments, "a" if arguments.yes else "r") as store:
        found = [
            each
            for each in store.sinks()
            if each.sink_id == arguments.sink and arguments.topic in (None, each.topic)
        ]
        if not found:
            message = f"no sink {arguments.sink!r} is noted here; see logstore info --sinks"
            raise LookupError(message)
        if arguments.yes:
            store.forget_sink(arguments.sink, arguments.topic)
    for each in found:
        print_sink(each, as_json=arguments.json)
    if not arguments.yes:
        print("logstore: nothing was forgotten; add --yes to forget these", file=sys.stderr)
        return EXIT_NOT_CONFIRMED
    return 0


def print_sinks(path: Path, *, as_json: bool) -> None:
    """Print what sinks have committed to a store."""
    with logstore.open_store(path, mode="r", lazy=True) as store:
        for each in store.sinks():
            print_sink(each, as_json=as_json)


def print_sink(sink: CommittedVersion, *, as_json: bool) -> None:
    """Print one sink and topic on a line."""
    if as_json:
        print_json(sink._asdict())
        return
    print(
        f"{sink.topic}  sink {sink.sink_id}  version {sink.version}"
        f"  committed {format_timestamp(sink.time)}"
    )
