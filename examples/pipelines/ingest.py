"""
Files, and a table, into topics: each row once, however often it is run.

    python examples/pipelines/ingest.py --directory shop

- CSV files that come into a directory become ``orders``: a file is taken once, by its name. From
  the shell: ``logstore pipeline ingest``.
- A table becomes ``customers``. A batch write has no checkpoint that says what was done, so it says
  itself who it is: a version of the table is written once.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import shop
from pyspark.sql import SparkSession, functions

import logstore
from logstore.spark.pipelines.ingest import ingest

FILES = 4
TABLE_VERSION = 1  # Of a table that has versions, its own; else the day, for one.


def write_files(directory: Path) -> None:
    """Write the orders as CSV files, as if another program did; those that are there stay."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = shop.orders()
    for number in range(FILES):
        path = directory / f"orders-{number}.csv"
        if path.exists():
            continue
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["id", "customer", "cents", "time"])
            writer.writeheader()
            for row in rows[number * len(rows) // FILES : (number + 1) * len(rows) // FILES]:
                time = datetime.fromtimestamp(row.timestamp / 1000, UTC)
                writer.writerow({**(row.value or {}), "time": f"{time:%Y-%m-%dT%H:%M:%SZ}"})


def table_of(spark: SparkSession) -> str:
    """Return the name of a table with the customers."""
    rows = [
        (row.key, (row.value or {}).get("city"), number)
        for number, row in enumerate(shop.customers())
    ]
    spark.createDataFrame(
        rows, "customer string, city string, number long"
    ).createOrReplaceTempView("places")
    return "places"


def write_table(spark: SparkSession, table: str, store: Path) -> None:
    """Append a table to a compacted topic, once; what has no city is deleted there."""
    rows = spark.table(table).orderBy("number")
    value = functions.when(
        functions.col("city").isNotNull(), functions.to_json(functions.struct("city"))
    )
    (
        rows.select(functions.col("customer").alias("key"), value.alias("value"))
        .write.format("logstore")
        .option("topic", "customers")
        .option("txnAppId", f"table {table}")
        .option("txnVersion", str(TABLE_VERSION))
        .mode("append")
        .save(str(store))
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run."""
    arguments = shop.parser_of(__doc__).parse_args(argv)
    directory = arguments.directory.resolve()
    store = directory / "store"
    write_files(directory / "incoming")
    spark = shop.session()
    done = ingest(
        spark,
        directory / "incoming",
        store,
        "orders",
        checkpoint=directory / "state/ingest-orders",
        file_format="csv",
        options={"header": "true"},
        key="customer",
        timestamp="time",
        partitions=2,
    )
    with logstore.open_store(store) as opened:
        if "customers" not in opened:
            opened.create_topic("customers", config={"cleanup.policy": "compact"})
    write_table(spark, table_of(spark), store)
    for topic in ("orders", "customers"):
        print(f"{topic}: {len(shop.records_of(store, topic))} records")
    print(f"rows of files in this run: {done.row_count}")


if __name__ == "__main__":
    main()
