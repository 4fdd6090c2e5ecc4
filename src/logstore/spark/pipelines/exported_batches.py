"""
What exports have in common: the stream of a topic's records, decoded, batch by batch.

A sink is told each micro-batch's name, which stays the same if the batch is repeated: by it the
sink knows what an earlier attempt has left.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from logstore.extras import import_extra
from logstore.files import REAL_FILES
from logstore.log import make_directory
from logstore.spark import functions as formats
from logstore.spark.errors import SparkSourceError
from logstore.spark.formats.value_format import Mode
from logstore.spark.pipelines.pipeline_state import PipelineState, local_path
from logstore.store import open_store
from logstore.unified_log import delete_tree

ValueFormat = Literal["json", "avro", "raw"]

# Where a record was; with a line before the name, for the value may have such a column.
PLACE = ("partition", "offset", "timestamp")
BATCH_BYTES = 1 << 30  # Of a micro-batch, about: it is kept while it is written.
OFFSETS_MAX = 1 << 40
RECORD_BYTES = 32  # Of what is written beside a value.


class Batch(NamedTuple):
    """
    A micro-batch to be written.

    Attributes:
        rows: The columns of the value, ``_partition``, ``_offset``, ``_timestamp``, ``_key``.
        name: ``<pipeline>-<number>``, 8 hexadecimal digits and a decimal number.
        row_count: Of all, at least 1.
        size_bytes: Of all, about.
    """

    rows: Any
    name: str
    row_count: int
    size_bytes: int


class Export(NamedTuple):
    """
    What is exported, and how its values are read; the arguments of an export that sinks share.

    Attributes:
        store: The store's directory.
        topic: What is read, from its beginning, committed records only.
        checkpoint: A directory of this pipeline's own.
        value_format: What a value is: ``json`` or ``avro`` of ``schema``, or ``raw`` bytes.
        schema: DDL for ``json``, Avro's JSON for ``avro``.
        mode: What becomes of a value that is not of the schema.
        quarantine: Where it goes with ``mode="quarantine"``.
        max_offsets: Of one micro-batch; None: about 1 GiB, by the size of the topic's records.
    """

    store: str | os.PathLike[str]
    topic: str
    checkpoint: str | os.PathLike[str]
    value_format: ValueFormat
    schema: str | None
    mode: Mode
    quarantine: str | os.PathLike[str] | None
    max_offsets: int | None

    def check(self, kind: str) -> PipelineState:
        """
        Return the pipeline's state, if what was given goes together, and with its earlier runs.

        Args:
            kind: Of :data:`~logstore.spark.pipelines.pipeline_state.KINDS`.

        Raises:
            SparkSourceError: INVALID_PIPELINE, PIPELINE_CHECKPOINT.
        """
        if (self.mode == "quarantine") != (self.quarantine is not None):
            raise invalid("mode 'quarantine' and the directory of the quarantine go together")
        if self.value_format != "raw" and self.schema is None:
            raise invalid(f"{self.value_format} wants a schema")
        state = PipelineState.of(local_path(self.checkpoint), kind, self.topic, lambda: self.schema)
        if state.schema != self.schema and _committed_count(local_path(self.checkpoint)) == 0:
            state = replace(state, schema=self.schema)  # The first one was wrong.
        if state.schema != self.schema:
            raise SparkSourceError(
                "PIPELINE_CHECKPOINT",
                f"{self.checkpoint} was begun with another schema; use another checkpoint and"
                " directory",
            )
        return state

    def no_rows(self, spark: Any) -> Any:
        """
        Return the columns of a batch, without rows.

        Raises:
            SparkSourceError: INVALID_PIPELINE: the schema is none.
        """
        source = spark.read.format("logstore").option("subscribe", self.topic)
        try:
            return self.decoded(source.load(local_path(self.store)).limit(0))[0]
        except import_extra("pyspark.errors").ParseException as error:
            raise invalid(
                f"{self.schema!r} is no schema, such as 'id long, name string'"
            ) from error

    def run(
        self, spark: Any, state: PipelineState, write: Callable[[Batch], None]
    ) -> tuple[set[str], int]:
        """
        Hand what has come since the last run to a sink, and put what is refused into quarantine.

        ``write`` and what it needs is data: Spark Connect sends it to the server.

        Returns:
            The names of the batches, and how many of their records are in the quarantine.
        """
        state.keep(local_path(self.checkpoint))
        pipeline_id = state.pipeline_id
        refused = None if self.quarantine is None else local_path(self.quarantine)
        first = _committed_count(local_path(self.checkpoint))
        source = (
            spark.readStream.format("logstore")
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(self.max_offsets or self._offsets_of(BATCH_BYTES)))
            .load(local_path(self.store))
        )
        query = (
            source.writeStream.foreachBatch(_writer(pipeline_id, self, write, refused))
            .queryName(f"export {self.topic}")
            .option("checkpointLocation", local_path(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        # Not by the query's progress: Spark forgets all but the last hundred.
        done = range(first, _committed_count(local_path(self.checkpoint)))
        batches = {_name(pipeline_id, number) for number in done}
        quarantined, _ = (0, 0) if refused is None else written_files(refused, batches)
        return batches, quarantined

    def decoded(self, batch: Any) -> tuple[Any, Any]:
        """Return rows of the source as they are written, and those for the quarantine."""
        functions = import_extra("pyspark.sql.functions")
        place = [functions.col(name).alias(f"_{name}") for name in (*PLACE, "key")]
        if self.value_format == "raw":
            return batch.select("value", *place), None
        assert self.schema is not None
        read = formats.from_avro if self.value_format == "avro" else formats.from_json
        decoded = batch.withColumn("_value", read("value", self.schema, mode=self.mode))
        refused = None
        if self.mode == "quarantine":
            decoded, refused = formats.split_quarantine(decoded, "_value")
        return decoded.select("_value.*", *place), refused

    def _offsets_of(self, size_bytes: int) -> int:
        """Return how many offsets of the topic have about so many bytes."""
        with open_store(local_path(self.store), mode="r", lazy=True) as opened:
            logs = [opened[self.topic, number] for number in opened.topic(self.topic).partitions]
            have = sum(log.size_bytes for log in logs)
            count = sum(log.log_end_offset - log.log_start_offset for log in logs)
        return max(1, size_bytes * count // have) if have else OFFSETS_MAX


def _writer(
    pipeline_id: str, export: Export, write: Callable[[Batch], None], quarantine: str | None
) -> Callable[[Any, int], None]:
    def write_batch(batch: Any, batch_id: int) -> None:
        functions = import_extra("pyspark.sql.functions")
        batch = batch.persist()
        try:
            sums = batch.agg(
                functions.count("*").alias("rows"),
                functions.sum(functions.octet_length("value")).alias("bytes"),
            ).first()
            if sums["rows"] == 0:
                return
            size_bytes = (sums["bytes"] or 0) + sums["rows"] * RECORD_BYTES
            rows, refused = export.decoded(batch)
            name = _name(pipeline_id, batch_id)
            write(Batch(rows, name, sums["rows"], size_bytes))
            if quarantine is not None:
                replace_files(refused.coalesce(1), [], name, quarantine)
        finally:
            batch.unpersist()

    return write_batch


def _committed_count(checkpoint: str) -> int:
    """Return how many micro-batches are done: Spark's own list, a file for each."""
    directory = os.path.join(checkpoint, "commits")
    if not REAL_FILES.exists(directory):
        return 0
    numbers = [int(name) for name in REAL_FILES.listdir(directory) if name.isdecimal()]
    return max(numbers, default=-1) + 1


def _name(pipeline_id: str, batch_id: int) -> str:
    return f"{pipeline_id}-{batch_id}"


def replace_files(
    frame: Any, directories: list[str], batch: str, path: str, file_rows: int | None = None
) -> None:
    """
    Write rows as Parquet; what an earlier attempt of the same micro-batch has written is replaced.

    They are written into a hidden directory first, of which a killed attempt leaves half a file:
    Spark passes hidden ones over when it reads, and DuckDB and Polars do not.

    Args:
        frame: The rows.
        directories: Columns of theirs.
        batch: The micro-batch's name, which is the last directory.
        path: Below which directory.
        file_rows: Of one file at most; None: whatever.
    """
    functions = import_extra("pyspark.sql.functions")
    pipeline_id, _, _ = batch.rpartition("-")
    for left in glob.glob(os.path.join(glob.escape(path), f".{pipeline_id}-*")):
        delete_tree(left, REAL_FILES)
    staged = os.path.join(path, f".{batch}")
    (
        frame.withColumn("batch", functions.lit(batch))
        .write.option("maxRecordsPerFile", str(file_rows or 0))
        .partitionBy(*directories, "batch")
        .parquet(staged)
    )
    for directory, inner, _ in os.walk(staged):
        if not os.path.basename(directory).startswith("batch="):
            continue
        inner.clear()
        place = os.path.join(path, os.path.relpath(directory, staged))
        if os.path.exists(place):
            delete_tree(place, REAL_FILES)
        make_directory(os.path.dirname(place), REAL_FILES)
        REAL_FILES.rename(directory, place)
    delete_tree(staged, REAL_FILES)


def written_files(path: str, batches: set[str]) -> tuple[int, int]:
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


def invalid(text: str) -> SparkSourceError:
    """Return the error of an argument."""
    return SparkSourceError("INVALID_PIPELINE", text)
