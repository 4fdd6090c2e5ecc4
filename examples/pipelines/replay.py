"""
A range of time through changed code, into a new topic; its records keep their times.

    python examples/pipelines/replay.py --directory shop --start 09:00 --end 12:00

The old topic stays as it is, and readers move over when the new one is right. Run again, it writes
nothing twice; after another change of the code another ``--version`` writes anew.

``startingTimestamp`` says where to begin to read: no record of that time or later is before it.
Where to end is for the column ``timestamp`` to say, as records come late and out of order; also is
the end of a transaction a record of its own, with the time at which it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, time
from pathlib import Path

import shop
from pyspark.sql import SparkSession, functions

DAY = datetime.fromtimestamp(shop.DAY_MS / 1000, UTC)


def replay(spark: SparkSession, store: Path, start: datetime, end: datetime, version: int) -> str:
    """Write the orders of a range anew, with the tax; return the topic."""
    topic = f"orders-v{version}"
    milliseconds = round(start.timestamp() * 1000)
    orders = (
        spark.read.format("logstore")
        .option("subscribe", "orders")
        .option("startingTimestamp", str(milliseconds))
        .option("startingOffsetsByTimestampStrategy", "latest")
        .load(str(store))
        .where(functions.col("timestamp") >= start)
        .where(functions.col("timestamp") < end)
    )
    order = functions.from_json(functions.col("value").cast("string"), shop.ORDER)
    changed = functions.struct("order.*", functions.expr("order.cents * 25 DIV 100 AS tax"))
    (
        orders.select("key", order.alias("order"), "timestamp")
        .select("key", functions.to_json(changed).alias("value"), "timestamp")
        .write.format("logstore")
        .option("topic", topic)
        .option("createTopics", "true")
        .option("numPartitions", "2")
        .option("txnAppId", f"replay of orders from {start:%H:%M} to {end:%H:%M}")
        .option("txnVersion", str(version))
        .mode("append")
        .save(str(store))
    )
    return topic


def main(argv: Sequence[str] | None = None) -> None:
    """Run."""
    parser = shop.parser_of(__doc__)
    parser.add_argument("--start", type=time.fromisoformat, default=time(9), help="such as 09:00")
    parser.add_argument("--end", type=time.fromisoformat, default=time(12), help="such as 12:00")
    parser.add_argument("--version", type=int, default=2, help="of the code (default: 2)")
    arguments = parser.parse_args(argv)
    store = shop.make_topics(arguments.directory)
    start, end = (datetime.combine(DAY, each, UTC) for each in (arguments.start, arguments.end))
    topic = replay(shop.session(), store, start, end, arguments.version)
    rows = sorted(shop.records_of(store, topic), key=lambda row: row[2])
    times = [datetime.fromtimestamp(row[2] / 1000, UTC) for row in rows]
    print(f"{topic}: {len(rows)} records from {times[0]:%H:%M} to {times[-1]:%H:%M}")
    print(f"  the first: {rows[0][1]}")


if __name__ == "__main__":
    main()
