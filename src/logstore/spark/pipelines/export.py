"""
A topic into partitioned Parquet, each record once, without small files.

Every micro-batch is written into directories of its own, ``…/batch=<pipeline>-<number>``, which a
repeated one replaces: so whoever reads the files, Spark or not, meets each record once. A directory
is complete once the run has ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from logstore.extras import import_extra
from logstore.spark.formats.value_format import Mode
from logstore.spark.pipelines.exported_batches import (
    Batch,
    Export,
    ValueFormat,
    invalid,
    replace_files,
    written_files,
)
from logstore.spark.pipelines.pipeline_state import local_path

TARGET_FILE_BYTES = 128 << 20


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
    if target_file_bytes <= 0:
        raise invalid(f"files of {target_file_bytes} bytes; give a positive size")
    what = Export(store, topic, checkpoint, value_format, schema, mode, quarantine, max_offsets)
    state = what.check("export")
    _directories(what.no_rows(spark), tuple(partition_by))
    place = local_path(destination)
    write = _batch_writer(place, tuple(partition_by), target_file_bytes)
    batches, quarantined = what.run(spark, state, write)
    rows, files = written_files(place, batches)
    return Exported(rows + quarantined, quarantined, files)


def _batch_writer(
    path: str, partition_by: tuple[str, ...], target_file_bytes: int
) -> Callable[[Batch], None]:
    def write(batch: Batch) -> None:
        file_count = -(-batch.size_bytes // target_file_bytes)
        rows, names = _directories(batch.rows, partition_by)
        rows = rows.repartition(file_count, *names) if names else rows.coalesce(file_count)
        replace_files(rows, names, batch.name, path, -(-batch.row_count // file_count))

    return write


def _directories(frame: Any, partition_by: tuple[str, ...]) -> tuple[Any, list[str]]:
    """Return the rows with the columns that become directories, and these columns' names."""
    functions = import_extra("pyspark.sql.functions")
    names = []
    for each in partition_by:
        name, equals, expression = each.partition("=")
        if equals:
            frame = frame.withColumn(name, functions.expr(expression))
        elif name not in frame.columns:
            raise invalid(f"there is no column {name} to partition by: {', '.join(frame.columns)}")
        names.append(name)
    return frame, names
