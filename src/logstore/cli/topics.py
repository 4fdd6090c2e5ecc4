"""``logstore topics``: the topics of a store."""

from __future__ import annotations

import argparse

from logstore.cli import stores

EXAMPLE = """\
examples:
  logstore topics data
  logstore topics /mnt/disk1/kafka-logs --log-dir /mnt/disk2/kafka-logs --json | jq .topic

Works on a broker's log directories, too. Nothing is written and no lock is taken.
`logstore info` shows the offsets of each partition.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "topics",
        help="list the topics of a store",
        epilog=EXAMPLE,
    )
    stores.add_store_arguments(parser, writes=False)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    with stores.open_store(arguments, "r") as store:
        for name in store:
            stores.print_topic(stores.describe(store, name), as_json=arguments.json)
        if not arguments.json:
            for path in store.set_aside:
                print(f"set aside by a broker: {path}")
    return 0
