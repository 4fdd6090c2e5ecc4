"""``logstore snapshot``: a store as it is now, as another store that shares its segments."""

from __future__ import annotations

import argparse
from pathlib import Path

from logstore.cli.json_lines import print_json
from logstore.cli.stores import add_store_arguments, check_is_store, open_store
from logstore.cli.transfer import add_dest, offsets_by_name, summary, transfer_progress

EXAMPLE = """\
examples:
  logstore snapshot data backup/monday
  logstore snapshot data /mnt/disk/tuesday --base /mnt/disk/monday
  logstore snapshot --json data backup/monday | jq .end_offsets

The snapshot opens as any store does, here and in a broker. On the same file system sealed segments
are hard links, which take no space; only the open segment of each partition is copied. On another
one they are copied, and --base, an earlier snapshot there, saves copying what it has already, as
rsync's --link-dest does. Neither side can change what the other one has.
Until it is whole it is called DEST.incomplete; what a crash left there is taken away the next time.
A store that a program has open is locked: call store.snapshot() in that program, which stops its
writers for a moment only.
Exit status: 0 done, 1 damage, 2 could not be read or written, or DEST is taken, 3 locked.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "snapshot",
        help="make a store of what a store is now, sharing its segments",
        epilog=EXAMPLE,
    )
    add_store_arguments(parser, writes=True, prints_each="store")
    add_dest(parser)
    parser.add_argument(
        "--base",
        type=Path,
        metavar="EARLIER",
        help="an earlier snapshot on the file system of DEST: what it has is not copied again",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    check_is_store(arguments)
    paths = (arguments.store, *arguments.log_dir)
    with (
        open_store(arguments, "a") as store,
        transfer_progress("snapshot", *paths) as show,
    ):
        found = store.snapshot(arguments.dest, base=arguments.base, progress=show)
    if arguments.json:
        print_json(
            {
                "path": found.path,
                "taken_ms": found.taken_ms,
                "end_offsets": offsets_by_name(found.end_offsets),
                "linked_bytes": found.linked_bytes,
                "copied_bytes": found.copied_bytes,
                "reused_bytes": found.reused_bytes,
                "copied_because": found.copied_because,
            }
        )
        return 0
    print(summary(found))
    return 0
