"""``logstore verify``: name every damage, read-only."""

from __future__ import annotations

import argparse
from pathlib import Path

from logstore.cli.counted import counted
from logstore.cli.json_lines import print_json
from logstore.cli.progress import progress
from logstore.inspection import Damage, find_partitions, segment_paths
from logstore.state_verification import verify_root
from logstore.verification import verify_partition

EXAMPLE = """\
examples:
  logstore verify data/orders-0
  logstore verify --json copied-disk/kafka-logs | jq -r .file

Checked: every batch's CRC-32C, every record's structure (compressed batches are decompressed), the
order of offsets and gaps in logs never compacted, index entries against the batches they point to,
snapshots, leader epochs, checkpoints.
Nothing is written and no lock is taken; beside a live writer the last batch may look torn.
Exit status: 0 sound, 1 damage was found, 2 could not be read.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "verify",
        help="read everything and name every damage; changes nothing",
        epilog=EXAMPLE,
    )
    parser.add_argument("path", type=Path, nargs="+", help="a partition or a log directory")
    parser.add_argument("--json", action="store_true", help="one JSON object for each damage")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    count = 0
    partition_count = 0
    size_bytes = 0
    for path in arguments.path:
        partitions = find_partitions(path)
        if not partitions:
            message = f"{path} holds no partition: no .log file in it or below"
            raise FileNotFoundError(message)
        for root in sorted({partition.parent for partition in partitions if partition != path}):
            for damage in verify_root(root):
                _print(damage, as_json=arguments.json)
                count += 1
        total = sum(
            file.stat().st_size for partition in partitions for _, file in segment_paths(partition)
        )
        with progress("verifying", total) as bar:
            for partition in partitions:
                for damage in verify_partition(partition, advance=bar.advance):
                    _print(damage, as_json=arguments.json)
                    count += 1
        partition_count += len(partitions)
        size_bytes += total
    if not arguments.json:
        verdict = "sound" if count == 0 else counted(count, "damage")
        print(
            f"{counted(partition_count, 'partition')}, {size_bytes:,} bytes of segments: {verdict}"
        )
    return 1 if count else 0


def _print(damage: Damage, *, as_json: bool) -> None:
    if not as_json:
        print(damage)
        return
    fields = damage._asdict() | {"file": str(damage.path)}
    del fields["path"]
    print_json(fields)
