"""
Files into a topic, each row once.

A directory is watched by its names: a file that comes later is taken by the next run, one that
changes in place is not noticed. ``docs/spark-pipelines.md`` shows it at work.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from logstore.extras import import_extra
from logstore.spark import functions as formats
from logstore.spark.errors import SparkSourceError
from logstore.spark.pipelines.pipeline_state import PipelineState, local_path

FileFormat = Literal["csv", "json", "parquet", "orc", "text"]
ValueFormat = Literal["json", "avro", "raw"]
POLL_SECONDS: Final = 0.5


class Ingested(NamedTuple):
    """
    What a run did.

    Attributes:
        row_count: Rows that were appended.
        topic: Where.
        schema: Of the files, as DDL.
    """

    row_count: int
    topic: str
    schema: str


def ingest(
    spark: Any,
    files: str | os.PathLike[str],
    store: str | os.PathLike[str],
    topic: str,
    *,
    checkpoint: str | os.PathLike[str],
    file_format: FileFormat = "parquet",
    options: Mapping[str, str] | None = None,
    schema: str | None = None,
    value_format: ValueFormat = "json",
    avro_schema: str | None = None,
    key: str | None = None,
    timestamp: str | None = None,
    partitions: int = 1,
) -> Ingested:
    """
    Append the rows of files to a topic; what an earlier run has appended is left out.

    Args:
        spark: A session in which the format ``logstore`` is registered.
        files: A directory of files; local, as the others.
        store: The store's directory; made if it is missing.
        topic: Made if it is missing.
        checkpoint: A directory of this pipeline's own: what it has done. Never used for two.
        file_format: Of the files.
        options: Of Spark's reader of that format, such as ``header`` for CSV.
        schema: Of the files, as DDL; None: what Spark infers from those of the first run.
        value_format: What a value is: ``json`` and ``avro`` of all columns, or ``raw``: the column
            ``value`` as it is.
        avro_schema: For ``avro``, as JSON; its fields are columns.
        key: A column whose text is the key, and decides the partition.
        timestamp: A column of the record's time; None: the time of the write.
        partitions: Of a topic that is made.

    Returns:
        What was done. A run that is killed is completed by the next.

    **Durability**: on return everything is.

    Raises:
        SparkSourceError: INVALID_PIPELINE: there is no such column, or an argument is missing;
            PIPELINE_CHECKPOINT: the checkpoint is another pipeline's.
    """
    source = local_path(files)
    given = dict(options or {})

    def first_schema() -> str:
        if schema is not None:
            return str(import_extra("pyspark.sql.types").StructType.fromDDL(schema).json())
        reader = spark.read.format(file_format).options(**given)
        if file_format == "csv":
            reader = reader.option("inferSchema", given.get("inferSchema", "true"))
        try:
            return str(reader.load(source).schema.json())
        except import_extra("pyspark.errors").AnalysisException as error:
            if "UNABLE_TO_INFER_SCHEMA" not in str(error):
                raise
            raise _invalid(
                f"there is nothing in {files} to tell the schema from; say the schema, or wait for"
                " the first file"
            ) from error

    state = PipelineState.of(local_path(checkpoint), "ingest", topic, first_schema)
    assert state.schema is not None
    types = import_extra("pyspark.sql.types")
    columns = types._parse_datatype_json_string(state.schema)
    frame = spark.readStream.format(file_format).schema(columns).options(**given).load(source)
    rows = _rows(frame, value_format, avro_schema, key, timestamp)
    if partitions < 1:
        raise _invalid(f"a topic of {partitions} partitions; give 1 at least")
    state.keep(local_path(checkpoint))
    query = (
        rows.writeStream.format("logstore")
        .queryName(f"ingest {topic}")
        .option("topic", topic)
        .option("createTopics", "true")
        .option("numPartitions", str(partitions))
        .option("checkpointLocation", local_path(checkpoint))
        .trigger(availableNow=True)
        .start(local_path(store))
    )
    return Ingested(_row_count(query), topic, columns.simpleString())


def _row_count(query: Any) -> int:
    """Wait for the end of a query, and return the rows of all its micro-batches."""
    counts: dict[int, int] = {}
    is_done = False
    while not is_done:  # Spark forgets all but the last hundred.
        is_done = query.awaitTermination(POLL_SECONDS)
        counts.update((each.batchId, each.numInputRows) for each in query.recentProgress)
    return sum(counts.values())


def _rows(
    frame: Any,
    value_format: ValueFormat,
    avro_schema: str | None,
    key: str | None,
    timestamp: str | None,
) -> Any:
    """Return the columns of the sink."""
    functions = import_extra("pyspark.sql.functions")
    for what, name in (("key", key), ("timestamp", timestamp)):
        if name is not None and name not in frame.columns:
            raise _invalid(f"{what} is {name!r}, and the columns are {', '.join(frame.columns)}")
    if value_format == "raw":
        if "value" not in frame.columns:
            raise _invalid(f"raw wants a column value, and there are {', '.join(frame.columns)}")
        value = functions.col("value")
    elif value_format == "avro":
        if avro_schema is None:
            raise _invalid("avro wants its schema")
        value = formats.to_avro(functions.struct(*frame.columns), avro_schema)
    else:
        value = functions.to_json(functions.struct(*frame.columns))
    chosen = [value.alias("value")]
    if key is not None:
        chosen.append(functions.col(f"`{key}`").cast("string").alias("key"))
    if timestamp is not None:
        chosen.append(functions.col(f"`{timestamp}`").cast("timestamp").alias("timestamp"))
    return frame.select(*chosen)


def _invalid(text: str) -> SparkSourceError:
    return SparkSourceError("INVALID_PIPELINE", text)
