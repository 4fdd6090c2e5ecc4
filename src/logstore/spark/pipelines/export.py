"""
A topic into partitioned Parquet, each record once, without small files.

Every micro-batch is written into directories of its own, ``…/batch=<pipeline>-<number>``, which a
repeated one replaces: so whoever reads the files, Spark or not, meets each record once. A directory
is complete once the run has ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from logstore.extras import import_extra
from logstore.spark import functions as formats
from logstore.spark.errors import SparkSourceError
from logstore.spark.formats.value_format import Mode
from logstore.spark.pipelines.pipeline_state import PipelineState, local_path
from logstore.store import open_store

ValueFormat = Literal["json", "avro", "raw"]

# Where a record was; with a line before the name, for the value may have such a column.
PLACE = ("partition", "offset", "timestamp")
TARGET_FILE_BYTES = 128 << 20
BATCH_BYTES = 1 << 30  # Of a micro-batch, about: it is kept while it is written.
OFFSETS_MAX = 1 << 40
RECORD_BYTES = 32  # Of what is written beside a value.


class Exported(NamedTuple):
    """
    What a run did.

    Attributes:
        row_count: Records that were read.
        quarantined_count: Those of them that went into the quarantine.
        file_count: Files that were written, but for the quarantine's.
    """

    row_count: int
    quarantined_count: int
    file_count: int


def export(
    spark: Any,
    store: str | os.PathLike[str],
    topic: str,
    destination: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str],
    value_format: ValueFormat = "json",
    schema: str | None = None,
    mode: Mode = "fail",
    quarantine: str | os.PathLike[str] | None = None,
    partition_by: Sequence[str] = (),
    target_file_bytes: int = TARGET_FILE_BYTES,
    max_offsets: int | None = None,
) -> Exported:
    """
    Write what has come to a topic since the last run as Parquet.

    The columns are those of the value, ``_partition``, ``_offset``, ``_timestamp`` and ``_key``
    (binary); with ``raw`` a value is one column, ``value``. Tombstones have nulls.

    Args:
        spark: A session in which the format ``logstore`` is registered.
        store: The store's directory.
        topic: What is read, from its beginning, committed records only.
        destination: A directory, local.
        checkpoint: A directory of this pipeline's own. Never used for two.
        value_format: What a value is: ``json`` or ``avro`` of ``schema``, or ``raw`` bytes.
        schema: DDL for ``json``, Avro's JSON for ``avro``.
        mode: What becomes of a value that is not of the schema; as in
            :mod:`logstore.spark.functions`.
        quarantine: For ``mode="quarantine"``: the directory of those values, with place and error.
        partition_by: Columns of directories: ``NAME`` of a column or ``NAME=EXPRESSION`` in SQL,
            such as ``day=date(_timestamp)``.
        target_file_bytes: Files get as large as that, measured by values, if there is so much.
        max_offsets: Of one micro-batch; None: about 1 GiB, by the size of the topic's records.

    Returns:
        What was done. A run that is killed is completed by the next.

    Raises:
        SparkSourceError: INVALID_PIPELINE: an argument is missing or wrong; PIPELINE_CHECKPOINT:
            the checkpoint is another pipeline's.
    """
    if (mode == "quarantine") != (quarantine is not None):
        raise _invalid("mode 'quarantine' and the directory of the quarantine go together")
    if value_format != "raw" and schema is None:
        raise _invalid(f"{value_format} wants a schema")
    if target_file_bytes <= 0:
        raise _invalid(f"files of {target_file_bytes} bytes; give a positive size")
    state = PipelineState.of(local_path(checkpoint), "export", topic, lambda: schema)
    if state.schema != schema:
        raise SparkSourceError(
            "PIPELINE_CHECKPOINT",
            f"{checkpoint} was begun with another schema; use another checkpoint and directory",
        )
    places = [local_path(destination)] + ([] if quarantine is None else [local_path(quarantine)])
    write = _batch_writer(
        state.pipeline_id,
        places,
        tuple(partition_by),
        target_file_bytes,
        value_format,
        schema,
        mode,
    )
    source = (
        spark.readStream.format("logstore")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(max_offsets or _offsets_of(BATCH_BYTES, store, topic)))
        .load(local_path(store))
    )
    query = (
        source.writeStream.foreachBatch(write)
        .queryName(f"export {topic}")
        .option("checkpointLocation", local_path(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = {_batch_name(state.pipeline_id, each.batchId) for each in query.recentProgress}
    written = [_written(place, batches) for place in places]
    rows, files = written[0]
    quarantined, _ = written[1] if quarantine is not None else (0, 0)
    return Exported(rows + quarantined, quarantined, files)


def _batch_name(pipeline_id: str, batch_id: int) -> str:
    return f"{pipeline_id}-{batch_id}"


def _batch_writer(
    pipeline_id: str,
    places: list[str],
    partition_by: tuple[str, ...],
    target_file_bytes: int,
    value_format: ValueFormat,
    schema: str | None,
    mode: Mode,
) -> Callable[[Any, int], None]:
    """Return what writes a micro-batch; Spark Connect sends it to the server, so it is data."""

    def write(batch: Any, batch_id: int) -> None:
        functions = import_extra("pyspark.sql.functions")
        name = _batch_name(pipeline_id, batch_id)
        batch = batch.persist()
        try:
            sums = batch.agg(
                functions.count("*").alias("rows"),
                functions.sum(functions.octet_length("value")).alias("bytes"),
            ).first()
            if sums["rows"] == 0:
                return
            size_bytes = (sums["bytes"] or 0) + sums["rows"] * RECORD_BYTES
            file_count = -(-size_bytes // target_file_bytes)
            file_rows = -(-sums["rows"] // file_count)
            good, bad = _columns(batch, value_format, schema, mode)
            good, names = _directories(good, partition_by)
            good = good.repartition(file_count, *names) if names else good.coalesce(file_count)
            _replace(good, [*names, "batch"], name, file_rows, places[0])
            if bad is not None:
                _replace(bad.coalesce(1), ["batch"], name, file_rows, places[1])
        finally:
            batch.unpersist()

    return write


def _columns(
    batch: Any, value_format: ValueFormat, schema: str | None, mode: Mode
) -> tuple[Any, Any]:
    """Return the rows as they are written, and those for the quarantine, if there is one."""
    functions = import_extra("pyspark.sql.functions")
    place = [functions.col(name).alias(f"_{name}") for name in (*PLACE, "key")]
    if value_format == "raw":
        return batch.select("value", *place), None
    assert schema is not None
    read = formats.from_avro if value_format == "avro" else formats.from_json
    decoded = batch.withColumn("_value", read("value", schema, mode=mode))
    bad = None
    if mode == "quarantine":
        decoded, bad = formats.split_quarantine(decoded, "_value")
    return decoded.select("_value.*", *place), bad


def _directories(frame: Any, partition_by: tuple[str, ...]) -> tuple[Any, list[str]]:
    """Return the rows with the columns that become directories, and these columns' names."""
    functions = import_extra("pyspark.sql.functions")
    names = []
    for each in partition_by:
        name, equals, expression = each.partition("=")
        if equals:
            frame = frame.withColumn(name, functions.expr(expression))
        elif name not in frame.columns:
            raise _invalid(f"there is no column {name} to partition by: {', '.join(frame.columns)}")
        names.append(name)
    return frame, names


def _replace(frame: Any, directories: list[str], batch: str, file_rows: int, path: str) -> None:
    """Write rows; what an earlier attempt of the same micro-batch has written is replaced."""
    functions = import_extra("pyspark.sql.functions")
    (
        frame.withColumn("batch", functions.lit(batch))
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .option("maxRecordsPerFile", str(file_rows))
        .partitionBy(*directories)
        .parquet(path)
    )


def _written(path: str, batches: set[str]) -> tuple[int, int]:
    """Return how many rows in how many files some micro-batches have in a directory."""
    parquet = import_extra("pyarrow.parquet")
    rows = files = 0
    for directory, _, names in os.walk(path):
        if os.path.basename(directory).removeprefix("batch=") not in batches:
            continue
        for name in names:
            if name.endswith(".parquet"):
                rows += parquet.read_metadata(os.path.join(directory, name)).num_rows
                files += 1
    return rows, files


def _offsets_of(size_bytes: int, store: str | os.PathLike[str], topic: str) -> int:
    """Return how many offsets of a topic have about so many bytes."""
    with open_store(local_path(store), mode="r", lazy=True) as opened:
        logs = [opened[topic, number] for number in opened.topic(topic).partitions]
        have = sum(log.size_bytes for log in logs)
        count = sum(log.log_end_offset - log.log_start_offset for log in logs)
    return max(1, size_bytes * count // have) if have else OFFSETS_MAX


def _invalid(text: str) -> SparkSourceError:
    return SparkSourceError("INVALID_PIPELINE", text)
