"""``logstore repair``: move damage into quarantine, so that the rest can be read again."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from logstore.cli.counted import counted
from logstore.cli.json_lines import print_json
from logstore.cli.progress import progress
from logstore.inspection import find_partitions, segment_paths
from logstore.log_directory import is_log_directory
from logstore.repairing import Repair, repair_partition, repair_root
from logstore.verification import verify_partition

EXAMPLE = """\
examples:
  logstore verify data/orders-0 || logstore repair data/orders-0
  logstore repair --json data | jq .quarantine

Nothing is deleted: what is cut goes into a *.quarantine file beside the segment, and each line says
which offsets that may cost. Valid batches behind the damage stay at their offsets. Indexes,
snapshots, epochs and checkpoints that are damaged are set aside in the same way and made again from
the log. What is not damaged is not touched.
The writer's lock is taken: stop the broker or program first.
Exit status: 0 nothing is damaged any more, 1 damage is left that no repair can mend (offsets that
are missing), 2 could not be read or written, 3 locked.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "repair",
        help="move damaged bytes into a quarantine and make again what depends on them",
        epilog=EXAMPLE,
    )
    parser.add_argument("path", type=Path, nargs="+", help="a partition or a log directory")
    parser.add_argument("--json", action="store_true", help="one JSON object for each repair")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    # What the load that follows has to say is in the repairs.
    logger = logging.getLogger("logstore")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return _repair(arguments)
    finally:
        logger.setLevel(level)


def _repair(arguments: argparse.Namespace) -> int:
    repair_count = 0
    left_count = 0
    for path in arguments.path:
        partitions = find_partitions(path)
        if not partitions:
            message = f"{path} holds no partition: no .log file in it or below"
            raise FileNotFoundError(message)
        for root in sorted({partition.parent for partition in partitions if partition != path}):
            if is_log_directory(str(root)):
                for repair in repair_root(root):
                    _print(repair, as_json=arguments.json)
                    repair_count += 1
        total = sum(
            file.stat().st_size for partition in partitions for _, file in segment_paths(partition)
        )
        with progress("repairing", total) as bar:
            for partition in partitions:
                for repair in repair_partition(partition, advance=bar.advance):
                    if arguments.json or not repair.is_consequence:
                        _print(repair, as_json=arguments.json)
                    repair_count += not repair.is_consequence
                for damage in verify_partition(partition):
                    print(f"logstore: cannot be repaired: {damage}", file=sys.stderr)
                    left_count += 1
    if not arguments.json:
        done = (
            "nothing was damaged"
            if repair_count == left_count == 0
            else counted(repair_count, "repair")
        )
        left = f", {counted(left_count, 'damage')} cannot be repaired" if left_count else ""
        print(f"{done}{left}")
    return 1 if left_count else 0


def _print(repair: Repair, *, as_json: bool) -> None:
    if not as_json:
        print(repair)
        return
    fields = repair._asdict() | {
        "file": str(repair.path),
        "quarantine": None if repair.quarantine is None else str(repair.quarantine),
    }
    del fields["path"]
    print_json(fields)
