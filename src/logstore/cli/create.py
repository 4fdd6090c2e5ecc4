"""``logstore create``: create a topic, or give one more partitions."""

from __future__ import annotations

import argparse

from logstore.cli import stores

EXAMPLE = """\
examples:
  logstore create data orders --partitions 4
  logstore create data users --config cleanup.policy=compact --config segment.ms=3600000
  logstore create data orders --partitions 8 --grow

The store is created, too, if the directory is missing.
With --grow keys go to other partitions from then on.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "create",
        help="create a topic",
        epilog=EXAMPLE,
    )
    stores.add_store_arguments(parser, writes=True)
    parser.add_argument("topic", help="1 to 249 letters, digits, '.', '_' and '-'")
    parser.add_argument("--partitions", type=int, metavar="COUNT", help="how many (default: 1)")
    parser.add_argument(
        "--grow", action="store_true", help="the topic is there: give it more partitions"
    )
    stores.add_config_argument(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    config = stores.settings_of(arguments.config)
    if arguments.grow and (arguments.partitions is None or config):
        message = "--grow goes with --partitions, and without --config"
        raise ValueError(message)
    if arguments.grow:
        stores.check_is_store(arguments)
    with stores.open_store(arguments, "a") as store:
        if arguments.grow:
            store.create_partitions(arguments.topic, arguments.partitions)
        else:
            store.create_topic(arguments.topic, partitions=arguments.partitions, config=config)
        stores.print_topic(stores.describe(store, arguments.topic), as_json=arguments.json)
    return 0
