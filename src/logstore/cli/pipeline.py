"""``logstore pipeline``: files into a topic, a topic into Parquet or a database, by Spark."""

from __future__ import annotations

import argparse
import contextlib
import logging
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from logstore.cli.counted import counted
from logstore.cli.json_lines import print_json
from logstore.cli.stores import settings_of
from logstore.errors import CorruptRecordError

EXAMPLE = """\
examples:
  logstore pipeline ingest data flights incoming/ --format csv --option header=true --key carrier \\
      --timestamp time_hour --partitions 4 --checkpoint state/ingest-flights
  logstore pipeline export data flights lake/flights --schema 'carrier string, dep_delay double' \\
      --partition-by 'day=date(_timestamp)' --checkpoint state/export-flights
  logstore pipeline export data flights 'jdbc:derby:lake/db;create=true' --table flights \\
      --schema 'carrier string, dep_delay double' --checkpoint state/flights-table

Each runs until nothing is left and ends; run it again for what has come since. A run that was
killed is completed by the next: each row is there once. A checkpoint belongs to one pipeline.
What fails is said in one line; --verbose shows what Spark says of it.
Exit status: 0 done, 1 damaged records, 2 it failed, 130 interrupted.
Needs the extra `spark-local`, or a Spark of your own, and `formats`.
"""
INGEST_EXAMPLE = """\
examples:
  logstore pipeline ingest data orders incoming/ --checkpoint state/orders
  logstore pipeline ingest data orders incoming/ --format json --schema 'id long, total double' \\
      --key id --checkpoint state/orders --json

A file that comes later is taken by the next run; one that is changed in place is not noticed.
"""
EXPORT_EXAMPLE = """\
examples:
  logstore pipeline export data orders lake/orders --schema 'id long, total double' \\
      --partition-by 'day=date(_timestamp)' --target-file-size 64MiB --checkpoint state/lake
  logstore pipeline export data orders lake/orders --schema 'id long' --mode quarantine \\
      --quarantine lake/orders-refused --checkpoint state/lake
  logstore pipeline export data orders jdbc:postgresql://db/shop --table orders \\
      --schema 'id long, total double' --option user=shop --password-file secrets/db \\
      --driver-jar postgresql.jar --checkpoint state/orders-table

Columns are those of the value, and _partition, _offset, _timestamp, _key; in a table _batch as
well, by which a repeated micro-batch is known. Derby is the database that comes with Spark.
"""
UNITS = {
    "": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}
_SIZE = re.compile(r"(\d+)\s*([A-Za-z]*)", re.ASCII)
# Of the text of an error of Spark's: a line of ours in it, what stands before the cause, and lines
# that say where it was.
_OWN_ERROR = re.compile(r"LOGSTORE_[A-Z_]+: [^\n]*")
_BEFORE_THE_CAUSE = re.compile(
    r"^An error occurred while calling .*|^\[STREAM_FAILED\] .* terminated with exception: |"
    r"^: |SQLSTATE: \w+.*$"
)
_OF_THE_STACK = ("\tat ", "\t... ", "JVM stacktrace", "  File ", "    ", "Traceback ")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "pipeline",
        help="files into a topic, a topic into Parquet or a database, by Spark",
        epilog=EXAMPLE,
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)

    ingest = _add(kinds, "ingest", "append the rows of files to a topic", INGEST_EXAMPLE)
    ingest.add_argument("files", type=Path, help="a directory of files")
    ingest.add_argument(
        "--format", default="parquet", choices=["csv", "json", "parquet", "orc", "text"],
        help="of the files (default: parquet)",
    )  # fmt: skip
    ingest.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE",
        help="of Spark's reader of the format, such as header=true",
    )  # fmt: skip
    ingest.add_argument(
        "--schema", help="of the files, such as 'id long, total double' (default: inferred once)"
    )
    _add_value(ingest, "all columns, or the column `value` as it is")
    ingest.add_argument("--avro-schema", type=Path, metavar="FILE", help="for --value avro")
    ingest.add_argument("--key", metavar="COLUMN", help="its text is the key")
    ingest.add_argument("--timestamp", metavar="COLUMN", help="of the record (default: now)")
    ingest.add_argument(
        "--partitions", type=_partitions, default=1, metavar="N", help="of a topic that is made"
    )
    ingest.set_defaults(run=_run, pipeline=_ingest)

    export = _add(kinds, "export", "a topic as partitioned Parquet, or in a table", EXPORT_EXAMPLE)
    export.add_argument("destination", help="a directory, or a database's URL: jdbc:…")
    _add_value(export, "by --schema, or one column `value`")
    export.add_argument("--schema", help="of the value: DDL, or @FILE with an Avro schema")
    export.add_argument(
        "--mode", default="fail", choices=["fail", "null", "quarantine"],
        help="what becomes of a value that is not of the schema",
    )  # fmt: skip
    export.add_argument(
        "--quarantine", type=Path, metavar="DIRECTORY", help="for --mode quarantine"
    )
    export.add_argument(
        "--partition-by", action="append", default=[], metavar="NAME[=EXPRESSION]",
        help="a column, or an expression in SQL, that becomes directories",
    )  # fmt: skip
    export.add_argument(
        "--target-file-size", type=_size, metavar="SIZE", help="such as 64MiB (default: 128MiB)"
    )
    table = export.add_argument_group("of a table")
    table.add_argument("--table", metavar="NAME", help="made if it is missing")
    table.add_argument(
        "--column-types", metavar="TYPES", help="if it is made, such as 'carrier VARCHAR(2)'"
    )
    table.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE",
        help="of Spark's JDBC source, such as user=shop",
    )  # fmt: skip
    table.add_argument(
        "--password-file", type=Path, metavar="FILE", help="its first line is the password"
    )
    table.add_argument(
        "--driver-jar", type=Path, metavar="FILE", help="the database's driver, if Spark has none"
    )
    export.set_defaults(run=_run, pipeline=_export)


def _add(kinds: Any, name: str, what: str, example: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(name, help=what, epilog=example)
    parser.add_argument("store", type=Path, help="the store's directory, such as data")
    parser.add_argument("topic", help="the topic")
    parser.add_argument(
        "--checkpoint", type=Path, required=True, metavar="DIRECTORY",
        help="what this pipeline has done; its own, and never deleted while it is to go on",
    )  # fmt: skip
    parser.add_argument(
        "--master", default="local[*]", help="of Spark (default: local[*], all cores here)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object at the end")
    parser.add_argument(
        "--verbose", action="store_true", help="Spark's own messages, and where it failed"
    )
    return parser


def _add_value(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--value", default="json", choices=["json", "avro", "raw"],
        help=f"what a value is (default: json): {what}",
    )  # fmt: skip


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None or found[2] not in UNITS or int(found[1]) == 0:
        message = f"{text!r} is no size, such as 64MiB"
        raise argparse.ArgumentTypeError(message)
    return int(found[1]) * UNITS[found[2]]


def _partitions(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        message = f"{text!r} is no number of partitions; give 1 or more"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _run(arguments: argparse.Namespace) -> int:
    try:
        with contextlib.nullcontext() if arguments.verbose else _one_line_errors():
            status: int = arguments.pipeline(arguments)
    except KeyboardInterrupt:
        print("logstore: interrupted; the next run goes on from here", file=sys.stderr)
        raise
    return status


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """
    Say in one line what Spark says in a hundred.

    Raises:
        CorruptRecordError: Of the topic.
        SparkSourceError: PIPELINE_FAILED: anything else of Spark's or Java's.
    """
    from logstore.spark.errors import SparkSourceError

    # What is logged of an error that is raised as well; by py4j, of Ctrl-C, as the root.
    for name in ("py4j", "DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_is_not_of_py4j)
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        text = _cause(str(error))
        if text.startswith("LOGSTORE_CORRUPT_RECORD"):
            raise CorruptRecordError(text) from error
        if text.startswith("LOGSTORE_"):
            raise ValueError(text) from error
        raise SparkSourceError("PIPELINE_FAILED", text) from error


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def _cause(text: str) -> str:
    """Return the line of an error's text that says why."""
    if ours := _OWN_ERROR.findall(text):
        return str(ours[-1])
    lines = [
        _BEFORE_THE_CAUSE.sub("", line).strip()
        for line in text.splitlines()
        if line.strip() and not line.startswith(_OF_THE_STACK)
    ]
    lines = [line for line in lines if line]
    deepest = [line for line in lines if line.startswith("Caused by: ")]
    return (deepest or lines or [text])[-1 if deepest else 0].removeprefix("Caused by: ")


def _spark(arguments: argparse.Namespace, settings: dict[str, str] | None = None) -> Any:
    from logstore.spark.pipelines.session import local_session

    log_level = "warn" if arguments.verbose else "off"
    return local_session(arguments.master, settings, log_level=log_level)


def _ingest(arguments: argparse.Namespace) -> int:
    from logstore.spark.pipelines.ingest import ingest

    if not arguments.files.is_dir():
        raise FileNotFoundError(f"there is no directory {arguments.files}; check the path")
    avro_schema = arguments.avro_schema
    if (arguments.value == "avro") != (avro_schema is not None):
        raise ValueError("--value avro and --avro-schema go together")
    options = settings_of(arguments.option)
    done = ingest(
        _spark(arguments),
        arguments.files,
        arguments.store,
        arguments.topic,
        checkpoint=arguments.checkpoint,
        file_format=arguments.format,
        options=options,
        schema=arguments.schema,
        value_format=arguments.value,
        avro_schema=None if avro_schema is None else avro_schema.read_text("utf-8"),
        key=arguments.key,
        timestamp=arguments.timestamp,
        partitions=arguments.partitions,
    )
    if arguments.json:
        print_json(done._asdict())
    else:
        print(f"{done.topic}: {counted(done.row_count, 'record')} appended")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    if not arguments.store.is_dir():
        raise FileNotFoundError(f"there is no directory {arguments.store}; check the path")
    is_table = arguments.destination.startswith("jdbc:")
    _check_destination(arguments, is_table)
    schema = arguments.schema
    if (arguments.value != "raw") != (schema is not None):
        raise ValueError("say --schema, or --value raw without one")
    if (arguments.mode == "quarantine") != (arguments.quarantine is not None):
        raise ValueError("--mode quarantine and --quarantine go together")
    if schema is not None and schema.startswith("@"):
        schema = Path(schema[1:]).read_text("utf-8")
    values = {
        "checkpoint": arguments.checkpoint,
        "value_format": arguments.value,
        "schema": schema,
        "mode": arguments.mode,
        "quarantine": arguments.quarantine,
    }
    done = (_export_table if is_table else _export_files)(arguments, values)
    if arguments.json:
        print_json(done._asdict())
        return 0
    where = arguments.table if is_table else counted(done.file_count, "file")
    print(f"{counted(done.row_count, 'record')} in {where}")
    if done.quarantined_count:
        print(f"  {done.quarantined_count:,} of them in {arguments.quarantine}")
    return 0


def _check_destination(arguments: argparse.Namespace, is_table: bool) -> None:
    """Refuse what a destination of this kind has no use for."""
    of_files = {
        "--partition-by": arguments.partition_by,
        "--target-file-size": arguments.target_file_size,
    }
    of_tables = {
        "--table": arguments.table,
        "--column-types": arguments.column_types,
        "--option": arguments.option,
        "--password-file": arguments.password_file,
        "--driver-jar": arguments.driver_jar,
    }
    wrong = [name for name, value in (of_files if is_table else of_tables).items() if value]
    if wrong:
        kind = "table" if is_table else "directory"
        raise ValueError(f"{arguments.destination} is a {kind}; leave out {', '.join(wrong)}")
    if is_table and not arguments.table:
        raise ValueError(f"{arguments.destination} is a database; say --table")


def _export_files(arguments: argparse.Namespace, values: dict[str, Any]) -> Any:
    from logstore.spark.pipelines.export import TARGET_FILE_BYTES, export

    return export(
        _spark(arguments),
        arguments.store,
        arguments.topic,
        arguments.destination,
        partition_by=arguments.partition_by,
        target_file_bytes=arguments.target_file_size or TARGET_FILE_BYTES,
        **values,
    )


def _driver_of(jar: Path) -> str:
    """Return the class that a driver's jar names: Java looks for it among Spark's own only."""
    try:
        with zipfile.ZipFile(jar) as archive:
            services = archive.read("META-INF/services/java.sql.Driver").decode()
    except (zipfile.BadZipFile, KeyError):
        services = ""
    names = [line.partition("#")[0].strip() for line in services.splitlines()]
    found = next(filter(None, names), None)
    if found is None:
        raise ValueError(f"{jar} names no JDBC driver; give --option driver=CLASS as well")
    return found


def _export_table(arguments: argparse.Namespace, values: dict[str, Any]) -> Any:
    from logstore.spark.pipelines.jdbc_export import export_jdbc

    options = settings_of(arguments.option)
    if arguments.password_file is not None:
        lines = arguments.password_file.read_text("utf-8").splitlines()
        options["password"] = lines[0] if lines else ""
    jar = arguments.driver_jar
    if jar is not None:
        if not jar.is_file():
            raise FileNotFoundError(f"there is no file {jar}; check the path")
        options["driver"] = options.get("driver") or _driver_of(jar)
    return export_jdbc(
        _spark(arguments, None if jar is None else {"spark.jars": str(jar.resolve())}),
        arguments.store,
        arguments.topic,
        arguments.destination,
        arguments.table,
        column_types=arguments.column_types,
        options=options,
        **values,
    )
