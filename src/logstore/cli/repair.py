"""``logstore repair``: move damage into quarantine, so that the rest can be read again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import logstore
from logstore.cli.progress import progress
from logstore.inspection import find_partitions, segment_paths
from logstore.partition_state import PartitionState
from logstore.repairing import Repair, repair_partition

EXAMPLE = """\
examples:
  logstore verify data/orders-0 && echo sound
  logstore repair data/orders-0
  logstore repair --json data | jq .quarantine

Nothing is deleted: what is cut goes into a *.quarantine file beside the segment, and each line says
which offsets that may cost. Valid batches behind the damage stay at their offsets. Indexes,
snapshots and epochs are made again from the log.
The writer's lock is taken: stop the broker or program first.
Exit status: 0 nothing was damaged or all is repaired, 3 locked.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "repair",
        help="move damaged bytes into a quarantine and rebuild what depends on them",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", type=Path, nargs="+", help="a partition or a log directory")
    parser.add_argument("--json", action="store_true", help="one JSON object for each repair")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    count = 0
    for path in arguments.path:
        partitions = find_partitions(path)
        if not partitions:
            message = f"{path} holds no partition: no .log file in it or below"
            raise FileNotFoundError(message)
        total = sum(
            file.stat().st_size for partition in partitions for _, file in segment_paths(partition)
        )
        with progress("repairing", total) as bar:
            for partition in partitions:
                state = PartitionState.for_writing(str(partition))
                try:
                    for repair in repair_partition(partition, advance=bar.advance):
                        _print(repair, as_json=arguments.json)
                        count += 1
                finally:
                    state.close(clean=False)
                # Opening makes again what was set aside.
                logstore.open(partition).close()
    if not arguments.json:
        print("nothing was damaged" if count == 0 else f"{count} repairs; run logstore verify")
    return 0


def _print(repair: Repair, *, as_json: bool) -> None:
    if not as_json:
        print(repair)
        return
    fields = repair._asdict() | {"file": str(repair.path), "quarantine": str(repair.quarantine)}
    del fields["path"]
    print(json.dumps(fields, separators=(",", ":")))
