"""``logstore restore``: a new store out of a snapshot, whole or as it was at a time."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path

import logstore
from logstore.cli.json_lines import print_json
from logstore.cli.times import parse_position
from logstore.cli.transfer import add_dest, offsets_by_name, summary, transfer_progress

EXAMPLE = """\
examples:
  logstore restore backup/monday data
  logstore restore --to-time 2026-03-01T12:00:00+00:00 backup/monday data
  logstore restore --to-time 2h --json backup/monday data | jq .cuts

The snapshot stays as it is; the new store shares its sealed segments and may be written.
With --to-time every partition ends before its first record, in the order of offsets, whose
timestamp is after T: one with a wrong timestamp in the future ends its partition early, so look at
what was cut. A transaction of which anything is after T is aborted in all partitions. Positions are
those of T. Of compacted topics there is what compaction had left: older values are gone.
Exit status: 0 done, 1 damage, 2 no snapshot, could not be written, or DEST is taken, 3 locked.
"""


def _time(text: str) -> int | datetime:
    found = parse_position(text)
    if isinstance(found, str):
        message = f"{text!r} is no time; give ISO-8601, milliseconds, or an age such as 2h"
        raise argparse.ArgumentTypeError(message)
    return found


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "restore",
        help="make a store of a snapshot, whole or as it was at a time",
        epilog=EXAMPLE,
    )
    parser.add_argument("snapshot", type=Path, help="what logstore snapshot has made")
    add_dest(parser)
    parser.add_argument(
        "--to-time",
        type=_time,
        metavar="T",
        help="the last moment that counts: ISO-8601, milliseconds, or an age such as 2h",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object with all figures")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    with transfer_progress("restore", arguments.snapshot) as show:
        found = logstore.restore(
            arguments.snapshot, arguments.dest, to_time=arguments.to_time, progress=show
        )
    if arguments.json:
        print_json(
            {
                "path": found.path,
                "end_offsets": offsets_by_name(found.end_offsets),
                "cuts": offsets_by_name(found.cuts),
                "aborted": found.aborted,
                "clamped": [
                    {"group": group, "partition": str(place), "position": position}
                    for (group, place), position in sorted(found.clamped.items())
                ],
                "linked_bytes": found.linked_bytes,
                "copied_bytes": found.copied_bytes,
                "copied_because": found.copied_because,
            }
        )
        return 0
    print(summary(found))
    for place, offset in sorted(found.cuts.items()):
        print(f"{place} ends at offset {offset}")
    if found.aborted:
        print(f"{found.aborted:,} commit markers became abort markers")
    for (group, place), position in sorted(found.clamped.items()):
        print(f"group {group} was at {position} of {place}, and is at its end now")
    return 0
