"""``logstore takeover``: take over the settings of topics from a broker's metadata."""

from __future__ import annotations

import argparse
from pathlib import Path

from logstore.cli import stores

EXAMPLE = """\
examples:
  logstore takeover /mnt/kafka-logs
  logstore takeover /mnt/disk1 --log-dir /mnt/disk2 --metadata /mnt/controller
  logstore takeover /mnt/kafka-logs --json | jq 'select(.held_because)'

Only held topics are changed: those that were found on the disk, whose settings nobody has stated.
One whose retention was the broker's default stays held; state it with `logstore alter`.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "takeover",
        help="take over the settings of a broker's topics from its metadata",
        epilog=EXAMPLE,
    )
    stores.add_store_arguments(parser, writes=True)
    parser.add_argument(
        "--metadata",
        type=Path,
        metavar="DIRECTORY",
        help="__cluster_metadata-0, or where it is (default: the store's directories)",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    stores.check_is_store(arguments)
    with stores.open_store(arguments, "a") as store:
        found = store.import_configs(arguments.metadata)
        for name in sorted(found.imported.keys() | found.held.keys()):
            fields = stores.describe(store, name)
            if arguments.json:
                fields["held_because"] = found.held.get(name)
            stores.print_topic(fields, as_json=arguments.json)
            if name in found.held and not arguments.json:
                print(f"  {name} is still held: {found.held[name]}")
        for broker, settings in sorted(found.broker_configs.items()):
            shown = ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))
            if shown and not arguments.json:
                whose = f"broker {broker}" if broker else "all brokers"
                print(f"not taken over, defaults of {whose}: {shown}")
    return 0
