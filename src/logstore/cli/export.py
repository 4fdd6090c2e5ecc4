"""``logstore export``: write the records of one partition to a file for other tools."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import logstore
from logstore.arrow_buffers import DEFAULT_COLUMNS, column_names
from logstore.checkpoint import topic_partition_of
from logstore.cli import record_arguments, record_text
from logstore.cli.counted import counted
from logstore.cli.progress import Progress, progress
from logstore.extras import import_extra
from logstore.readable_log import start_offset, stop_offset
from logstore.record import Record

EXAMPLE = """\
examples:
  logstore export data/orders-0 orders.parquet
  logstore export data/orders-0 orders.csv --from 2h --columns offset,timestamp,key,value
  logstore export backup/orders-0 orders.out --format jsonl --force

formats, by the suffix of the file or --format:
  parquet  .parquet, .pq                 jsonl  .jsonl, .ndjson, .json: what `read --json` writes
  arrow    .arrow, .feather, .ipc        csv    .csv: keys and values have to be text
columns: offset, timestamp, key, value, headers; and topic, partition, timestamp_type, leader_epoch.
The file gets its name once it is whole and on the device.
"""

FORMAT_OF: Final = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
}
PART_SUFFIX: Final = ".part"

# A row group: enough to compress well and to skip by, little enough to hold in memory.
GROUP_ROWS: Final = 128 << 10
GROUP_BYTES: Final = 64 << 20
WRITTEN_LINES: Final = 1024


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "export",
        help="write records of one partition to a Parquet, Arrow, JSON lines or CSV file",
        epilog=EXAMPLE,
    )
    record_arguments.add_directory(parser)
    parser.add_argument("output", type=Path, help="the file to write")
    parser.add_argument(
        "--format", choices=sorted(set(FORMAT_OF.values())),
        help="what to write (default: by the suffix of the file)",
    )  # fmt: skip
    record_arguments.add_start(parser)
    record_arguments.add_stop(parser)
    parser.add_argument(
        "--columns", metavar="NAMES", help="which, in this order, joined by commas (default: five)"
    )
    record_arguments.add_isolation(parser)
    parser.add_argument(
        "--force", action="store_true", help="replace the file if there is one already"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    output: Path = arguments.output
    kind = arguments.format or FORMAT_OF.get(output.suffix.lower())
    if not output.parent.is_dir():
        raise FileNotFoundError(f"{output.parent} is no directory; make it, or write elsewhere")
    if kind is None:
        known = ", ".join(sorted(FORMAT_OF))
        raise ValueError(f"{output} has none of the suffixes {known}; say --format")
    if output.exists() and not arguments.force:
        raise FileExistsError(f"{output} is there already; replace it with --force")
    write = {"parquet": _write_parquet, "arrow": _write_arrow, "jsonl": _write_jsonl}.get(
        kind, _write_csv
    )
    columns = None
    if arguments.columns is not None:
        columns = [name.strip() for name in arguments.columns.split(",")]
    with logstore.open(arguments.directory, mode="r") as log:
        stop = record_arguments.stop_of(log, arguments)
        first = start_offset(log, arguments.start, arguments.isolation)
        end = max(first, stop_offset(log, stop, arguments.isolation))
        names = column_names(columns)
        with (
            _whole_file(output, replace=arguments.force) as file,
            progress(f"export {output.name}", end - first) as bar,
        ):
            records = write(Export(log, range(first, end), names, arguments.isolation, bar), file)
    print(f"logstore: {counted(records, 'record')} in {output}", file=sys.stderr)
    return 0


@contextlib.contextmanager
def _whole_file(path: Path, *, replace: bool) -> Iterator[IO[bytes]]:
    """
    Give a file that gets the name ``path`` at the end of the block, whole and durable.

    If the block fails there is no file. What a killed run has left is overwritten.
    """
    part = path.with_name(path.name + PART_SUFFIX)
    with open(os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.path.samestat(os.fstat(file.fileno()), part.stat())
        except (BlockingIOError, FileNotFoundError):
            is_ours = False  # Another export is at it, or has just given the file its name.
        if not is_ours:
            raise BlockingIOError(f"another export is writing {part}; wait for it")
        try:
            file.truncate(0)
            yield file
            file.flush()
            os.fsync(file.fileno())
            _give_name(part, path, replace=replace)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _give_name(part: Path, path: Path, *, replace: bool) -> None:
    if not replace:
        try:
            path.hardlink_to(part)  # Which a file in the way stops.
        except FileExistsError as error:
            message = f"{path} came to be meanwhile; replace it with --force"
            raise FileExistsError(message) from error
        except OSError:  # No links in this file system.
            part.rename(path)
        else:
            part.unlink()
        return
    part.rename(path)


class Export:
    """What is written: record batches, or records, while the bar moves on."""

    def __init__(
        self,
        log: logstore.Log,
        offsets: range,
        names: tuple[str, ...],
        isolation: logstore.Isolation,
        bar: Progress,
    ) -> None:
        self.log = log
        self.names = names
        self._offsets = offsets
        self._isolation: logstore.Isolation = isolation
        self._bar = bar

    @property
    def scan(self) -> logstore.Scan:
        """The range as Arrow data."""
        first, end = self._offsets.start, self._offsets.stop
        return self.log.scan(first, end, columns=self.names, isolation=self._isolation)

    def batches(self) -> Iterator[Any]:
        """Yield record batches."""
        for batch in self.scan.to_arrow():
            yield batch
            self._bar.advance(batch.num_rows)

    def groups(self) -> Iterator[Any]:
        """Yield tables of the size of a row group."""
        pa = import_extra("pyarrow")
        gathered: list[Any] = []
        rows = size_bytes = 0
        for batch in self.batches():
            gathered.append(batch)
            rows += batch.num_rows
            size_bytes += batch.nbytes
            if rows >= GROUP_ROWS or size_bytes >= GROUP_BYTES:
                yield pa.Table.from_batches(gathered)
                gathered, rows, size_bytes = [], 0, 0
        if gathered:
            yield pa.Table.from_batches(gathered)

    def records(self) -> Iterator[list[Record]]:
        """Yield lists of records."""
        first, end = self._offsets.start, self._offsets.stop
        records = self.log.read(first, end, isolation=self._isolation)
        while block := list(islice(records, WRITTEN_LINES)):
            yield block
            self._bar.advance(len(block))


def _write_parquet(export: Export, file: IO[bytes]) -> int:
    parquet = import_extra("pyarrow.parquet")
    rows = 0
    with parquet.ParquetWriter(file, export.scan.schema, compression="zstd") as writer:
        for table in export.groups():
            writer.write_table(table, row_group_size=max(table.num_rows, 1))
            rows += table.num_rows
    return rows


def _write_arrow(export: Export, file: IO[bytes]) -> int:
    ipc = import_extra("pyarrow.ipc")
    rows = 0
    with ipc.new_file(file, export.scan.schema) as writer:
        for batch in export.batches():
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


# ---- text ----------------------------------------------------------------------------------------
def _write_jsonl(export: Export, file: IO[bytes]) -> int:
    line = _json_line(export)
    rows = 0
    for block in export.records():
        file.write(record_text.encoded("".join(map(line, block))))
        rows += len(block)
    return rows


def _json_line(export: Export) -> Callable[[Record], str]:
    """Return what makes a line: that of ``read --json``, or with the selected fields only."""
    if export.names == DEFAULT_COLUMNS:
        return record_text.json_text
    topic, partition = topic_partition_of(Path(export.log.directory).resolve().name) or ("", 0)
    return record_text.json_of(export.names, topic, partition)


def _write_csv(export: Export, file: IO[bytes]) -> int:
    """Write rows with a header; null is nothing, empty text is quoted, headers are JSON."""
    csv, pa = import_extra("pyarrow.csv"), import_extra("pyarrow")
    schema = pa.schema(
        [
            pa.field(field.name, pa.string() if field.name in TEXTS else field.type)
            for field in export.scan.schema
        ]
    )
    rows = 0
    with csv.CSVWriter(file, schema) as writer:
        for batch in export.batches():
            columns = [
                _as_text(pa, batch, field.name) if field.name in TEXTS else batch[field.name]
                for field in schema
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            rows += batch.num_rows
    return rows


TEXTS: Final = ("key", "value", "headers")


def _as_text(pa: Any, batch: Any, name: str) -> Any:
    column = batch[name]
    if name == "headers":
        if len(column.flatten()) == 0:
            return pa.nulls(len(column), pa.string())
        return pa.array((_headers_text(each) for each in column.to_pylist()), pa.string())
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid as error:
        row = next(row for row, value in enumerate(column.to_pylist()) if not _is_text(value))
        where = f" at offset {batch['offset'][row]}" if "offset" in batch.schema.names else ""
        raise ValueError(
            f"a {name}{where} is not UTF-8, which CSV cannot hold; export to parquet, arrow or"
            " jsonl"
        ) from error


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or value.decode("utf-8") is not None
    except UnicodeDecodeError:
        return False


def _headers_text(headers: Iterable[dict[str, Any]]) -> str | None:
    pairs = [record_text.header_json(each["key"], each["value"]) for each in headers]
    return json.dumps(pairs, ensure_ascii=False, separators=(",", ":")) if pairs else None
