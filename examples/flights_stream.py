"""
The part of the flights' demonstration that runs in Spark; ``examples/flights_delays.py`` starts it.

    python examples/flights_stream.py --store .cache/flights --directory .cache/delays

The stream from the topic of flights to that of delays, Parquet of it, and the plot beside the
weather. Started again, it goes on where it was.
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path

import matplotlib as mpl
from flights_delays import MEASURES, WATERMARK
from matplotlib import pyplot as plt
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming import StreamingQuery

import logstore
from logstore.spark.pipelines.export import export
from logstore.spark.pipelines.session import local_session

MICRO_BATCHES = 12  # About; so that there is a middle to be killed in.
EXPORT_BATCHES = 3  # Likewise.
CARRIERS_DRAWN = 6
CORES = "local[2]"
# It runs for a minute: what compiles quickly is what counts.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

FLIGHT = "carrier string, tailnum string, dep_delay long, arr_delay long"
DELAY = (
    "carrier string, hour timestamp, flights long, departed long, delay long, late long,"
    " known long, seats long"
)
SKIES = {"dry": "tab:orange", "rain": "tab:blue"}
BAR_WIDTH = 0.4


def flights_of(
    spark: SparkSession, directory: Path, partition: int, batch_flights: int
) -> DataFrame:
    """Return one partition of the flights as a stream with a watermark."""
    return (
        spark.readStream.format("logstore")
        .option("assign", json.dumps({"flights": [partition]}))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(batch_flights))
        .option("columns", "value,timestamp")
        .load(str(directory))
        .select(
            functions.from_json(functions.col("value").cast("string"), FLIGHT).alias("f"),
            "timestamp",
        )
        .select("f.*", "timestamp")
        .withWatermark("timestamp", f"{WATERMARK.seconds} seconds")
    )


def start_stream(spark: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    """Start the stream from the topic of flights to that of delays; it ends when all are read."""
    with logstore.open_store(arguments.store, mode="r") as store:
        ends = [log.log_end_offset for log in store["flights"].logs()]
    streams = [
        flights_of(spark, arguments.store, partition, -(-end // MICRO_BATCHES))
        for partition, end in enumerate(ends)
    ]
    planes = spark.read.csv(str(arguments.directory / "tables/planes.csv"), header=True)
    planes = planes.select("tailnum", functions.col("seats").cast("long"))
    measures = [functions.expr(text).alias(name) for name, text in MEASURES.items()]
    delays = (
        functools.reduce(lambda one, other: one.union(other), streams)
        .join(functions.broadcast(planes), "tailnum", "left")
        .groupBy("carrier", functions.window("timestamp", "1 hour"))
        .agg(*measures)
        .select("carrier", functions.col("window.start").alias("hour"), *MEASURES)
    )
    return (
        delays.select(
            functions.col("carrier").alias("key"),
            functions.to_json(functions.struct("*")).alias("value"),
            functions.col("hour").alias("timestamp"),
        )
        .writeStream.format("logstore")
        .option("topic", "delays")
        .option("createTopics", "true")
        .option("checkpointLocation", str(arguments.directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(arguments.store))
    )


def run_pipeline(arguments: argparse.Namespace) -> None:
    """Run the stream and what follows it; print a line of JSON for each step."""
    spark = local_session(CORES, SETTINGS, java_options=JAVA_OPTIONS)
    query = start_stream(spark, arguments)
    printed = -1
    while True:
        ended = query.awaitTermination(0.1)
        for progress in query.recentProgress:
            if progress.batchId > printed:
                printed = progress.batchId
                dropped = sum(each.numRowsDroppedByWatermark for each in progress.stateOperators)
                report("stream", batch=printed, rows=progress.numInputRows, dropped=dropped)
        if ended:
            break
    report("export")
    with logstore.open_store(arguments.store, mode="r") as store:
        delays = sum(log.log_end_offset for log in store["delays"].logs())
    export(
        spark,
        arguments.store,
        "delays",
        arguments.directory / "parquet",
        checkpoint=arguments.directory / "export",
        schema=DELAY,
        partition_by=["month=month(_timestamp)"],
        max_offsets=-(-delays // EXPORT_BATCHES),
    )
    draw(spark, arguments.directory)


def report(step: str, **numbers: int) -> None:
    """Print what was done, or what begins, for the process that has started this one."""
    print(json.dumps({"step": step, **numbers}), flush=True)


def draw(spark: SparkSession, directory: Path) -> None:
    """Join the delays with the weather of their hours, and draw both."""
    delays = spark.read.parquet(str(directory / "parquet")).select("carrier", "hour", *MEASURES)
    weather = spark.read.csv(
        str(directory / "tables/weather.csv"), header=True, inferSchema=True, nullValue="NA"
    )
    # Delays are of all three airports of New York: so is the weather.
    weather = weather.groupBy(functions.col("time_hour").alias("hour")).agg(
        functions.expr("CASE WHEN max(precip) > 0 THEN 'rain' ELSE 'dry' END").alias("sky")
    )
    known = delays.join(weather, "hour").persist()
    mean = functions.expr("try_divide(sum(delay), sum(departed)) AS mean")
    local = functions.expr("hour(from_utc_timestamp(hour, 'America/New_York')) AS local")
    seats = functions.expr("try_divide(sum(seats), sum(known)) AS seats")
    flights = functions.sum("flights").alias("flights")
    largest = known.groupBy("carrier").agg(seats, flights).orderBy(functions.desc("flights"))
    carriers = largest.drop("flights").limit(CARRIERS_DRAWN).collect()
    by_hour = known.groupBy("carrier", local).agg(mean).orderBy("local").collect()
    by_sky = known.groupBy("carrier", "sky").agg(mean).collect()
    sky_mean = {(row["carrier"], row["sky"]): row["mean"] for row in by_sky}

    mpl.use("agg")  # No window.
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for carrier, _ in carriers:
        points = [row[1:] for row in by_hour if row["carrier"] == carrier and row["mean"]]
        left.plot(*zip(*points, strict=True), label=carrier)
    for number, (sky, colour) in enumerate(SKIES.items()):
        places = [place + (number - 0.5) * BAR_WIDTH for place in range(len(carriers))]
        heights = [sky_mean[carrier, sky] for carrier, _ in carriers]
        right.bar(places, heights, BAR_WIDTH, color=colour, label=sky)
    left.set(title="by hour", xlabel="scheduled departure, local time", ylabel="minutes, mean")
    right.set(title="by weather and carrier, with the seats of its planes")
    names = [f"{carrier}\n{seats:.0f} seats" if seats else carrier for carrier, seats in carriers]
    right.set_xticks(range(len(names)), names)
    left.set_xticks(range(5, 24, 3))
    left.legend()
    right.legend()
    figure.suptitle("Delays of departures from New York, 2013")
    figure.savefig(directory / "delays.png", dpi=120)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[1])
    parser.add_argument("--store", type=Path, required=True, help="the store with the flights")
    parser.add_argument("--directory", type=Path, required=True, help="for all that is made")
    run_pipeline(parser.parse_args())


if __name__ == "__main__":
    main()
