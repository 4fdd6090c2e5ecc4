"""``logstore dump``: everything that Kafka's own dump tool shows, as text or JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from logstore.cli.json_lines import print_json
from logstore.cli.record_text import bytes_text, record_line
from logstore.cli.times import format_timestamp
from logstore.errors import LogStoreError
from logstore.file_dump import dump_file, kind_of, log_entries
from logstore.inspection import (
    Damage,
    Entry,
    TransactionOutcomes,
    find_partitions,
    scan_partition,
)
from logstore.partition_state import PartitionState
from logstore.record import Record

EXAMPLE = """\
examples:
  logstore dump data/orders-0                                  # every file, decoded
  logstore dump data/orders-0/00000000000000000000.timeindex   # one file
  logstore dump --records --json data/orders-0 | jq .value
  logstore dump --records --isolation read_committed data/orders-0

With --records: the data records of one partition, one line each, from its log start offset on. As
JSON: offset, timestamp, timestamp_type, key, value, headers, leader_epoch; keys, values and header
values are base64 or null.
Nothing is written and no lock is taken. Exit status 1: damage was met; what could be read was
printed.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "dump",
        help="print batches, records, indexes, snapshots and checkpoints as they are on disk",
        epilog=EXAMPLE,
    )
    parser.add_argument(
        "path", type=Path, nargs="+", help="a file, a partition directory, or a log directory"
    )
    parser.add_argument("--records", action="store_true", help="print data records, not files")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--isolation", choices=["read_uncommitted", "read_committed"], default="read_uncommitted",
        help="with --records: leave out what belongs to aborted or open transactions, or not "
        "(default: read_uncommitted)",
    )  # fmt: skip
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    dump = _dump_records if arguments.records else _dump_files
    status = 0
    for path in arguments.path:
        if not path.exists():
            message = f"{path} does not exist"
            raise FileNotFoundError(message)
        status = max(status, dump(path, arguments))
    return status


# ---- files ---------------------------------------------------------------------------------------
def _dump_files(path: Path, arguments: argparse.Namespace) -> int:
    status = 0
    for file in _files(path):
        try:
            status = max(status, _dump_file(file, as_json=arguments.json))
        except LogStoreError as error:
            print(f"logstore: {error}", file=sys.stderr)
            status = 1
        except FileNotFoundError:
            if file == path:
                raise
            # A temporary file of a writer that is at work.
    return status


def _dump_file(file: Path, *, as_json: bool) -> int:
    kind = kind_of(file.name)
    size_bytes = file.stat().st_size
    if not as_json:
        print(f"{file} ({size_bytes} bytes, {kind})")
    status = 0
    # A segment may be large: its batches are printed as they are read.
    for entry in log_entries(file) if kind == "log" else dump_file(file).entries:
        if isinstance(entry, str):
            print(f"logstore: {file}: {entry}", file=sys.stderr)
            status = 1
        elif as_json:
            print_json({"file": str(file), **entry})
        else:
            print("  " + " ".join(f"{name}: {_text(entry[name])}" for name in entry))
    return status


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    partitions = find_partitions(path)
    roots = sorted({partition.parent for partition in partitions if partition != path})
    for directory in [*roots, *partitions]:
        yield from sorted(file for file in directory.iterdir() if file.is_file())


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


# ---- records -------------------------------------------------------------------------------------
def _dump_records(path: Path, arguments: argparse.Namespace) -> int:
    partitions = [path.parent] if path.is_file() else find_partitions(path)
    if not partitions:
        message = f"{path} holds no partition: no .log file in it or below"
        raise FileNotFoundError(message)
    status = 0
    for partition in partitions:
        for record in _records(partition, arguments.isolation):
            if isinstance(record, str):
                print(f"logstore: {record}", file=sys.stderr)
                status = 1
            elif arguments.json:
                print(json.dumps(record_line(record), ensure_ascii=False, separators=(",", ":")))
            else:
                print(_record_text(record))
    return status


def _records(partition: Path, isolation: str) -> Iterator[Record | str]:
    """Yield data records from the log start offset on, and a sentence for each damage."""
    state = PartitionState.for_reading(str(partition))
    log_start_offset = state.log_start_offset
    outcomes = TransactionOutcomes(partition) if isolation == "read_committed" else None
    for part in scan_partition(partition):
        if isinstance(part, Damage):
            yield str(part)
            continue
        for position, entry in part.entries():
            try:
                for record in _visible(entry, outcomes):
                    if record is None:
                        return
                    if record.offset >= log_start_offset:
                        yield record
            except LogStoreError as error:
                yield f"{partition} position {position}: {error}"


def _visible(entry: Entry, outcomes: TransactionOutcomes | None) -> Iterator[Record | None]:
    """Yield the records of an entry that the isolation shows; None: nothing more will be stable."""
    if outcomes is not None:
        first_unstable = outcomes.first_unstable_offset
        if first_unstable is not None and entry.last_offset >= first_unstable:
            yield None
            return
        if outcomes.is_aborted(entry):
            return
    if not entry.is_control:
        yield from entry.records()


def _record_text(record: Record) -> str:
    fields: dict[str, Any] = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "time": format_timestamp(record.timestamp),
        "key": bytes_text(record.key),
        "value": bytes_text(record.value),
    }
    if record.headers:
        fields["headers"] = {name: bytes_text(value) for name, value in record.headers}
    return " ".join(f"{name}: {value}" for name, value in fields.items())
