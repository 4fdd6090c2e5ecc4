"""The Spark part of `make demo`, on a few flights: what DuckDB finds as well, nothing dropped."""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sampling import IS_CI, IS_NIGHTLY

import logstore

pytestmark = [
    pytest.mark.repository,
    pytest.mark.skipif(not (IS_CI or IS_NIGHTLY), reason="takes long; make demo does the same"),
]
pytest.importorskip("matplotlib", reason="needs the extra [demo]")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CARRIERS = ("AA", "B6", "UA", "WN", "9E")
FLIGHTS = 400


@pytest.fixture(name="example")
def _example(monkeypatch):
    """Return a function that imports a module of the examples."""
    monkeypatch.syspath_prepend(EXAMPLES)
    yield importlib.import_module
    for path in EXAMPLES.glob("*.py"):
        sys.modules.pop(path.stem, None)


def write_table(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows([{k: "NA" if v is None else v for k, v in row.items()} for row in rows])


def flights():
    """Return flights of a few days; one in ten is late, some never left, or have no aircraft."""
    draw = random.Random(13)
    rows = []
    for number in range(FLIGHTS):
        when = datetime(2013, 1, 1, tzinfo=UTC) + timedelta(minutes=number * 11)
        delay = draw.choice([None, *range(-5, 90, 7)])
        row = {
            "carrier": draw.choice(CARRIERS),
            "tailnum": draw.choice(["N1", "N2", "N3", None]),
            "dep_delay": delay,
            "arr_delay": delay,
            "time_hour": f"{when:%Y-%m-%dT%H}:00:00Z",
        }
        arrives = when + timedelta(minutes=draw.choice([0] * 9 + [30]))
        rows.append((arrives, round(when.timestamp() * 1000), row))
    return sorted(rows, key=lambda each: each[0])


def test_pipeline(spark, example, monkeypatch, tmp_path, capsys):
    """A micro-batch that Spark did not note is repeated, and there once."""
    delays, stream = example("flights_delays"), example("flights_stream")
    monkeypatch.setattr(stream, "SETTINGS", {})  # The session is there.
    monkeypatch.setattr(stream, "MICRO_BATCHES", 3)
    rows = flights()
    tables = tmp_path / "tables"
    tables.mkdir()
    write_table(tables / "flights.csv", [row for _, _, row in rows])
    write_table(tables / "planes.csv", [{"tailnum": f"N{n}", "seats": 100 * n} for n in (1, 2)])
    hours = sorted({row["time_hour"] for _, _, row in rows})
    weather = [{"time_hour": hour, "precip": at % 2} for at, hour in enumerate(hours)]
    write_table(tables / "weather.csv", weather)
    with example("flights").open_store(tmp_path / "store") as store:
        store["flights"].extend(
            [json.dumps(row).encode() for _, _, row in rows],
            keys=[row["carrier"].encode() for _, _, row in rows],
            timestamps=[time for _, time, _ in rows],
        )
    late_count, late_minutes = delays.prepare(tmp_path / "store")
    assert late_count > 0 < late_minutes <= 30
    arguments = argparse.Namespace(store=tmp_path / "store", directory=tmp_path)
    query = stream.start_stream(spark, arguments)
    query.awaitTermination()
    last = query.lastProgress.batchId
    assert last >= 3
    for name in (str(last), f".{last}.crc"):
        (tmp_path / "checkpoint/commits" / name).unlink()
    stream.run_pipeline(arguments)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"step": "export"} == said.pop()
    assert all(each["dropped"] == 0 for each in said)
    assert FLIGHTS == delays.compare(arguments)
    assert (tmp_path / "delays.png").read_bytes().startswith(b"\x89PNG")
    with logstore.open_store(tmp_path / "store") as store:
        assert [] == list(store.check())
