"""``logstore fork``: a writable copy of a store that shares its sealed segments."""

from __future__ import annotations

import argparse

from logstore.cli.counted import counted
from logstore.cli.json_lines import print_json
from logstore.cli.stores import add_store_arguments, check_is_store, open_store
from logstore.cli.transfer import add_dest, transfer_progress

EXAMPLE = """\
examples:
  logstore fork data experiment
  logstore fork --json data experiment

The fork begins with what the store is now and goes its own way: both may be written, compacted and
deleted, and neither can change what the other one has. Sealed segments are shared as hard links,
and take no space until one side gives them up. To fork a snapshot, use logstore restore.
The store's lock is taken: in a program that has it open, call store.fork().
Exit status: 0 done, 1 damage, 2 could not be read or written, or DEST is taken, 3 locked.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "fork",
        help="make a writable copy of a store that shares its segments",
        epilog=EXAMPLE,
    )
    add_store_arguments(parser, writes=True, prints_each="store")
    add_dest(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    check_is_store(arguments)
    paths = (arguments.store, *arguments.log_dir)
    with (
        open_store(arguments, "a") as store,
        transfer_progress("fork", *paths) as show,
        store.fork(arguments.dest, progress=show) as fork,
    ):
        path, count = fork.paths[0], len(fork.partitions())
    if arguments.json:
        print_json({"path": path, "partitions": count})
    else:
        print(f"{path}: {counted(count, 'partition')}")
    return 0
