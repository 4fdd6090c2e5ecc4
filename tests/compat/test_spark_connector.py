"""
The source and the sink beside Spark's own Kafka connector: one broker, the same options.

The connector asks the broker, the source reads the broker's directory, at the same moment. Rows and
offsets are the same, and what one refuses the other refuses.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import spark_connector
from patience import until
from sampling import IS_CI, IS_NIGHTLY

import logstore

REASON = spark_connector.why_not()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=f"no Kafka connector: {REASON}"),
    pytest.mark.skipif(
        not (IS_CI or IS_NIGHTLY), reason="costs a minute: for CI and the nightly run"
    ),
]
confluent_kafka = pytest.importorskip("confluent_kafka", reason="needs the extra [kafka]")
pytest.importorskip("pyspark", reason="needs the extra [spark-local]")
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402
from kafka_broker import ROOT, kafka_broker  # noqa: E402

from logstore.kafka_import import KafkaImporter  # noqa: E402

TIME = 1_700_000_000_000
SECONDS_MAX = 60
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "1",
    "delete.retention.ms": "0",
}
# What its directory says is soon what it says.
BROKER = {
    "log.cleaner.backoff.ms": 100,
    "log.initial.task.delay.ms": 100,
    "log.flush.start.offset.checkpoint.interval.ms": 100,
    "replica.high.watermark.checkpoint.interval.ms": 100,
}
TOPICS = {"counts": 1, "orders": 2, "orders-more": 1, "trimmed": 1, "undecided": 1, "written": 3}
SIDES = ("kafka", "logstore")
BOTH = {"kafka.isolation.level": "read_committed", "fetchOffset.numRetries": "1"}


class Sides:
    """The broker, and both ways to it."""

    def __init__(self, spark, broker):
        self.spark = spark
        self.servers = broker.bootstrap_servers
        self.where = {
            "kafka": {"kafka.bootstrap.servers": self.servers},
            "logstore": {"path": str(broker.log_dirs[0])},
        }
        self.client = {"bootstrap.servers": self.servers, "log_level": 0}
        self.admin = AdminClient(self.client)
        self.plain = confluent_kafka.Producer(self.client)
        self.transactional = self.transactional_producer("a")
        self.undecided = self.transactional_producer("b")
        topics = [NewTopic(name, count, 1) for name, count in TOPICS.items()]
        topics.append(NewTopic("compacted", 1, 1, config=COMPACTED))
        for made in self.admin.create_topics(topics).values():
            made.result(SECONDS_MAX)

    def transactional_producer(self, name):
        settings = {"transactional.id": name, "transaction.timeout.ms": 600_000}
        producer = confluent_kafka.Producer({**self.client, **settings})
        producer.init_transactions(SECONDS_MAX)
        return producer

    def transaction(self, records, *, commit=True):
        """Produce in a transaction: (topic, partition, number) each."""
        producer = self.transactional
        producer.begin_transaction()
        for record in records:
            put(producer, *record)
        assert 0 == producer.flush(SECONDS_MAX)
        (producer.commit_transaction if commit else producer.abort_transaction)(SECONDS_MAX)

    def settle(self):
        """Wait until the broker's checkpoints say what the broker itself says."""
        settings = {"group.id": "g", "isolation.level": "read_uncommitted"}
        consumer = confluent_kafka.Consumer({**self.client, **settings})
        for path in Path(self.where["logstore"]["path"]).glob("*-[0-9]"):
            topic, _, partition = path.name.rpartition("-")
            if topic in TOPICS or topic == "compacted":
                place = confluent_kafka.TopicPartition(topic, int(partition))
                wait_for_bounds(path, consumer.get_watermark_offsets(place, SECONDS_MAX))
        consumer.close()

    def load(self, side, **options):
        """A batch read."""
        options = {**BOTH, **self.where[side], **dotted(options)}
        return self.spark.read.format(side).options(**options).load()

    def stream(self, side, **options):
        options = {**BOTH, **self.where[side], **dotted(options)}
        return self.spark.readStream.format(side).options(**options).load()


def wait_for_bounds(path, expected):
    with logstore.open(path, "r") as log:
        until(lambda: (log.log_start_offset, log.log_end_offset) == expected)


def dotted(options):
    return {name.replace("__", "."): value for name, value in options.items()}


def put(producer, topic, partition, number):
    """A record of which each part says which it is; some have none of one."""
    headers = [("n", b"%d" % number), ("n", None), ("é", b"")] if number % 4 == 1 else None
    producer.produce(
        topic,
        None if number % 7 == 5 else b"v%d" % number,
        key=None if number % 5 == 4 else b"k%d" % (number % 3),
        partition=partition,
        timestamp=TIME + number,
        headers=headers,
    )


@pytest.fixture(scope="module", name="sides")
def _sides(spark, tmp_path_factory):
    try:
        spark_connector.add_connector(spark)
    except spark_connector.BrokerError as error:
        pytest.skip(str(error))
    with kafka_broker(tmp_path_factory.mktemp("broker"), BROKER) as broker:
        sides = Sides(spark, broker)
        fill(sides)
        yield sides


def fill(sides):
    """Records, transactions of all ends, a compacted topic, and one without its beginning."""
    orders = [("orders", number % 2, number) for number in range(40)]
    for number in (0, 1, 2, 3, 5, 6, 7, 8):  # All with a key.
        put(sides.plain, "compacted", 0, number)
    for number in range(6):
        put(sides.plain, "trimmed", 0, number)
    assert 0 == sides.plain.flush(SECONDS_MAX)
    put(sides.plain, "compacted", 0, 1000)  # In a segment of its own.
    sides.transaction(orders[:12])
    sides.transaction([*orders[12:18], ("orders-more", 0, 1)], commit=False)
    for order in orders[18:24]:
        put(sides.plain, *order)
    assert 0 == sides.plain.flush(SECONDS_MAX)
    sides.transaction([*orders[24:], ("orders-more", 0, 2), ("undecided", 0, 3)])
    sides.undecided.begin_transaction()
    for number in (4, 5):
        put(sides.undecided, "undecided", 0, number)
    assert 0 == sides.undecided.flush(SECONDS_MAX)
    trimmed = confluent_kafka.TopicPartition("trimmed", 0, 3)
    sides.admin.delete_records([trimmed])[trimmed].result(SECONDS_MAX)
    path = Path(sides.where["logstore"]["path"]) / "compacted-0"
    with logstore.open(path, "r") as log:
        until(lambda: log.log_end_offset == 9)
        until(lambda: len(list(log.read("earliest"))) < 9)
    sides.settle()


ROWS = {
    "all": {"subscribe": "orders"},
    "headers": {"subscribe": "orders", "includeHeaders": "true"},
    "several topics": {"subscribe": "orders, trimmed"},
    "a pattern": {"subscribePattern": "orders.*"},
    "assigned": {"assign": '{"orders": [1], "orders-more": [0]}'},
    "aborted too": {"subscribe": "orders", "kafka.isolation.level": "read_uncommitted"},
    "undecided": {"subscribe": "undecided"},
    "undecided too": {"subscribe": "undecided", "kafka.isolation.level": "read_uncommitted"},
    "compacted": {"subscribe": "compacted"},
    "trimmed": {"subscribe": "trimmed"},
    "offsets": {
        "subscribe": "orders",
        "startingOffsets": '{"orders": {"0": 3, "1": -2}}',
        "endingOffsets": '{"orders": {"0": -1, "1": 9}}',
    },
    "from a time": {"subscribe": "orders", "startingTimestamp": str(TIME + 21)},
    "to a time": {"subscribe": "orders", "endingTimestamp": str(TIME + 21)},
    "to a time later than all": {"subscribe": "orders", "endingTimestamp": str(2 * TIME)},
    "times by partition": {
        "subscribe": "orders",
        "startingOffsetsByTimestamp": json.dumps({"orders": {"0": TIME + 3, "1": TIME + 13}}),
        "endingOffsetsByTimestamp": json.dumps({"orders": {"0": TIME + 30, "1": 2 * TIME}}),
    },
    "from a time later than all": {
        "subscribe": "orders",
        "startingTimestamp": str(2 * TIME),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "what is gone is stepped over": {
        "subscribe": "trimmed",
        "startingOffsets": '{"trimmed": {"0": 1}}',
        "failOnDataLoss": "false",
    },
}


def rows(frame):
    return sorted((tuple(row) for row in frame.collect()), key=lambda row: row[2:5])


@pytest.mark.parametrize("case", ROWS)
def test_rows(sides, case):
    """The same rows and the same columns."""
    theirs, ours = (sides.load(side, **ROWS[case]) for side in SIDES)
    assert theirs.schema.simpleString() == ours.schema.simpleString()
    expected = rows(theirs)
    assert expected == rows(ours)
    assert bool(expected) == (case != "from a time later than all")


@pytest.mark.parametrize("most", [None, "5"])
def test_tasks(sides, most):
    """Offsets are spread over tasks by the same rules."""
    options = {"minPartitions": "5"}
    if most is not None:  # The connector heeds it where it splits anyway.
        options["maxRecordsPerPartition"] = most

    def tasks(side):
        frame = sides.load(side, subscribe="orders", **options)
        found = {}
        columns = frame.selectExpr("spark_partition_id()", "partition", "offset")
        for number, partition, offset in columns.collect():
            found.setdefault(number, []).append((partition, offset))
        return sorted(sorted(each) for each in found.values())

    assert tasks("kafka") == tasks("logstore")


# An error of a task: that of a jar which came later than the session has no text in the driver.
IN_A_TASK = "Job aborted due to stage failure"
# What is asked for, what the connector says, and what is said here.
REFUSED = {
    "unknown topic": (
        {"subscribe": "nowhere"},
        "UnknownTopicOrPartition",
        "UNKNOWN_TOPIC_OR_PARTITION",
    ),
    "two that say which": (
        {"subscribe": "orders", "assign": '{"orders": [0]}'},
        "Only one of the following options",
        "INVALID_OPTION: one of the options",
    ),
    "none that says which": (
        {},
        "One of the following options must be",
        "INVALID_OPTION: one of the options",
    ),
    "from the end": (
        {"subscribe": "orders", "startingOffsets": "latest"},
        "starting offset can't be latest",
        "INVALID_OPTION: option startingOffsets cannot be latest",
    ),
    "to the beginning": (
        {"subscribe": "orders", "endingOffsets": "earliest"},
        "ending offset can't be earliest",
        "INVALID_OPTION: option endingOffsets cannot be earliest",
    ),
    "one partition only": (
        {"subscribe": "orders", "startingOffsets": '{"orders": {"0": 1}}'},
        "start offsets don't match what are assigned",
        "START_OFFSET_DOES_NOT_MATCH_ASSIGNED",
    ),
    "an end before the start": (
        {
            "subscribe": "orders",
            "startingOffsets": '{"orders": {"0": 5, "1": 5}}',
            "endingOffsets": '{"orders": {"0": 4, "1": 5}}',
        },
        "start offset 5 is greater than the end offset 4",
        "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET: orders-0",
    ),
    "no JSON": (
        {"subscribe": "orders", "startingOffsets": '{"orders": '},
        "Expected e.g.",
        "INVALID_OPTION: option startingOffsets is no JSON",
    ),
    "no record so late": (
        {"subscribe": "orders", "startingTimestamp": str(2 * TIME)},
        "No offset matched from request of topic-partition orders-",
        "NO_OFFSET_FOR_TIMESTAMP: no record of orders-",
    ),
    "no number": (
        {"subscribe": "orders", "minPartitions": "a"},
        'For input string: "a"',
        "INVALID_OPTION: option minPartitions is 'a'",
    ),
    "a setting that is taken": (
        {"subscribe": "orders", "kafka.auto.offset.reset": "latest"},
        "Kafka option 'auto.offset.reset' is not supported",
        "UNSUPPORTED_OPTION: Kafka option 'kafka.auto.offset.reset' is not supported",
    ),
    "gone": (
        {"subscribe": "trimmed", "startingOffsets": '{"trimmed": {"0": 1}}'},
        IN_A_TASK,
        r"DATA_LOSS: trimmed-0: offsets \[1, 3\) are gone",
    ),
    "not yet there": (
        {
            "subscribe": "trimmed",
            "startingOffsets": '{"trimmed": {"0": 4}}',
            "endingOffsets": '{"trimmed": {"0": 90}}',
            "kafkaConsumer.pollTimeoutMs": "500",
        },
        IN_A_TASK,
        r"DATA_LOSS: trimmed-0: offsets \[6, 90\) are not there",
    ),
}
REFUSED_STREAMS = {
    "an end": (
        {"endingOffsets": "latest"},
        "ending offset not valid in streaming queries",
        "INVALID_OPTION: option endingOffsets is for batch queries",
    ),
    "more than at most": (
        {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
        "minOffsetPerTrigger.9. is higher than the maxOffsetsPerTrigger.8.",
        "INVALID_OPTION: option maxOffsetsPerTrigger is 8, less than minOffsetsPerTrigger .9.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(sides, case):
    """What the connector refuses is refused here."""
    options, *texts = REFUSED[case]
    for side, text in zip(SIDES, texts, strict=True):
        with pytest.raises(Exception, match=text):
            sides.load(side, **options).collect()


@pytest.mark.parametrize("case", REFUSED_STREAMS)
def test_refused_streams(sides, tmp_path, case):
    """At load() by the connector; here at start() where Spark does not say sooner what it is."""
    options, *texts = REFUSED_STREAMS[case]
    for side, text in zip(SIDES, texts, strict=True):
        with pytest.raises(Exception, match=text):
            Query(sides, tmp_path).run(side, subscribe="orders", **options)


class Query:
    """A stream that ends with what is there; its batches, and its checkpoint."""

    def __init__(self, sides, checkpoint):
        self.sides = sides
        self.checkpoint = checkpoint
        self.batches = {}

    def run(self, side, **options):
        def take(frame, number):
            self.batches[number] = rows(frame)

        stream = self.sides.stream(side, **options)
        writer = stream.writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.checkpoint)).start()
        try:
            assert query.awaitTermination(SECONDS_MAX)
        finally:
            query.stop()

    def offsets(self):
        """What is logged for each batch."""
        logged = [each for each in (self.checkpoint / "offsets").iterdir() if each.name.isdecimal()]
        return {int(each.name): json.loads(each.read_text().split("\n")[2]) for each in logged}


def test_streams(sides, tmp_path):
    """The same batches at the same offsets; and the connector's checkpoint goes on here."""
    options = {"subscribe": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "15"}
    theirs, ours = Query(sides, tmp_path / "kafka"), Query(sides, tmp_path / "logstore")
    theirs.run("kafka", **options)
    ours.run("logstore", **options)
    assert len(theirs.batches) > 2
    assert theirs.batches == ours.batches
    assert theirs.offsets() == ours.offsets()

    moved = Query(sides, tmp_path / "moved")
    shutil.copytree(theirs.checkpoint, moved.checkpoint)
    before = set(theirs.batches)
    sides.transaction([("orders", number % 2, number) for number in range(40, 60)])
    sides.settle()
    theirs.run("kafka", **options)
    moved.run("logstore", **options)
    assert theirs.batches.keys() > before
    assert moved.batches == {at: theirs.batches[at] for at in theirs.batches if at not in before}
    assert theirs.offsets() == moved.offsets()


@pytest.fixture(name="path")
def _path(tmp_path):
    """A store with the topic ``written``."""
    path = str(tmp_path / "store")
    with logstore.open_store(path, config={"transaction.state.log.num.partitions": 1}) as store:
        store.create_topic("written", partitions=TOPICS["written"])
    return path


def write(sides, side, path, frame, **options):
    where = {"path": path} if side == "logstore" else sides.where[side]
    frame.write.format(side).options(**where, **options).mode("append").save()


def test_written_rows(sides, path):
    """Keys land in the same partitions, in the same order, with the same headers."""
    numbers = sides.spark.range(200).coalesce(1)
    frame = numbers.selectExpr(
        "if(id % 7 = 3, NULL, concat('key ', id % 40)) AS key",
        "if(id % 11 = 3, NULL, concat('value ', id)) AS value",
        "if(id % 7 = 3, int(id % 3), NULL) AS partition",
        "if(id % 2 = 0, array(named_struct('key', 'h', 'value', cast('x' AS binary)),"
        " named_struct('key', 'h', 'value', NULL)), NULL) AS headers",
    )
    for side in SIDES:
        write(sides, side, path, frame, topic="written")
    theirs, ours = (
        sides.load("kafka", subscribe="written", includeHeaders="true"),
        sides.load("logstore", subscribe="written", includeHeaders="true", path=path),
    )
    columns = ("partition", "key", "value", "headers")
    theirs, ours = (
        [tuple(row) for row in each.orderBy("partition", "offset").select(*columns).collect()]
        for each in (theirs, ours)
    )
    assert len(theirs) == 200
    assert theirs == ours


REFUSED_WRITES = {
    "no topic": ("value", {}, *["topic option required when no 'topic' attribute is present"] * 2),
    "no value": ("key", {"topic": "written"}, *["Required attribute 'value' not found"] * 2),
    "a number": (
        "id AS value",
        {"topic": "written"},
        *[r"value must be a\(n\) string or binary"] * 2,
    ),
    "a topic of null": (
        "value, string(NULL) AS topic",
        {},
        IN_A_TASK,
        "NULL_TOPIC: null topic present in the data",
    ),
    "an unknown topic": (
        "value",
        {"topic": "nowhere", "kafka.max.block.ms": "500"},
        IN_A_TASK,
        "UNKNOWN_TOPIC: there is no topic 'nowhere'",
    ),
    "an encoder": (
        "value",
        {"topic": "written", "kafka.key.serializer": "x"},
        *["Kafka option '(kafka.)?key.serializer' is not supported"] * 2,
    ),
}


@pytest.mark.parametrize("case", REFUSED_WRITES)
def test_refused_writes(sides, path, case):
    """What the connector does not write is not written here."""
    columns, options, *texts = REFUSED_WRITES[case]
    rows = sides.spark.range(3).selectExpr("id", "string(id) AS key", "string(id) AS value")
    for side, text in zip(SIDES, texts, strict=True):
        with pytest.raises(Exception, match=text):
            write(sides, side, path, rows.selectExpr(*columns.split(", ")), **options)


def versions_of_the_job():
    """Both sides of the difference in docs/spark-from-kafka.md, as functions."""
    page = (ROOT / "docs" / "spark-from-kafka.md").read_text(encoding="utf-8")
    (difference,) = re.findall(r"^```diff\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for sign in "-+":
        lines = [line[1:] for line in difference.splitlines() if line[0] in (" ", sign)]
        names = {}
        exec(compile("\n".join(lines), "spark-from-kafka.md", "exec"), names)
        yield names["start"]


def test_a_job_moves(sides, tmp_path):
    """A query with state is stopped, its topics are copied, and it goes on with its checkpoint."""
    before, after = versions_of_the_job()
    path = str(tmp_path / "logs")

    def run(start, checkpoint):
        query = start(sides.spark, sides.servers, path, str(tmp_path / checkpoint))
        assert query.awaitTermination(SECONDS_MAX)

    def counts(side, **options):
        frame = sides.load(side, subscribe="counts", **options).orderBy("key", "offset")
        return [tuple(row) for row in frame.select("key", "value").collect()]

    run(before, "moved")
    shutil.copytree(tmp_path / "moved", tmp_path / "stayed")
    sides.transaction([("orders", number % 2, number) for number in range(60, 80)])
    with logstore.open_store(path, config={"transaction.state.log.num.partitions": 1}) as store:
        for topic in ("orders", "counts"):
            KafkaImporter(store, sides.servers).import_topic(topic)
    begun = counts("kafka")
    run(after, "moved")
    run(before, "stayed")
    assert len(begun) < len(counts("kafka"))
    assert counts("kafka") == counts("logstore", path=path)
