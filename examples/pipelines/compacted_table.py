"""
A compacted topic as a table, joined with a stream.

    python examples/pipelines/compacted_table.py --directory shop

``customers`` has the newest state of each key, and older ones that were not compacted away yet: the
table is the newest record of each key, without those that were deleted. Each micro-batch of
``orders`` is joined with the table as it is at that moment, and written once by its number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import shop
from pyspark.sql import DataFrame, SparkSession, functions

import logstore


def table_of(spark: SparkSession, store: Path) -> DataFrame:
    """Return the newest state of each customer."""
    records = spark.read.format("logstore").option("subscribe", "customers").load(str(store))
    newest = records.groupBy("key").agg(functions.max_by("value", "offset").alias("value"))
    city = functions.from_json(functions.col("value").cast("string"), shop.CUSTOMER)["city"]
    return newest.where("value IS NOT NULL").select("key", city.alias("city"))


def writer(store: Path) -> Callable[[DataFrame, int], None]:
    """Return what joins a micro-batch and writes it."""

    def write(batch: DataFrame, batch_id: int) -> None:
        order = functions.from_json(functions.col("value").cast("string"), shop.ORDER)
        joined = batch.join(table_of(batch.sparkSession, store), "key", "left")
        value = functions.struct(
            order["id"].alias("id"),
            order["cents"].alias("cents"),
            functions.coalesce("city", functions.lit("unknown")).alias("city"),
        )
        (
            joined.select("key", functions.to_json(value).alias("value"), "timestamp")
            .write.format("logstore")
            .option("topic", "orders-by-city")
            .option("createTopics", "true")
            .option("txnAppId", "orders-by-city")
            .option("txnVersion", str(batch_id))
            .mode("append")
            .save(str(store))
        )

    return write


def compact(store: Path) -> None:
    """Compact the customers now; a store that stays open does it by itself."""
    with logstore.open_store(store) as opened:
        log = opened["customers", 0]
        before = len(list(log))
        log.roll()  # The active segment is never cleaned.
        log.compact()
        print(f"customers: {before} records, {len(list(log))} when compacted")


def main(argv: Sequence[str] | None = None) -> None:
    """Run."""
    arguments = shop.parser_of(__doc__).parse_args(argv)
    directory = arguments.directory.resolve()
    store = shop.make_topics(directory)
    compact(store)
    spark = shop.session()
    orders = (
        spark.readStream.format("logstore")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "150")
        .load(str(store))
    )
    query = (
        orders.select("key", "value", "timestamp")
        .writeStream.foreachBatch(writer(store))
        .option("checkpointLocation", str(directory / "state/orders-by-city"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    cents: dict[str, int] = {}
    rows = shop.records_of(store, "orders-by-city")
    for _, value, _ in rows:
        cents[value["city"]] = cents.get(value["city"], 0) + value["cents"]
    print(f"orders-by-city: {len(rows)} records")
    for city in sorted(cents):
        print(f"  {city:8} {cents[city] / 100:8.2f}")


if __name__ == "__main__":
    main()
