"""``logstore delete``: delete topics with all of their records."""

from __future__ import annotations

import argparse
import sys

from logstore.cli import stores

EXAMPLE = """\
examples:
  logstore delete data orders              # says what would go, deletes nothing
  logstore delete data orders --yes
  logstore delete data old-1 old-2 --yes --keep-files

The topics' directories are removed at once. With --keep-files they are only renamed to …-delete:
the next program that opens the store removes them after file.delete.delay.ms.
"""

EXIT_NOT_CONFIRMED = 2


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "delete",
        help="delete topics with all of their records",
        epilog=EXAMPLE,
    )
    stores.add_store_arguments(parser, writes=True)
    parser.add_argument("topic", nargs="+", help="the topics")
    parser.add_argument("--yes", action="store_true", help="do it")
    parser.add_argument(
        "--keep-files", action="store_true", help="rename the directories, do not remove them yet"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    stores.check_is_store(arguments)
    with stores.open_store(arguments, "a" if arguments.yes else "r") as store:
        found = [stores.describe(store, name) for name in dict.fromkeys(arguments.topic)]
        for fields in found:
            if arguments.yes:
                store.delete_topic(fields["topic"])
            stores.print_topic(fields, as_json=arguments.json)
        if arguments.yes and not arguments.keep_files:
            store.purge()
    if not arguments.yes:
        print("logstore: nothing was deleted; add --yes to delete these", file=sys.stderr)
        return EXIT_NOT_CONFIRMED
    return 0
