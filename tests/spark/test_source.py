"""The source in a real Spark: few tests, each of what only Spark itself can show."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from sampling import IS_CI, IS_NIGHTLY
from spark_session import JVM_OPTIONS, environment

import logstore
import logstore.spark
from benchmarks.harness import run_contest
from benchmarks.sizes import SMOKE
from benchmarks.spark_source import CONTESTS

pytest.importorskip("pyspark", reason="needs the extra [spark-local]")

FIXED = ("topic", "partition", "offset", "timestamp", "timestampType")


@pytest.fixture
def orders(store):
    """A store with the topic ``orders``: three partitions, five records each."""
    topic = store.create_topic("orders", partitions=3)
    for partition in topic:
        fill(topic[partition], 0, 5)
    return store


def fill(log, first, count):
    """Append records that say where they are."""
    for number in range(first, first + count):
        headers = [("place", b"%d" % number)] if number % 2 else ()
        log.append(b"%d" % number, key=None if number % 3 else b"k", headers=headers)


def load(spark, store, schema=None, **options):
    reader = spark.read.format("logstore").options(subscribe="orders", **options)
    return (reader if schema is None else reader.schema(schema)).load(store.paths[0])


def offsets(frame):
    return sorted((row.partition, row.offset) for row in frame.collect())


def spread(*ranges):
    return [
        (partition, offset) for partition, (a, b) in enumerate(ranges) for offset in range(a, b)
    ]


class Stream:
    """A query with a checkpoint, run until nothing is left."""

    def __init__(self, spark, store, directory, **options):
        self.spark = spark
        self.store = store
        self.checkpoint = directory / "checkpoint"
        self.options = {"subscribe": "orders", **options}
        self.batches = {}

    def take(self, frame, number):
        rows = [
            (row.partition, row.offset) for row in frame.select("partition", "offset").collect()
        ]
        self.batches.setdefault(number, []).append(sorted(rows))

    def start(self, **trigger):
        stream = self.spark.readStream.format("logstore").options(**self.options)
        frame = stream.load(self.store.paths[0])
        writer = frame.writeStream.foreachBatch(self.take)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**trigger).start()

    def run(self):
        query = self.start(availableNow=True)
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()

    @property
    def rows(self):
        """What the sink has in the end: of a batch that was repeated, the last try."""
        return sorted(row for tries in self.batches.values() for row in tries[-1])

    def write_checkpoint(self, offsets):
        """Make the checkpoint of a query that has ended its first batch at these offsets."""
        for name, lines in {
            "metadata": [json.dumps({"id": str(uuid.uuid4())})],
            "offsets/0": ["v1", json.dumps({"batchWatermarkMs": 0, "conf": {}}), offsets],
            "commits/0": ["v1", json.dumps({"nextBatchWatermarkMs": 0})],
        }.items():
            path = self.checkpoint / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines))

    def forget_commit(self, number):
        for name in (str(number), f".{number}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def logged(self, number):
        """The offsets of a batch as the checkpoint has them."""
        return json.loads((self.checkpoint / "offsets" / str(number)).read_text().split("\n")[2])


def test_all_columns(spark, orders):
    """The schema is the connector's, and every value is where it belongs."""
    frame = load(spark, orders, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert [field.name for field in frame.schema if not field.nullable] == list(FIXED)
    rows = {(row.partition, row.offset): row for row in frame.collect()}
    assert sorted(rows) == spread((0, 5), (0, 5), (0, 5))
    row = rows[1, 3]
    assert (row.key, row.value, row.topic) == (bytearray(b"k"), bytearray(b"3"), "orders")
    assert [(each.key, each.value) for each in row.headers] == [("place", bytearray(b"3"))]
    assert row.timestampType == 0
    assert rows[1, 1].key is None
    assert rows[1, 2].headers is None
    times = frame.filter("partition = 1 and offset = 3").selectExpr("unix_millis(timestamp) ms")
    assert times.first().ms == orders["orders", 1][3].timestamp


def test_narrower_schemas(spark, orders):
    """A user's schema is any part of ours; keys and values may be text."""
    frame = load(spark, orders, "value string, partition int, offset bigint not null")
    assert sorted(map(tuple, frame.collect()))[:3] == [("0", 0, 0), ("0", 1, 0), ("0", 2, 0)]
    assert load(spark, orders, columns="offset").agg({"offset": "sum"}).first()[0] == 30
    assert load(spark, orders, "topic string").distinct().collect()[0].topic == "orders"
    with pytest.raises(Exception, match="LOGSTORE_COLUMN_TYPE: column offset is string"):
        load(spark, orders, "offset string").collect()


def test_one_scan_twice(spark, orders):
    """A DataFrame in one plan twice gives everything twice: no filter leaks between scans."""
    frame = load(spark, orders)
    assert frame.filter("offset >= 4").union(frame).count() == 3 + 15
    assert frame.union(frame).count() == 30


def test_filters(spark, orders):
    """Bounds of offset, partition and time leave out what they can."""
    time = orders["orders", 1][4].timestamp
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, orders, filterPushdown="true")
        condition = f"partition > 0 and offset in (3, 4) and timestamp >= timestamp_millis({time})"
        assert offsets(frame.filter(condition))[0] in [(1, 3), (1, 4)]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_large_records(spark, store):
    """Each has a record batch of its own, the first one too."""
    config = {"max.message.bytes": 64 << 20}
    log = store.create_topic("orders", partitions=1, config=config)[0]
    for size_bytes in (20 << 20, 1, 17 << 20):
        log.append(bytes(size_bytes))
    sizes = load(spark, store).selectExpr("length(value) AS size").collect()
    assert [row.size for row in sizes] == [20 << 20, 1, 17 << 20]


@pytest.mark.repository
def test_documentation(spark, tmp_path, monkeypatch, capsys):
    """The program of docs/spark.md prints what its comments say."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text("utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "spark.md", "exec"), {})
    printed = capsys.readouterr().out.split()
    assert re.findall(r"print\(.*\)  # (.*)", code) == printed


def test_tables_and_other_sessions(spark, orders):
    """SQL knows the format; a session that did not register it finds it by itself."""
    where = f"'path' '{orders.paths[0]}', 'subscribe' 'orders'"
    spark.sql(f"CREATE TEMPORARY VIEW orders_view USING logstore OPTIONS ({where})")
    query = "SELECT partition, count(*) AS n FROM orders_view GROUP BY partition"
    assert sorted(map(tuple, spark.sql(query).collect())) == [(0, 5), (1, 5), (2, 5)]
    spark.sql(f"CREATE TABLE orders_table USING logstore OPTIONS ({where})")
    try:
        with pytest.raises(Exception, match=r"LOGSTORE_MISSING_PATH: .* WITH .* TEMPORARY VIEW"):
            spark.sql("SELECT * FROM orders_table").collect()
        again = f"WITH (path = '{orders.paths[0]}', subscribe = 'orders')"
        assert 15 == spark.sql(f"SELECT * FROM orders_table {again}").count()
    finally:
        spark.sql("DROP TABLE orders_table")
    spark.sql("CREATE TABLE texts (key STRING, value STRING) USING logstore")
    try:
        where = f"path = '{orders.paths[0]}', topic = 'orders'"
        spark.sql(f"INSERT INTO texts WITH ({where}) VALUES ('a', 'b'), ('c', NULL)")
        where = f"path = '{orders.paths[0]}', subscribe = 'orders'"
        query = f"SELECT * FROM texts WITH ({where}) WHERE key > 'Z' AND key <> 'k'"
        assert sorted(map(tuple, spark.sql(query).collect())) == [("a", "b"), ("c", None)]
    finally:
        spark.sql("DROP TABLE texts")
    if " " not in sys.executable:  # Spark asks a shell whether it is there, without quotes.
        assert load(spark.newSession(), orders).count() == 17


def test_errors_come_at_load(spark, orders):
    """One line with a code, before anything is read."""
    with pytest.raises(Exception, match=r"LOGSTORE_UNKNOWN_OPTION: .*did you mean minPartitions"):
        load(spark, orders, minPartition="4")
    with pytest.raises(Exception, match="LOGSTORE_RELATIVE_PATH") as error:
        spark.read.format("logstore").option("subscribe", "orders").load("data")
    assert "Traceback" not in str(error.value)


def test_a_stream_from_the_latest(spark, orders, tmp_path):
    """What is appended while a query is down is read, also after it has repeated its batches."""
    stream = Stream(spark, orders, tmp_path)
    stream.run()
    assert stream.rows == []
    for partition in (0, 2):
        fill(orders["orders", partition], 5, 2)
    stream.forget_commit(0)
    stream.run()
    assert stream.rows == [(0, 5), (0, 6), (2, 5), (2, 6)]
    last = max(stream.batches)
    before = stream.logged(last)
    assert before == {"orders": {"0": 7, "1": 5, "2": 7}}
    fill(orders["orders", 1], 5, 1)
    stream.forget_commit(last)
    stream.run()
    assert stream.batches[last][0] == stream.batches[last][1]
    assert stream.rows == [(0, 5), (0, 6), (1, 5), (2, 5), (2, 6)]


def test_a_stream_within_limits(spark, orders, tmp_path):
    """A limit makes as many batches as it takes; an idle query logs none."""
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "6"}
    stream = Stream(spark, orders, tmp_path, **options)
    stream.run()
    assert stream.rows == spread((0, 5), (0, 5), (0, 5))
    assert [len(tries[0]) for tries in stream.batches.values()] == [6, 6, 3]
    query = stream.start(processingTime="0 seconds")
    try:
        query.processAllAvailable()
        time.sleep(0.5)  # Some 40 looks.
        assert len(stream.batches) == 3
        fill(orders["orders", 0], 5, 1)
        query.processAllAvailable()
        assert stream.rows == spread((0, 6), (0, 5), (0, 5))
        assert logstore.spark.lag(query.lastProgress) == {("orders", each): 0 for each in range(3)}
    finally:
        query.stop()
    assert sorted(each.name for each in (stream.checkpoint / "offsets").glob("[0-9]*")) == [
        "0",
        "1",
        "2",
        "3",
    ]


def test_a_checkpoint_of_the_connector(spark, orders, tmp_path):
    """A query moves over with its checkpoint."""
    stream = Stream(spark, orders, tmp_path)
    stream.write_checkpoint('{"orders":{"2":5,"1":4,"0":2}}')
    stream.run()
    assert stream.rows == [(0, 2), (0, 3), (0, 4), (1, 4)]


def test_retention_passes_the_reader(spark, orders, tmp_path):
    """What is gone is named offset by offset, and stepped over if that is wanted."""
    stream = Stream(spark, orders, tmp_path)
    stream.write_checkpoint('{"orders":{"0":1,"1":5,"2":5}}')
    orders["orders", 0].maybe_increment_log_start_offset(3)
    with pytest.raises(Exception, match=r"LOGSTORE_DATA_LOSS: orders-0: offsets \[1, 3\) are gone"):
        stream.run()
    stream.options["failOnDataLoss"] = "false"
    stream.run()
    assert stream.rows == [(0, 3), (0, 4)]


JOB = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = spark.read.format("logstore").option("subscribe", "orders").load(sys.argv[1])
options = {"topic": "copied", "createTopics": "true", "numPartitions": "3"}
rows.write.format("logstore").options(**options).mode("append").save(sys.argv[1])
spark.stop()
"""


@pytest.mark.skipif(not (IS_CI or IS_NIGHTLY), reason="costs 15 s: for CI and the nightly run")
def test_spark_submit(orders, tmp_path):
    """A job that does not register the format, and knows of no setting."""
    (tmp_path / "job.py").write_text(JOB)
    submit = Path(importlib.util.find_spec("pyspark").origin).parent / "bin/spark-submit"
    command = [submit, "--master", "local[1]", "--conf", "spark.ui.enabled=false"]
    command += ["--driver-java-options", JVM_OPTIONS]
    done = subprocess.run(
        [*command, tmp_path / "job.py", orders.paths[0]],
        env={
            **os.environ,
            **environment(tmp_path),
            "JAVA_HOME": logstore.spark.java_home(),
            "SPARK_HOME": str(submit.parents[1]),
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    assert 15 == sum(len(list(log)) for log in orders["copied"].logs())


@pytest.mark.skipif(not IS_NIGHTLY, reason="for the nightly run")
@pytest.mark.parametrize("name", CONTESTS)
def test_contests_run_at_smoke_size(spark, tmp_path, name):
    """Benchmarks do not rot."""
    outcome = run_contest(CONTESTS[name](tmp_path, SMOKE), rounds=1)
    assert all(outcome.seconds.values())


WRITER = """
import select, sys, logstore
with logstore.open_store(sys.argv[1]) as store:
    print("ready", flush=True)
    count = 0
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        for log in store["orders"].logs():
            log.extend([b"value"] * 10)
        count += 10
    sys.stdin.readline()
    print(count, flush=True)
    sys.stdin.read()
"""


def test_a_log_that_another_process_writes(spark, tmp_path):
    """Every record once, in order, while its writer holds the store and goes on."""
    path = tmp_path / "store"
    with logstore.open_store(path) as store:
        store.create_topic("orders", partitions=3)
    command = [sys.executable, "-c", WRITER, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(command, **pipes) as writer:
        try:
            assert writer.stdout.readline() == "ready\n"
            with logstore.open_store(path, mode="r") as store:
                stream = Stream(spark, store, tmp_path, startingOffsets="earliest")
                query = stream.start(processingTime="0 seconds")
                try:
                    wait_until(lambda: len(stream.batches) > 2)
                    writer.stdin.write("enough\n")
                    count = int(writer.stdout.readline())
                    query.processAllAvailable()
                finally:
                    query.stop()
                assert stream.rows == spread(*[(0, count)] * 3)
                assert load(spark, store).count() == 3 * count
        finally:
            writer.stdin.close()


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
