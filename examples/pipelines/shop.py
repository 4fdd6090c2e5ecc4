"""
What the pipelines here run on: a day of a small shop, the same each time.

- ``orders``: 200, keyed by customer, over 2 partitions. Some are late, some were sent twice.
- ``payments``: of most orders, within the hour; some later, some never.
- ``customers``: where each lives, compacted. Some have moved, one has gone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import logstore
from logstore.spark.pipelines.session import local_session

MINUTE_MS = 60_000
DAY_MS = 1_767_225_600_000  # 1 January 2026, UTC.
ORDERS = 200
CUSTOMERS = 12
CITIES = ("Bergen", "Lisbon", "Prague")
ORDER = "id long, customer string, cents long"
PAYMENT = "id long, cents long"
CUSTOMER = "city string"
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # Starts sooner.
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
}


class Row(NamedTuple):
    """
    One record.

    Attributes:
        key: Of the record.
        value: Columns; None is a tombstone.
        timestamp: Epoch milliseconds.
    """

    key: str
    value: dict[str, Any] | None
    timestamp: int


def orders() -> list[Row]:
    """Return the orders in the order in which they arrive."""
    arrivals = []
    for number in range(ORDERS):
        customer = f"c{number * 5 % CUSTOMERS:02}"
        order = {"id": number, "customer": customer, "cents": 500 + number * 37 % 4000}
        row = Row(customer, order, DAY_MS + number * 7 * MINUTE_MS)
        late_minutes = 20 if number % 25 == 3 else 0
        arrivals.append((number * 7 + late_minutes, row))
        if number % 20 == 9:  # Its sender did not hear that it had arrived.
            arrivals.append((number * 7 + 2, row))
    return [row for _, row in sorted(arrivals, key=lambda arrival: arrival[0])]


def payments() -> list[Row]:
    """Return the payments as they come."""
    paid = []
    for number in range(ORDERS):
        if number % 10 == 4:
            continue
        minutes = 150 if number % 33 == 5 else 5 + number % 40
        payment = {"id": number, "cents": 500 + number * 37 % 4000}
        paid.append(Row(str(number), payment, DAY_MS + (number * 7 + minutes) * MINUTE_MS))
    return sorted(paid, key=lambda row: row.timestamp)


def customers() -> list[Row]:
    """Return where customers live; later rows replace earlier ones."""
    first = [
        Row(f"c{number:02}", {"city": CITIES[number % 3]}, DAY_MS) for number in range(CUSTOMERS)
    ]
    later = DAY_MS + MINUTE_MS
    moved = [Row(f"c{number:02}", {"city": "Lisbon"}, later) for number in (0, 2)]
    return [*first, *moved, Row("c11", None, later)]


def make_topics(directory: Path) -> Path:
    """Fill the topics that are missing; return the store's path."""
    path = (directory / "store").resolve()
    path.mkdir(parents=True, exist_ok=True)
    topics = {
        "orders": (orders, 2, {}),
        "payments": (payments, 1, {}),
        "customers": (customers, 1, {"cleanup.policy": "compact"}),
    }
    with logstore.open_store(path) as store:
        for name, (rows, partitions, config) in topics.items():
            if name in store:
                continue
            topic = store.create_topic(name, partitions=partitions, config=config)
            made = rows()
            values = [None if row.value is None else json.dumps(row.value) for row in made]
            topic.extend(
                [None if value is None else value.encode() for value in values],
                keys=[row.key.encode() for row in made],
                timestamps=[row.timestamp for row in made],
            )
    return path


def records_of(store: Path, topic: str) -> list[tuple[str | None, Any, int]]:
    """Return key, value and timestamp of all committed records of a topic."""
    with logstore.open_store(store, mode="r") as opened:
        return [
            (
                None if record.key is None else record.key.decode(),
                None if record.value is None else json.loads(record.value),
                record.timestamp,
            )
            for log in opened[topic].logs()
            for record in log
        ]


def session() -> Any:
    """Return a small Spark."""
    return local_session("local[2]", SETTINGS, java_options=JAVA_OPTIONS)


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the argument that all scripts have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--directory", type=Path, default=Path("shop"), help="for all that is made (default: shop)"
    )
    return parser
