"""``logstore handover``: tell a broker that has never run of the topics of a store."""

from __future__ import annotations

import argparse
from pathlib import Path

from logstore.bootstrap_metadata import BOOTSTRAP_FILE
from logstore.cli import stores
from logstore.cli.counted import counted
from logstore.cli.json_lines import print_json

EXAMPLE = """\
examples:
  kafka-storage.sh format --ignore-formatted -t CLUSTER_ID -c server.properties
  logstore handover data --bootstrap metadata/bootstrap.checkpoint
  kafka-server-start.sh server.properties

For a store that was made here. In server.properties log.dirs is the store's directory, node.id and
CLUSTER_ID are those in its meta.properties, and metadata.log.dir is a new directory, which `format`
fills. The topics get the ids that they have. Retention and cleanup policy are told of every topic,
as they are in force here: a broker's defaults would delete after seven days.
A broker's own directory that was taken over goes back to it without this.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "handover",
        help="tell a broker that has never run of the topics of a store",
        epilog=EXAMPLE,
    )
    stores.add_store_arguments(parser, writes=True)
    parser.add_argument(
        "--bootstrap",
        type=Path,
        metavar="FILE",
        required=True,
        help=f"{BOOTSTRAP_FILE} in the broker's metadata.log.dir, made by `kafka-storage format`",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    stores.check_is_store(arguments)
    with stores.open_store(arguments, "a") as store:
        found = store.export_metadata(arguments.bootstrap)
        for name, config in found.configs.items():
            count = len(store[name])
            if arguments.json:
                print_json({"topic": name, "partitions": count, "config": config})
                continue
            settings = "  ".join(f"{key}={value}" for key, value in sorted(config.items()))
            print(f"{name}  {counted(count, 'partition')}  {settings}")
    return 0
