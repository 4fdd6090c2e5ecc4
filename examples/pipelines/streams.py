"""
Streams from topic to topic, each record once: deduplicated, joined, and summed up by hour.

    python examples/pipelines/streams.py --directory shop

- ``orders`` → ``unique-orders``: an order that was sent twice is there once.
- ``unique-orders`` and ``payments`` → ``paid-orders``: a stream joined with a stream. A payment
  counts within an hour of its order.
- ``unique-orders`` → ``sales``: count and sum of each hour, when its watermark has passed; the last
  hours stay open until something later comes.

Each stream has a checkpoint of its own and can be killed at any moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import shop
from pyspark.sql import Column, DataFrame, SparkSession, functions


def stream_of(spark: SparkSession, store: Path, topic: str, schema: str, late: str) -> DataFrame:
    """Return a topic as a stream: the columns of its values, key and time."""
    value = functions.from_json(functions.col("value").cast("string"), schema)
    return (
        spark.readStream.format("logstore")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load(str(store))
        .select("key", value.alias("value"), "timestamp")
        .select("key", "value.*", "timestamp")
        .withWatermark("timestamp", late)
    )


def run(
    rows: DataFrame, key: Column, time: Column, columns: list[str], directory: Path, topic: str
) -> None:
    """Append what has come to a topic, and end."""
    query = (
        rows.select(
            key.alias("key"),
            functions.to_json(functions.struct(*columns)).alias("value"),
            time.alias("timestamp"),
        )
        .writeStream.format("logstore")
        .queryName(topic)
        .option("topic", topic)
        .option("createTopics", "true")
        .option("checkpointLocation", str(directory / "state" / topic))
        .trigger(availableNow=True)
        .start(str(directory / "store"))
    )
    query.awaitTermination()


def deduplicate(spark: SparkSession, directory: Path) -> None:
    """Leave out what was sent again within half an hour."""
    rows = stream_of(spark, directory / "store", "orders", shop.ORDER, "30 minutes")
    rows = rows.dropDuplicatesWithinWatermark(["id"])
    columns = ["id", "customer", "cents"]
    run(rows, rows["key"], rows["timestamp"], columns, directory, "unique-orders")


def join_payments(spark: SparkSession, directory: Path) -> None:
    """Find the orders that were paid within an hour."""
    orders = stream_of(spark, directory / "store", "unique-orders", shop.ORDER, "30 minutes")
    payments = stream_of(spark, directory / "store", "payments", shop.PAYMENT, "30 minutes")
    orders, payments = orders.alias("o"), payments.alias("p")
    within = "o.id = p.id AND p.timestamp BETWEEN o.timestamp AND o.timestamp + INTERVAL 1 HOUR"
    paid = orders.join(payments, functions.expr(within))
    minutes = "timestampdiff(MINUTE, o.timestamp, p.timestamp) AS minutes"
    paid = paid.selectExpr("o.key", "o.id", "p.cents", minutes, "p.timestamp")
    run(paid, paid["key"], paid["timestamp"], ["id", "cents", "minutes"], directory, "paid-orders")


def sum_up(spark: SparkSession, directory: Path) -> None:
    """Sum up the orders of each hour."""
    orders = stream_of(spark, directory / "store", "unique-orders", shop.ORDER, "30 minutes")
    hours = orders.groupBy(functions.window("timestamp", "1 hour")).agg(
        functions.count("*").alias("orders"), functions.sum("cents").alias("cents")
    )
    hour = functions.col("window.start")
    key = functions.date_format(hour, "HH:mm")
    run(hours, key, hour, ["orders", "cents"], directory, "sales")


def main(argv: Sequence[str] | None = None) -> None:
    """Run."""
    arguments = shop.parser_of(__doc__).parse_args(argv)
    directory = arguments.directory.resolve()
    store = shop.make_topics(directory)
    spark = shop.session()
    for step in (deduplicate, join_payments, sum_up):
        step(spark, directory)
    counts = {
        topic: len(shop.records_of(store, topic))
        for topic in ("orders", "unique-orders", "paid-orders", "sales")
    }
    print(f"{counts['orders']} orders, {counts['unique-orders']} without those sent twice")
    print(f"{counts['paid-orders']} paid within an hour")
    print(f"{counts['sales']} hours are over; the first of them:")
    for _, value, time in sorted(shop.records_of(store, "sales"), key=lambda each: each[2])[:3]:
        hour = datetime.fromtimestamp(time / 1000, UTC)
        print(f"  {hour:%H:%M}  {value['orders']} orders  {value['cents'] / 100:.2f}")


if __name__ == "__main__":
    main()
