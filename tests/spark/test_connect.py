"""
Spark Connect: a client without a JVM does all that a session does.

The programs here are clients of the session of the tests, each in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from sampling import IS_CI, IS_NIGHTLY

pytest.importorskip("pyspark", reason="needs the extra [spark-local]")

START = """
import pathlib
import sys
import logstore.spark
from pyspark.sql import SparkSession

url, path, directory = sys.argv[1:]
spark = logstore.spark.configure(SparkSession.builder.remote(url)).getOrCreate()
logstore.spark.register(spark)


def load(topic="orders"):
    return spark.read.format("logstore").option("subscribe", topic).load(path)
"""

BATCHES_AND_STREAMS = """
print(load().count())
stream = spark.readStream.format("logstore").option("startingOffsets", "earliest")
frame = stream.option("subscribe", "orders").load(path)
writer = frame.writeStream.format("memory").queryName("seen_by_client")
writer = writer.option("checkpointLocation", directory + "/checkpoint")
query = writer.trigger(availableNow=True).start()
query.awaitTermination(60)
print(spark.table("seen_by_client").count())


def write(batch, batch_id, topic="each"):
    options = {"topic": topic, "txnAppId": "client", "txnVersion": str(batch_id)}
    rows = batch.select("key", "value").write.format("logstore").option("createTopics", "true")
    rows.options(**options).mode("append").save(path)


for _ in range(2):
    write(load(), 7, "batch")
print(load("batch").count())
rows = frame.select("key", "value")
sink = rows.writeStream.format("logstore").option("topic", "stream").option("createTopics", "true")
for topic, writer in ("stream", sink), ("each", rows.writeStream.foreachBatch(write)):
    checkpoint = pathlib.Path(directory, topic)
    for _ in range(2):  # The second time Spark does not know that the batch was written.
        writer = writer.option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start(path).awaitTermination(60)
        for commit in (checkpoint / "commits").iterdir():
            commit.unlink()
    print(load(topic).count())
"""

FORMATS = """
from google.protobuf import descriptor_pb2
from logstore.spark import functions as lf
from pyspark.sql.functions import struct

AVRO = '{"type": "record", "name": "R", "fields": [{"name": "offset", "type": "long"}]}'
descriptors = descriptor_pb2.FileDescriptorSet()
message = descriptors.file.add(name="r.proto", syntax="proto3").message_type.add(name="R")
message.field.add(name="offset", number=1, type=3, label=1)
proto = descriptors.SerializeToString(), "R"
numbers = struct("offset")
for write, read in (
    (lambda: lf.to_json(numbers), lambda **how: lf.from_json("value", "offset long", **how)),
    (lambda: lf.to_avro(numbers, AVRO), lambda **how: lf.from_avro("value", AVRO, **how)),
    (
        lambda: lf.to_avro(numbers, AVRO, schema_id=7),
        lambda **how: lf.from_avro("value", AVRO, written_with={7: AVRO}, **how),
    ),
    (
        lambda: lf.to_protobuf(numbers, *proto),
        lambda **how: lf.from_protobuf("value", *proto, **how),
    ),
):
    written = load().withColumn("value", write())
    broken = load().selectExpr("key", "X'FF' AS value", "* EXCEPT (key, value)")
    mixed = written.union(broken).withColumn("read", read(mode="quarantine"))
    mixed = mixed.withColumn("lenient", read(mode="null"))
    print(mixed.selectExpr("sum(lenient.offset)", "count(lenient)", "count(read.error)").first()[:])
    whole = written.select(read().alias("read"))
    print(whole.agg({"read.offset": "sum"}).first()[0])
good, bad = lf.split_quarantine(mixed, "read")
print(good.count(), bad.count())
try:
    broken.select(read()).collect()
except Exception as error:
    print("LOGSTORE_MALFORMED_VALUE" in str(error))
"""

PIPELINES = """
from logstore.spark import functions as lf
from logstore.spark.pipelines.export import export
from logstore.spark.pipelines.ingest import ingest
from logstore.spark.pipelines.jdbc_export import export_jdbc
from pyspark.sql.functions import struct

files = pathlib.Path(directory, "in")
files.mkdir()
(files / "a.csv").write_text("id,name\\n1,x\\n2,y\\n")
csv = {"file_format": "csv", "options": {"header": "true"}, "key": "id"}
exported = {"schema": "id long, name string"}
url = f"jdbc:derby:{directory}/database;create=true"
for _ in range(2):
    print(
        ingest(spark, files, path, "people", checkpoint=directory + "/ingest", **csv).row_count,
        export(
            spark, path, "people", directory + "/lake", checkpoint=directory + "/export", **exported
        ).row_count,
        export_jdbc(
            spark, path, "people", url, "people", checkpoint=directory + "/jdbc", **exported
        ).row_count,
    )
print(spark.read.parquet(directory + "/lake").count())
print(spark.read.format("jdbc").options(url=url, dbtable="people").load().count())
table = spark.createDataFrame([("a", 1), ("b", 2)], "key string, n long")
rows = table.select("key", lf.to_json(struct("n")).alias("value")).write.format("logstore")
rows.options(topic="table", createTopics="true").mode("append").save(path)
print(load("table").count())
"""


@pytest.mark.skipif(not (IS_CI or IS_NIGHTLY), reason="each costs 10 s: for CI and the nightly run")
@pytest.mark.parametrize(
    ("program", "printed"),
    [
        pytest.param(BATCHES_AND_STREAMS, ["15"] * 5, id="batches and streams"),
        pytest.param(FORMATS, [*["(30, 15, 15)", "30"] * 4, "15 15", "True"], id="formats"),
        pytest.param(PIPELINES, ["2 2 2", "0 0 0", "2", "2", "2"], id="pipelines"),
    ],
)
def test_client(spark, store, tmp_path, program, printed):
    """It reads and writes batches and streams, both once; decodes; and runs pipelines."""
    pytest.importorskip("grpc", reason="needs pyspark[connect]")
    pytest.importorskip("orjson", reason="needs the extra [formats]")
    pytest.importorskip("google.protobuf", reason="needs the extra [formats]")
    for log in store.create_topic("orders", partitions=3).logs():
        log.extend([b"%d" % number for number in range(5)])
    port = spark.conf.get("spark.connect.grpc.binding.port")
    arguments = [f"sc://127.0.0.1:{port}", store.paths[0], str(tmp_path)]
    command = [sys.executable, "-W", "ignore", "-c", START + program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (0, printed) == (done.returncode, done.stdout.splitlines()), done.stderr
