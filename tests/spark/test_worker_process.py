"""What a process that Spark keeps for many tasks does about its garbage."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="needs the extra [spark-local]")

READ = """
import gc, sys
from logstore.spark.data_source import LogStoreDataSource
from logstore.spark.worker_process import settle
from pyspark.sql.types import LongType, StructField, StructType

source = LogStoreDataSource({"path": sys.argv[1], "subscribe": "orders"})
source.schema()
first = gc.get_freeze_count()
reader = source.reader(StructType([StructField("offset", LongType(), False)]))
rows = [batch.num_rows for each in reader.partitions() for batch in reader.read(each)]
assert rows == [1], rows
read = gc.get_freeze_count()
settle()
print(first > 0, read > first, len(gc.get_objects()) < read / 10, gc.get_freeze_count() == read)
"""


@pytest.mark.parametrize("is_kept", [True, False])
def test_what_is_loaded_is_no_garbage(store, is_kept):
    """In a process of Spark's; the collector of any other is left alone."""
    store.create_topic("orders")[0].append(b"v")
    environment = {name: text for name, text in os.environ.items() if name != "SPARK_REUSE_WORKER"}
    if is_kept:
        environment["SPARK_REUSE_WORKER"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", READ, store.paths[0]],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(is_kept)] * 3 + ["True"]
