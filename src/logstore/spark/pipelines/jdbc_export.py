"""
A topic into a table of a database over JDBC, each record once.

Each micro-batch is one transaction, and its name is in the column ``_batch`` of its rows. The first
micro-batch of a run may be a repeated one: what the table has of it already is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from logstore.extras import import_extra
from logstore.spark.formats.value_format import Mode
from logstore.spark.pipelines.exported_batches import Batch, Export, ValueFormat

BATCH_TYPE = "_batch VARCHAR(32)"  # Text as such is not comparable in every database.


class ExportedRows(NamedTuple):
    """
    What a run did.

    Attributes:
        row_count: Records that were read.
        quarantined_count: Those of them that went into the quarantine.
    """

    row_count: int
    quarantined_count: int


def export_jdbc(
    spark: Any,
    store: str | os.PathLike[str],
    topic: str,
    url: str,
    table: str,
    *,
    checkpoint: str | os.PathLike[str],
    value_format: ValueFormat = "json",
    schema: str | None = None,
    mode: Mode = "fail",
    quarantine: str | os.PathLike[str] | None = None,
    column_types: str | None = None,
    options: Mapping[str, str] | None = None,
    max_offsets: int | None = None,
) -> ExportedRows:
    """
    Append what has come to a topic since the last run to a table.

    The columns are those of :func:`~logstore.spark.pipelines.export.export`, and ``_batch``. The
    table is made if it is missing, in databases that Spark has a dialect of; SQLite is none.

    Args:
        spark: A session in which the format ``logstore`` is registered, with the database's driver
            on its class path.
        store: The store's directory.
        topic: What is read, from its beginning, committed records only.
        url: ``jdbc:…``.
        table: Its name there, with a schema if need be.
        checkpoint: A directory of this pipeline's own. Never used for two.
        value_format: What a value is: ``json`` or ``avro`` of ``schema``, or ``raw`` bytes.
        schema: DDL for ``json``, Avro's JSON for ``avro``.
        mode: What becomes of a value that is not of the schema; as in
            :mod:`logstore.spark.functions`.
        quarantine: For ``mode="quarantine"``: the directory of those values, with place and error.
        column_types: Of a table that is made, such as ``carrier VARCHAR(2)``; for the others it is
            Spark that chooses.
        options: Of Spark's JDBC source, such as ``user``, ``password`` and ``driver``.
        max_offsets: Of one micro-batch; None: about 1 GiB, by the size of the topic's records.

    Returns:
        What was done. A run that is killed is completed by the next.

    Raises:
        SparkSourceError: INVALID_PIPELINE: an argument is missing or wrong; PIPELINE_CHECKPOINT:
            the checkpoint is another pipeline's.

    **Durability**: the database's. Each record is there once if the database has transactions and
    does not answer a commit with an error after all.
    """
    what = Export(store, topic, checkpoint, value_format, schema, mode, quarantine, max_offsets)
    state = what.check("table export")
    given = {**(options or {}), "url": url, "dbtable": table}
    types = BATCH_TYPE if column_types is None else f"{BATCH_TYPE}, {column_types}"
    _make_table(spark, what, given, types)
    batches, quarantined = what.run(spark, state, _batch_writer(given))
    functions = import_extra("pyspark.sql.functions")
    rows = _table(spark, given).where(functions.col("_batch").isin(sorted(batches))).count()
    return ExportedRows(rows + quarantined, quarantined)


def _make_table(spark: Any, what: Export, options: Mapping[str, str], types: str) -> None:
    """Append nothing: the table is there afterwards, and takes these columns."""
    _append(_named(what.no_rows(spark), ""), {**options, "createTableColumnTypes": types})


def _batch_writer(options: dict[str, str]) -> Callable[[Batch], None]:
    is_first = True  # A batch that fails ends its run: only the first may be a repeated one.

    def write(batch: Batch) -> None:
        nonlocal is_first
        rows = _named(batch.rows, batch.name)
        if is_first:
            functions = import_extra("pyspark.sql.functions")
            there = _table(rows.sparkSession, options).where(functions.col("_batch") == batch.name)
            rows = rows.join(
                there.select("_partition", "_offset"), ["_partition", "_offset"], "anti"
            )
            is_first = False
        _append(rows, options)

    return write


def _named(rows: Any, batch: str) -> Any:
    return rows.withColumn("_batch", import_extra("pyspark.sql.functions").lit(batch))


def _append(rows: Any, options: Mapping[str, str]) -> None:
    """Append rows in one transaction: Spark has one for each partition."""
    rows.coalesce(1).write.format("jdbc").options(**options).mode("append").save()


def _table(spark: Any, options: Mapping[str, str]) -> Any:
    return spark.read.format("jdbc").options(**options).load()
