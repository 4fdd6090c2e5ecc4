"""``logstore info``: what a partition or a log directory holds."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

import logstore
from logstore.checkpoint import PARTITION_METADATA, PartitionMetadataFile, topic_partition_of
from logstore.cli import plans, sinks
from logstore.cli.copied_logs import is_internal, print_left_out
from logstore.cli.json_lines import print_json
from logstore.cli.times import format_timestamp
from logstore.errors import LogStoreError
from logstore.inspection import Damage, find_partitions, scan_log_file, segment_paths
from logstore.log_directory import is_log_directory
from logstore.partition_state import PartitionState

# So many names of a list are shown; --json has all.
NAMES_SHOWN = 3

EXAMPLE = """\
examples:
  logstore info data/orders-0
  logstore info --sinks data
  logstore info --json copied-disk/kafka-logs | jq -r 'select(.size_bytes > 1e9).partition'

Reads the last segment, the small files, and the headers of what retention would remove next;
`logstore verify` reads everything. Settings are those of `logstore create` and `alter`; the
defaults of a program that opens the store are not known here (`logstore retention --config`).
Nothing is written and no lock is taken.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "info",
        help="offsets, sizes and state of partitions",
        epilog=EXAMPLE,
    )
    parser.add_argument("path", type=Path, nargs="+", help="a partition or a log directory")
    parser.add_argument("--json", action="store_true", help="one JSON object for each partition")
    parser.add_argument(
        "--sinks", action="store_true", help="instead: what sinks have committed to a store"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.sinks:
        for path in arguments.path:
            sinks.print_sinks(path, as_json=arguments.json)
        return 0
    with contextlib.ExitStack() as opened:
        stores: dict[Path, logstore.LogStore] = {}
        for path in arguments.path:
            partitions = find_partitions(path)
            if not partitions:
                message = f"{path} holds no partition: no .log file in it or below"
                raise FileNotFoundError(message)
            left_out = 0
            for partition in partitions:
                fields = describe(partition)
                fields["retention"] = _retention(partition.resolve(), stores, opened)
                if arguments.json:
                    print_json(fields)
                elif (
                    len(partitions) > 1
                    and is_internal(partition.name)
                    and not fields["log_end_offset"]
                ):
                    left_out += 1
                else:
                    _print(fields)
            print_left_out(left_out)
    return 0


def _retention(
    partition: Path, stores: dict[Path, logstore.LogStore], opened: contextlib.ExitStack
) -> str | None:
    """Say what retention removes next, None: a log that stands alone is given its settings."""
    name = topic_partition_of(partition.name)
    if name is None or not is_log_directory(str(partition.parent)):
        return None
    try:
        store = stores.get(partition.parent)
        if store is None:
            store = logstore.open_store(partition.parent, mode="r", lazy=True)
            stores[partition.parent] = opened.enter_context(store)
        if name not in store:
            return None  # A broker's own, or set aside.
        if store.is_held(name.topic):
            return plans.HELD
        log = store[name]
        return plans.sentence_of(plans.fields_of(log, log.retention_plan()))
    except (LogStoreError, OSError) as error:
        return f"not known: {error}"


def describe(partition: Path) -> dict[str, Any]:
    """Return what the files of a partition tell, without reading more than its last segment."""
    segments = segment_paths(partition)
    state = PartitionState.for_reading(str(partition))
    name = topic_partition_of(partition.name)
    log_end_offset = max(state.log_start_offset, segments[-1][0] if segments else 0)
    torn_bytes = 0
    last_timestamp = -1
    if segments:
        for part in scan_log_file(segments[-1][1]):
            if isinstance(part, Damage):
                torn_bytes += part.size_bytes
                continue
            log_end_offset = int(part.batches["last_offset"][-1]) + 1
            last_timestamp = max(last_timestamp, int(part.batches["max_timestamp"].max()))
    sizes = [path.stat().st_size for _, path in segments]
    names = [path.name for path in partition.iterdir()]
    return {
        "path": str(partition),
        "topic": name[0] if name else None,
        "partition": name[1] if name else None,
        "topic_id": _topic_id(partition),
        "log_start_offset": max(state.log_start_offset, segments[0][0] if segments else 0),
        "log_end_offset": log_end_offset,
        "recovery_point": state.recovery_point,
        "high_watermark": state.high_watermark,
        "clean_shutdown": state.had_clean_shutdown,
        "segments": len(segments),
        "size_bytes": sum(sizes),
        "unreadable_tail_bytes": torn_bytes,
        "last_segment_max_timestamp": last_timestamp,
        "snapshots": sum(name.endswith(".snapshot") for name in names),
        "leftovers": sorted(
            name for name in names if name.endswith((".deleted", ".cleaned", ".swap"))
        ),
    }


def _topic_id(partition: Path) -> str | None:
    path = partition / PARTITION_METADATA
    if not path.exists():
        return None
    try:
        return str(PartitionMetadataFile(path).read().topic_id)
    except (LogStoreError, ValueError):
        return None


def _print(fields: dict[str, Any]) -> None:
    print(fields["path"])
    for name, value in fields.items():
        if name == "path" or value in (None, [], -1):
            continue
        if name == "unreadable_tail_bytes" and not value:
            continue
        shown: object = value
        if name == "last_segment_max_timestamp":
            shown = f"{value} ({format_timestamp(value)})"
        elif name.endswith("_bytes"):
            shown = f"{value:,}"
        elif isinstance(value, list):
            shown = ", ".join(value[:NAMES_SHOWN])
            if len(value) > NAMES_SHOWN:
                shown = f"{shown} and {len(value) - NAMES_SHOWN} more"
        print(f"  {name.replace('_', ' ')}: {shown}")
