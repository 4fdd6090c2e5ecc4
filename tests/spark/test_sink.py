"""The sink in Spark: batch writes and streams, repeated, killed, beside another writer."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

import logstore

FEW = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}


@pytest.fixture(name="path")
def _path(tmp_path):
    """A store with topics, which nobody holds."""
    path = str(tmp_path / "data")
    with logstore.open_store(path, config=FEW) as store:
        source = store.create_topic("in", partitions=2)
        store.create_topic("out", partitions=2)
        for at in range(20):
            source[at % 2].append(
                b"%d" % at,
                key=b"k%d" % at,
                headers=[("h", b"%d" % at)] if at % 3 else (),
                timestamp=1_700_000_000_000 + at,
            )
    yield path
    with logstore.open_store(path) as store:
        assert [] == list(store.check())
        assert [] == list(store.errors)


def frame(spark, path, topic="in"):
    """Return what a topic holds."""
    reader = spark.read.format("logstore").option("includeHeaders", "true")
    return reader.option("subscribe", topic).load(path)


def save(df, path, **options):
    """Append rows to a store."""
    df.write.format("logstore").options(**options).mode("append").save(path)


def records(path, topic="out"):
    """Return what a reader sees, in the order of values."""
    with logstore.open_store(path, mode="r") as store:
        found = [record for log in store[topic].logs() for record in log]
        sinks = store.sinks()
    found.sort(key=lambda record: int(record.value))
    return found, sinks


def numbers(path, topic="out"):
    return [int(record.value) for record in records(path, topic)[0]]


def start(spark, path, checkpoint, topic="out", transform=None, **options):
    """Start a stream from topic to topic that ends with what is there."""
    reader = spark.readStream.format("logstore").options(
        subscribe="in", startingOffsets="earliest", includeHeaders="true"
    )
    rows = reader.load(path).drop("topic", "partition")
    if transform is not None:
        rows = transform(rows)
    writer = rows.writeStream.format("logstore").options(topic=topic, **options)
    return writer.trigger(availableNow=True).option("checkpointLocation", checkpoint).start(path)


def forget_last_commit(checkpoint):
    """Leave a checkpoint as a driver does that is killed behind the sink's commit."""
    commits = os.path.join(checkpoint, "commits")
    last = max(int(name) for name in os.listdir(commits) if name.isdecimal())
    for name in (f"{last}", f".{last}.crc"):
        if os.path.exists(os.path.join(commits, name)):
            os.unlink(os.path.join(commits, name))
    return last


def leftovers(path):
    return [name for name in os.listdir(path) if name.startswith(".logstore-")]


def test_a_topic_written_back_is_the_same(spark, path):
    """Keys, values, headers and times; keys land where they were; once for txnVersion."""
    rows = frame(spark, path).drop("topic")
    for _ in range(2):
        save(rows, path, topic="out", txnAppId="copy", txnVersion="3")
    before, after = records(path, "in")[0], records(path)[0]
    fields = [(each.key, each.value, each.headers, each.timestamp) for each in after]
    assert fields == [(each.key, each.value, each.headers, each.timestamp) for each in before]
    with logstore.open_store(path, mode="r") as store:
        for partition in (0, 1):
            assert {log.value for log in store["in", partition]} == {
                log.value for log in store["out", partition]
            }
        assert [("copy", "out", 3)] == [each[:3] for each in store.sinks()]
    with pytest.raises(Exception, match="LOGSTORE_SINK_VERSION: the sink 'copy' has committed"):
        save(rows, path, topic="out", txnAppId="copy", txnVersion="2")
    assert [] == leftovers(path)


def test_refused(spark, path, tmp_path):
    """With one line that says what to do, and nothing written."""
    rows = frame(spark, path).select("value")
    for options, text in (
        ({}, "topic option required when no 'topic' attribute is present"),
        ({"topic": "no"}, "LOGSTORE_UNKNOWN_TOPIC: there is no topic 'no'"),
        ({"topic": "__consumer_offsets"}, "LOGSTORE_INVALID_TOPIC"),
    ):
        with pytest.raises(Exception, match=text):
            save(rows, path, **options)
    with pytest.raises(Exception, match="Save mode overwrite not allowed"):
        rows.write.format("logstore").option("topic", "out").mode("overwrite").save(path)
    with pytest.raises(Exception, match=r"LOGSTORE_STORE_NOT_FOUND: .* createTopics=true"):
        save(rows, str(tmp_path / "nowhere"), topic="out")
    assert not (tmp_path / "nowhere").exists()
    assert ([], []) == (numbers(path), leftovers(path))


def test_topics_are_made(spark, path, tmp_path):
    """By the column, with numPartitions; the store too."""
    rows = frame(spark, path).selectExpr(
        "value", "key", "if(int(string(value)) < 10, 'low', 'high') topic"
    )
    for root in (path, str(tmp_path / "new")):
        save(rows, root, createTopics="true", numPartitions="3")
        assert list(range(10)) == numbers(root, "low")
        assert list(range(10, 20)) == numbers(root, "high")
        with logstore.open_store(root, mode="r") as store:
            assert 3 == len(store["low"])
            assert [] == store.sinks()


def test_a_batch_that_is_repeated_is_there_once(spark, path, tmp_path):
    """The driver is killed behind the sink's commit; then more comes; then the batch fails."""
    checkpoint = str(tmp_path / "checkpoint")
    query = start(spark, path, checkpoint)
    assert query.awaitTermination(60)
    identity = str(query.id)
    assert list(range(20)) == numbers(path)
    last = forget_last_commit(checkpoint)
    assert start(spark, path, checkpoint).awaitTermination(60)
    found, sinks = records(path)
    assert list(range(20)) == [int(record.value) for record in found]
    assert [(identity, "out", last)] == [each[:3] for each in sinks]
    with logstore.open_store(path) as store:
        store["in", 0].append(b"20", key=b"k")
    assert start(spark, path, checkpoint).awaitTermination(60)
    assert list(range(21)) == numbers(path)
    assert [] == leftovers(path)


def test_output_modes(spark, path, tmp_path):
    """Complete appends every row of the result; update is refused by Spark, for sinks in Python."""
    stream = spark.readStream.format("logstore").option("startingOffsets", "earliest")
    counts = stream.option("subscribe", "in").load(path).groupBy("topic").count()
    writer = counts.selectExpr("string(count) AS value").writeStream.format("logstore")
    writer = writer.option("topic", "out").option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(Exception, match="does not support Update mode"):
        writer.outputMode("update").trigger(availableNow=True).start(path).awaitTermination(60)
    query = writer.outputMode("complete").trigger(availableNow=True).start(path)
    assert query.awaitTermination(60)
    assert [20] == numbers(path)


def test_a_killed_worker(spark, path, tmp_path):
    """Its task is run again, by itself or with the query; each record is there once."""
    flag = tmp_path / "killed"

    def die_once(batches):
        for batch in batches:
            yield batch
            if not flag.exists():
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def through(rows):
        rows = rows.select("key", "value")
        return rows.mapInArrow(die_once, rows.schema)

    checkpoint = str(tmp_path / "checkpoint")
    try:
        assert start(spark, path, checkpoint, transform=through).awaitTermination(60)
    except Exception:  # noqa: BLE001 - Without retries of tasks the query ends; it is started again.
        assert flag.exists()
        assert start(spark, path, checkpoint, transform=through).awaitTermination(60)
    assert flag.exists()
    assert list(range(20)) == numbers(path)


def test_page(spark, tmp_path):
    """The programs of docs/exactly-once.md run as they stand there, and again."""
    page = (Path(__file__).parents[2] / "docs" / "exactly-once.md").read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    root = str(tmp_path / "data" / "logs")
    os.mkdir(tmp_path / "data")
    with logstore.open_store(root, config=FEW) as store:
        store.create_topic("large")
        store.create_topic("orders")[0].extend([b"1", b"200", b"30", b"4000"])
    names = {"spark": spark}
    exec("\n".join(programs).replace('"/data/', f'"{tmp_path}/data/'), names)
    batch = spark.read.format("logstore").option("subscribe", "orders").load(root)
    names["write"](batch, 0)
    assert [1, 30, 200, 4000] == numbers(root, "copied")
    assert [200, 4000] == numbers(root, "large")


def test_beside_a_process_that_holds_the_store(spark, path, tmp_path):
    """It commits for the stream, and goes on with its own; one that does not answer is named."""
    with logstore.open_store(path, config=FEW) as holder:
        query = start(spark, path, str(tmp_path / "checkpoint"))
        holder["out", 0].append(b"100")
        assert query.awaitTermination(60)
        assert 21 == sum(len(list(log)) for log in holder["out"].logs())
        holder._requests_task.cancel()
        rows = frame(spark, path).select("value")
        with pytest.raises(Exception, match=f"LOGSTORE_LOCKED: process {os.getpid()} on host"):
            save(rows, path, topic="out", writerTimeout="100ms")
    assert [*range(20), 100] == numbers(path)
    assert [] == leftovers(path)
