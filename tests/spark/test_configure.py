"""What ``configure`` sets for a Spark on this machine."""

from __future__ import annotations

import os
import sys

import pytest

import logstore.spark

sql = pytest.importorskip("pyspark.sql")


def test_what_is_set_stays(monkeypatch):
    """In the builder and in the environment; the rest is what the documentation says."""
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "before")  # To be put back.
    monkeypatch.delenv("PYSPARK_PYTHON")
    given = {"spark.sql.execution.arrow.maxRecordsPerBatch": "7"}
    builder = sql.SparkSession.Builder().remote("sc://localhost").config(map=given)
    assert builder is logstore.spark.configure(builder)
    assert logstore.spark.SETTINGS | given == {
        name: builder._options[name] for name in logstore.spark.SETTINGS
    }
    assert ("before", sys.executable) == (os.environ["JAVA_HOME"], os.environ["PYSPARK_PYTHON"])
    assert "before" == os.environ["PYSPARK_DRIVER_PYTHON"]


def test_rows_of_a_known_size():
    """They are counted: 4 MiB of them, one at least; their bytes have no bound."""
    for row_bytes, rows in ((1, 4 << 20), (1000, 4194), (1 << 30, 1)):
        builder = sql.SparkSession.Builder().remote("sc://localhost")
        logstore.spark.configure(builder, row_bytes=row_bytes)
        assert (str(rows), str(2**31 - 1)) == tuple(
            builder._options[f"spark.sql.execution.arrow.max{what}PerBatch"]
            for what in ("Records", "Bytes")
        )
    builder = sql.SparkSession.Builder().remote("sc://localhost")
    builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "0")  # No bound, either.
    logstore.spark.configure(builder, row_bytes=100)
    assert "4194304" == builder._options["spark.sql.execution.arrow.maxBytesPerBatch"]
    with pytest.raises(ValueError, match="row_bytes is 0"):
        logstore.spark.configure(sql.SparkSession.Builder(), row_bytes=0)
