"""Readers as Spark calls them, without a Spark: what is planned, read, lost and refused."""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
import random
import subprocess
import sys

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs the extra [spark-local]")

from pyspark.sql import types
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import logstore
from logstore.checkpoint import TopicPartition
from logstore.spark.arrow_columns import SparkColumns
from logstore.spark.data_source import LogStoreDataSource
from logstore.spark.errors import SparkSourceError
from logstore.spark.source_columns import COLUMNS, columns_of
from logstore.testing import ManualClock

HEADER = types.StructType(
    [
        types.StructField("key", types.StringType()),
        types.StructField("value", types.BinaryType()),
    ]
)
TYPES = {
    "key": types.BinaryType(),
    "value": types.BinaryType(),
    "topic": types.StringType(),
    "partition": types.IntegerType(),
    "offset": types.LongType(),
    "timestamp": types.TimestampType(),
    "timestampType": types.IntegerType(),
    "headers": types.ArrayType(HEADER),
}


def schema_of(*names, nullable=("key", "value", "headers"), text=()):
    return types.StructType(
        [
            types.StructField(
                name, types.StringType() if name in text else TYPES[name], name in nullable
            )
            for name in names
        ]
    )


def utc(milliseconds):
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)


PLACE = schema_of("partition", "offset")


@pytest.fixture
def orders(store):
    """A store with the topic ``orders``: two partitions of ten records."""
    topic = store.create_topic("orders", partitions=2)
    for log in topic.logs():
        log.extend([b"%d" % number for number in range(10)], timestamps=list(range(1000, 1010)))
    return store


def source(store, **options):
    options.setdefault("subscribe", "orders")
    if options["subscribe"] is None:
        del options["subscribe"]
    names = {name.replace("__", "."): value for name, value in options.items()}
    return LogStoreDataSource({"path": store.paths[0], **names})


def read(reader, partitions):
    """Return what tasks give, each reader and partition as it arrives there."""
    batches = []
    for partition in partitions:
        task, copied = pickle.loads(pickle.dumps((partition, reader)))
        batches += copied.read(task)
    return batches


def places(batches):
    return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())


def batch(store, **options):
    reader = source(store, **options).reader(PLACE)
    return places(read(reader, reader.partitions()))


def spread(*ranges):
    return [
        (partition, offset) for partition, (a, b) in enumerate(ranges) for offset in range(a, b)
    ]


class Stream:
    """What Spark does at each trigger, with offsets that go through text."""

    def __init__(self, store, *, schema=None, **options):
        self.reader = source(store, **options).streamReader(PLACE if schema is None else schema)
        self.start = json.dumps(self.reader.initialOffset())

    def latest(self, limit=None):
        limit = self.reader.getDefaultReadLimit() if limit is None else limit
        return json.dumps(self.reader.latestOffset(json.loads(self.start), limit))

    def planned(self, end):
        return self.reader.partitions(json.loads(self.start), json.loads(end))

    def step(self, limit=None):
        """Return the rows of the next micro-batch, None if there is none."""
        end = self.latest(limit)
        if end == self.start:
            return None
        rows = places(read(self.reader, self.planned(end)))
        self.start = end
        return rows

    def restarted(self, store, **options):
        other = Stream(store, **options)
        other.start = self.start
        return other


@pytest.fixture
def stream(orders):
    """Makes streams over the store, and ends them."""
    made = []

    def make(store=orders, **options):
        made.append(Stream(store, **options))
        return made[-1]

    yield make
    for each in made:
        each.reader.stop()


# A task that gets little more memory once it has read something.
FRUGAL_TASK = """
import json, resource, sys
from pyspark.sql import types
from logstore.spark.data_source import LogStoreDataSource

HEADER = types.StructType().add("key", "string").add("value", "binary")
SCHEMA = types.StructType().add("value", "binary").add("headers", types.ArrayType(HEADER))
SCHEMA = SCHEMA.add("topic", "string", False).add("partition", "integer", False)
SCHEMA = SCHEMA.add("timestamp", "timestamp", False)
for topic in ("uncompressed", "zstd"):
    source = LogStoreDataSource({"path": sys.argv[1], "subscribe": topic})
    reader = source.reader(SCHEMA)
    (task,) = reader.partitions()
    batches = reader.read(task)
    assert next(batches).num_rows == 1
    for line in open("/proc/self/status"):
        if line.startswith("VmData:"):
            now = int(line.split()[1]) << 10
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (now + (24 << 20), before[1]))
    sizes = [len(batch.column(0).buffers()[2]) for batch in batches if batch.num_rows]
    resource.setrlimit(resource.RLIMIT_DATA, before)
    print(json.dumps([topic, "pandas" in sys.modules, *sizes]))
"""


class TestColumns:
    @pytest.mark.parametrize(
        "names",
        [COLUMNS, COLUMNS[::-1], ("value",), ("topic",), ("headers", "offset"), ("timestamp",)],
    )
    @pytest.mark.parametrize("nullable", [("key", "value", "headers"), COLUMNS])
    def test_schema_is_exactly_sparks(self, orders, names, nullable):
        """Spark compares types, order and nullability, and refuses anything else."""
        orders["orders", 1].append(None, key=b"k", headers=[("a", None), ("a", b"2")])
        schema = schema_of(*names, nullable=nullable)
        reader = source(orders).reader(schema)
        batches = read(reader, reader.partitions())
        for each in batches:
            each.validate(full=True)
            assert to_arrow_schema(schema, timezone="UTC").equals(each.schema)
        last = pa.Table.from_batches(batches).slice(20).to_pylist()[0]
        expected = {
            "key": b"k",
            "value": None,
            "topic": "orders",
            "partition": 1,
            "offset": 10,
            "timestampType": 0,
            "headers": [{"key": "a", "value": None}, {"key": "a", "value": b"2"}],
        }
        assert (
            last.items() >= {name: expected[name] for name in names if name != "timestamp"}.items()
        )

    def test_default_schema(self, orders):
        """The connector's; what is selected has its order."""
        assert "headers" not in source(orders).schema()
        assert source(orders, includeHeaders="true").schema().count("headers ARRAY") == 1
        assert source(orders, columns="offset, VALUE").schema() == (
            "offset BIGINT NOT NULL, value BINARY"
        )

    def test_text(self, orders):
        """The same bytes, as a string."""
        reader = source(orders).reader(schema_of("key", "value", text=("value",)))
        batches = read(reader, reader.partitions()[:1])
        assert batches[0].column("value").to_pylist()[:2] == ["0", "1"]

    def test_headers_that_must_not_be_null_are_empty(self, orders):
        reader = source(orders).reader(schema_of("headers", nullable=()))
        assert read(reader, reader.partitions())[0].column("headers").to_pylist() == [[]] * 10

    def test_null_in_a_column_that_has_none(self, orders):
        reader = source(orders).reader(schema_of("key", nullable=()))
        with pytest.raises(SparkSourceError, match="LOGSTORE_NULL_VALUE: orders-0: column key is"):
            read(reader, reader.partitions())

    def test_unknown_column(self, orders):
        schema = types.StructType([types.StructField("body", types.BinaryType())])
        with pytest.raises(SparkSourceError, match="LOGSTORE_UNKNOWN_COLUMN"):
            source(orders).reader(schema)

    def test_a_time_beyond_sparks(self):
        """A producer's nanoseconds do not become another time."""
        columns = SparkColumns(columns_of(schema_of("timestamp")), TopicPartition("orders", 0))
        times = pa.array([1_700_000_000 * 10**9], pa.timestamp("ms", tz="UTC"))
        batch = pa.RecordBatch.from_arrays([times], schema=columns.layout.schema)
        with pytest.raises(SparkSourceError, match="LOGSTORE_MALFORMED_RECORD_TIMESTAMP: orders-0"):
            columns.convert(batch)


class TestBatch:
    def test_everything(self, orders):
        assert batch(orders) == spread((0, 10), (0, 10))

    def test_ranges(self, orders):
        """Offsets, times and words, mixed."""
        start = '{"orders": {"0": 3, "1": -2}}'
        end = '{"orders": {"0": -1, "1": 4}}'
        assert batch(orders, startingOffsets=start, endingOffsets=end) == spread((3, 10), (0, 4))
        times = {"startingTimestamp": "1005", "endingTimestamp": "1008"}
        assert batch(orders, **times) == spread((5, 8), (5, 8))
        assert batch(orders, endingTimestamp="9999") == spread((0, 10), (0, 10))
        by_topic = '{"orders": "earliest"}'
        assert batch(orders, startingOffsets=by_topic) == spread((0, 10), (0, 10))

    def test_no_record_at_a_time(self, orders):
        """An error, or the end if that is wanted."""
        with pytest.raises(SparkSourceError, match=r"LOGSTORE_NO_OFFSET_FOR_TIMESTAMP: .*orders-0"):
            batch(orders, startingTimestamp="9999")
        options = {"startingOffsetsByTimestampStrategy": "latest"}
        assert batch(orders, startingTimestamp="9999", **options) == []

    def test_which_partitions(self, orders):
        assert batch(orders, subscribe=None, assign='{"orders": [1]}') == [
            (1, offset) for offset in range(10)
        ]
        assert batch(orders, subscribe=None, subscribePattern="or.*") == spread((0, 10), (0, 10))
        with pytest.raises(
            SparkSourceError, match=r"UNKNOWN_TOPIC_OR_PARTITION: .*no other.*orders"
        ):
            batch(orders, subscribe="orders,other")
        with pytest.raises(SparkSourceError, match="there is no orders-7 in"):
            batch(orders, subscribe=None, assign='{"orders": [1, 7]}')

    def test_a_single_log(self, orders):
        path = f"{orders.paths[0]}/orders-1"
        reader = LogStoreDataSource({"path": path}).reader(PLACE)
        assert places(read(reader, reader.partitions())) == [(1, offset) for offset in range(10)]

    def test_several_roots(self, tmp_path):
        paths = [str(tmp_path / name) for name in ("a", "b")]
        with logstore.open_store(*paths) as store:
            for log in store.create_topic("orders", partitions=2).logs():
                log.append(b"v")
            assert batch(store, paths=json.dumps(paths)) == [(0, 0), (1, 0)]
            assert batch(store) == [(0, 0)]

    def test_offsets_that_are_gone(self, orders):
        """Named exactly; stepped over if that is wanted."""
        orders["orders", 0].maybe_increment_log_start_offset(4)
        start = '{"orders": {"0": 1, "1": 0}}'
        with pytest.raises(
            SparkSourceError, match=r"DATA_LOSS: orders-0: offsets \[1, 4\) are gone"
        ):
            batch(orders, startingOffsets=start)
        found = batch(orders, startingOffsets=start, failOnDataLoss="false")
        assert found == spread((4, 10), (0, 10))

    def test_offsets_that_are_not_there_yet(self, orders):
        end = '{"orders": {"0": 12, "1": 10}}'
        with pytest.raises(SparkSourceError, match=r"orders-0: offsets \[10, 12\) are not there"):
            batch(orders, endingOffsets=end)
        assert batch(orders, endingOffsets=end, failOnDataLoss="false") == spread((0, 10), (0, 10))

    def test_start_after_end(self, orders):
        both = {
            "startingOffsets": '{"orders": {"0": 5, "1": 5}}',
            "endingOffsets": '{"orders": {"0": 6, "1": 4}}',
        }
        with pytest.raises(
            SparkSourceError, match="START_OFFSET_GREATER_THAN_END_OFFSET: orders-1"
        ):
            batch(orders, **both)

    def test_start_after_end_by_time(self, orders):
        """What is told are offsets, and said to be."""
        times = {"startingTimestamp": "1005", "endingTimestamp": "1003"}
        with pytest.raises(
            SparkSourceError,
            match="orders-0: startingTimestamp is offset 5, above endingTimestamp, which is 3;",
        ):
            batch(orders, **times)

    def test_offsets_of_other_partitions(self, orders):
        with pytest.raises(SparkSourceError, match="START_OFFSET_DOES_NOT_MATCH_ASSIGNED"):
            batch(orders, startingOffsets='{"orders": {"0": 5}}')

    def test_aborted_and_open_transactions(self, orders):
        """Stepped over, with their markers, unless read_uncommitted asks for them."""
        with orders.transaction("billing") as transaction:
            transaction.append(("orders", 0), b"committed")
        with orders.transaction("billing") as transaction:
            transaction.append(("orders", 0), b"aborted")
            transaction.flush()
            transaction.abort()
        committed = batch(orders)
        everything = batch(orders, kafka__isolation__level="read_uncommitted")
        assert len(committed) == 21
        assert len(everything) == 22

    def test_tasks_are_cut_at_batches(self, store):
        """A part is about as large as asked for, and begins where a batch does."""
        config = {"segment.bytes": 100_000, "index.interval.bytes": 1000}
        log = store.create_topic("orders", partitions=1, config=config)[0]
        for _ in range(100):
            log.extend([bytes(100)] * 40)  # One batch of some 4.3 kB.
        reader = source(store, maxBytesPerPartition="50000").reader(PLACE)
        tasks = [task for partition in reader.partitions() for task in partition.value]
        assert 7 <= len(tasks) <= 10
        assert all(task.start % 40 == 0 for task in tasks)
        assert all(task.stop - task.start >= 400 for task in tasks[:-1])
        assert places(read(reader, reader.partitions())) == spread((0, 4000))
        assert len(source(store, maxBytesPerPartition="0").reader(PLACE).partitions()) == 1

    def test_record_batches_have_bounds(self, store):
        """Rows or bytes, whichever comes first; a record is never cut."""
        log = store.create_topic("orders", partitions=1)[0]
        log.extend([bytes(1000)] * 300 + [bytes(9000)])

        def sizes(**options):
            reader = source(store, **options).reader(schema_of("value"))
            return [each.num_rows for each in read(reader, reader.partitions())]

        assert sizes() == [301]
        assert sizes(batchRows="128") == [128, 128, 45]
        assert sizes(batchBytes="100000") == [100, 100, 100, 1]
        assert sizes(batchBytes="5000", batchRows="4") == [4] * 75 + [1]
        assert sizes(batchBytes="1", batchRows="1") == [1] * 301

    @pytest.mark.parametrize(
        ("names", "sizes"),
        [(["offset", "partition"], [40_000]), (["offset", "topic"], [32_768, 7_232])],
    )
    def test_numbers_alone_come_in_more_rows(self, store, names, sizes):
        """A record batch is of 1 to 4 MiB then too."""
        store.create_topic("orders")[0].extend([b"v"] * 40_000)
        reader = source(store).reader(schema_of(*names))
        assert sizes == [each.num_rows for each in read(reader, reader.partitions())]

    def test_no_two_large_records_at_a_time(self, store):
        """Spark holds the last batch, and the first, until the next one comes: that has no rows."""
        log = store.create_topic("orders", config={"max.message.bytes": 32 << 20})[0]
        for size_bytes in (17 << 20, 17 << 20, 1, 1):
            log.append(bytes(size_bytes))
        reader = source(store).reader(schema_of("value"))
        batches = read(reader, reader.partitions())
        assert [0, 1, 0, 1, 0, 2] == [each.num_rows for each in batches]

    @pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
    def test_a_record_may_be_larger_than_a_tasks_memory(self, store, tmp_path):
        """What is larger than 16 MiB is held in files; and pandas, which is large, is left out."""
        value = os.urandom(2 << 20) + bytes(38 << 20)
        for codec in ("uncompressed", "zstd"):
            config = {"max.message.bytes": 1 << 30, "compression.type": codec}
            log = store.create_topic(codec, config=config)[0]
            log.append(b"small")
            log.append(value, headers=[("h", value[: 20 << 20])])
        done = subprocess.run(
            [sys.executable, "-c", FRUGAL_TASK, store.paths[0]],
            env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        sizes = [["uncompressed", False, len(value)], ["zstd", False, len(value)]]
        assert sizes == [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    def test_min_partitions(self, orders):
        reader = source(orders, minPartitions="6").reader(PLACE)
        assert len(reader.partitions()) == 6
        assert places(read(reader, reader.partitions())) == spread((0, 10), (0, 10))

    @pytest.mark.parametrize("most", [1, 2, 3, 16])
    def test_max_partitions(self, store, most):
        """A task reads several partitions, one after another."""
        for name in ("a", "b"):
            for log in store.create_topic(name, partitions=4).logs():
                log.extend([b"v"] * 5)
        options = {"subscribe": "a,b", "maxPartitions": str(most)}
        reader = source(store, **options).reader(schema_of("topic", "partition", "offset"))
        partitions = reader.partitions()
        assert len(partitions) == min(most, 8)
        rows = [
            tuple(row.values()) for each in read(reader, partitions) for row in each.to_pylist()
        ]
        assert rows == [(name, each, n) for name in "ab" for each in range(4) for n in range(5)]

    def test_nothing_to_read(self, store):
        """Spark makes a partition without a value then."""
        store.create_topic("orders", partitions=1)
        reader = source(store).reader(PLACE)
        assert reader.partitions() == []
        assert list(reader.read(InputPartition(None))) == []


class TestPushdown:
    @pytest.mark.parametrize(
        ("filters", "planned"),
        [
            ([EqualTo(("offset",), 4)], [(0, 4, 5), (1, 4, 5)]),
            (
                [GreaterThan(("offset",), 4), LessThanOrEqual(("offset",), 6)],
                [(0, 5, 7), (1, 5, 7)],
            ),
            ([GreaterThanOrEqual(("offset",), 8), EqualTo(("partition",), 1)], [(1, 8, 10)]),
            ([In(("offset",), (7, 3, None))], [(0, 3, 8), (1, 3, 8)]),
            ([LessThan(("offset",), 2), In(("partition",), (0, 5))], [(0, 0, 2)]),
            ([StringStartsWith(("topic",), "x")], []),
            ([GreaterThan(("offset",), 50)], []),
            ([GreaterThanOrEqual(("timestamp",), utc(1005))], [(0, 5, 10), (1, 5, 10)]),
            ([LessThan(("timestamp",), utc(1005))], [(0, 0, 10), (1, 0, 10)]),
            ([GreaterThan(("timestamp",), utc(-5))], [(0, 0, 10), (1, 0, 10)]),
            ([EqualTo(("value",), b"3")], [(0, 0, 10), (1, 0, 10)]),
        ],
    )
    def test_bounds(self, orders, filters, planned):
        """What cannot be there is not read; Spark filters the rest, and so gets all filters."""
        reader = source(orders, filterPushdown="true").reader(schema_of(*COLUMNS))
        assert reader.pushFilters(filters) is filters
        tasks = [task for partition in reader.partitions() for task in partition.value]
        assert [
            (each.topic_partition.partition, each.start, each.stop) for each in tasks
        ] == planned

    def test_off_by_default(self, orders):
        """Spark refuses a reader that has the method, unless its own switch is on."""
        reader = source(orders).reader(PLACE)
        assert type(reader).pushFilters is DataSourceReader.pushFilters


class TestTasks:
    """What may happen between planning and reading."""

    def test_another_store_in_its_place(self, orders, tmp_path):
        """A host where something else is mounted: nothing is read, and nothing made."""
        reader = source(orders).reader(PLACE)
        tasks = reader.partitions()
        path = orders.paths[0]
        orders.close()
        os.rename(path, f"{path}.moved")
        with pytest.raises(SparkSourceError, match="LOGSTORE_STORE_NOT_FOUND: orders-0: host"):
            read(reader, tasks)
        assert not os.path.exists(path)
        with logstore.open_store(path) as store:
            store.create_topic("orders", partitions=2)
        with pytest.raises(SparkSourceError, match=r"LOGSTORE_STORE_MISMATCH: orders-0: .*host"):
            read(reader, tasks)

    def test_deleted_or_recreated_topic(self, orders):
        reader = source(orders).reader(PLACE)
        lenient = source(orders, failOnDataLoss="false").reader(PLACE)
        tasks = reader.partitions()
        orders.delete_topic("orders")
        for _ in range(2):
            with pytest.raises(SparkSourceError, match=r"orders-0: offsets \[0, 10\) are gone"):
                read(reader, tasks)
            assert read(lenient, tasks) == []
            orders.purge()
            if "orders" not in orders:
                topic = orders.create_topic("orders", partitions=2)
                topic[0].extend([b"other"] * 10)

    def test_retention_between_planning_and_reading(self, orders):
        reader = source(orders).reader(PLACE)
        lenient = source(orders, failOnDataLoss="false").reader(PLACE)
        tasks = reader.partitions()
        orders["orders", 0].maybe_increment_log_start_offset(6)
        with pytest.raises(SparkSourceError, match=r"orders-0: offsets \[0, 6\) are gone"):
            read(reader, tasks)
        assert places(read(lenient, tasks)) == spread((6, 10), (0, 10))

    def test_retention_under_a_task(self, store):
        """What was delivered stays, what is gone is named from there on."""
        config = {"segment.bytes": 1 << 20, "file.delete.delay.ms": 0}
        log = store.create_topic("orders", partitions=1, config=config)[0]
        for _ in range(12):
            log.extend([bytes(1000)] * 1000)
        options = {"kafkaConsumer__pollTimeoutMs": "100"}
        for is_fatal in (True, False):
            reader = source(store, failOnDataLoss=str(is_fatal), **options).reader(
                schema_of("partition", "offset", "value")
            )
            batches = reader.read(reader.partitions()[0])
            rows = next(batches).column("offset").to_pylist()
            log.maybe_increment_log_start_offset(log.log_end_offset - 2000)
            log.delete_old_segments()
            if is_fatal:
                with pytest.raises(
                    SparkSourceError, match=r"LOGSTORE_DATA_LOSS: orders-0: offsets"
                ):
                    list(batches)
            else:
                rest = [offset for each in batches for offset in each.column("offset").to_pylist()]
                assert rows + rest == sorted({*rows, *rest})
                assert rest[-2000:] == list(range(log.log_end_offset - 2000, log.log_end_offset))
            for _ in range(12):
                log.extend([bytes(1000)] * 1000)

    def test_damage_is_named(self, orders):
        reader = source(orders).reader(PLACE)
        tasks = reader.partitions()
        path = f"{orders.paths[0]}/orders-0/00000000000000000000.log"
        orders.close()
        with open(path, "r+b") as file:
            file.seek(100)
            file.write(b"\xff")
        with pytest.raises(SparkSourceError, match="LOGSTORE_CORRUPT_RECORD: orders-0: ") as error:
            read(reader, tasks)
        assert path in str(error.value)


class TestStream:
    def test_from_the_latest(self, orders, stream):
        """The first batch is empty, and says in the checkpoint where the query begins."""
        query = stream()
        assert query.start == '{"orders": {"0": -1, "1": -1}}'
        assert query.step() == []
        assert query.start == '{"orders": {"0": 10, "1": 10}}'
        assert query.step() is None
        orders["orders", 1].append(b"v")
        assert query.step() == [(1, 10)]
        first = stream()
        end = '{"orders": {"0": 10, "1": 10}}'
        assert first.planned(end) == []  # The very first batch again, much later.

    def test_from_elsewhere(self, stream):
        start = '{"orders": {"0": 7, "1": -1}}'
        assert stream(startingOffsets=start).step() == [(0, 7), (0, 8), (0, 9)]
        assert stream(startingTimestamp="1008").step() == spread((8, 10), (8, 10))
        assert stream(startingOffsets="earliest").step() == spread((0, 10), (0, 10))

    def test_limits(self, orders, stream):
        query = stream(startingOffsets="earliest", maxOffsetsPerTrigger="6")
        assert query.step() == spread((0, 3), (0, 3))
        again = query.restarted(orders, subscribe="orders", maxOffsetsPerTrigger="6")
        assert again.step() == spread((3, 6), (3, 6))
        assert again.step(ReadAllAvailable()) == spread((6, 10), (6, 10))
        assert again.step() is None
        again.reader.stop()

    def test_waiting_for_enough(self, orders, stream):
        """The first batch runs at once; later ones with enough records, or after the delay."""
        query = stream(startingOffsets="earliest", minOffsetsPerTrigger="5", maxTriggerDelay="10s")
        clock = ManualClock()
        query.reader.clock = clock
        assert query.step() == spread((0, 10), (0, 10))
        orders["orders", 0].extend([b"v"] * 4)
        assert query.step() is None
        orders["orders", 1].append(b"v")
        assert len(query.step()) == 5
        orders["orders", 1].append(b"v")
        assert query.step() is None
        clock.advance(10_000)
        assert query.step() == [(1, 11)]

    def test_available_now(self, orders, stream):
        """What was there when it began, limits kept; anything missing of that is an error."""
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "12"}
        query = stream(**options, failOnDataLoss="false")
        query.reader.prepareForTriggerAvailableNow()
        orders["orders", 0].append(b"later")
        assert query.step() == spread((0, 6), (0, 6))
        assert query.step() == [*spread((6, 10), (6, 10))]
        assert query.step() is None
        orders.delete_topic("orders")
        with pytest.raises(SparkSourceError, match="LOGSTORE_AVAILABLE_NOW_DATA_LOSS: orders-0"):
            query.step(ReadMaxRows(12))

    def test_new_partitions_begin_at_the_earliest(self, orders, stream):
        query = stream(subscribe=None, subscribePattern="or.*")
        assert query.step() == []
        topic = orders.create_partitions("orders", 3)
        topic[2].append(b"v")
        orders.create_topic("organs", partitions=1)[0].append(b"v")
        assert query.step() == [(0, 0), (2, 0)]
        assert json.loads(query.start)["organs"] == {"0": 1}

    def test_nothing_matches_yet(self, orders, stream):
        query = stream(subscribe=None, subscribePattern="later.*")
        assert query.step() is None
        orders.create_topic("later", partitions=1)[0].append(b"v")
        assert query.step() == [(0, 0)]

    def test_unknown_topic(self, stream):
        with pytest.raises(SparkSourceError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            stream(subscribe="nothing")

    def test_deleted_topic(self, orders, stream):
        for fail in ("true", "false"):
            query = stream(startingOffsets="earliest", failOnDataLoss=fail)
            assert len(query.step()) == 20
            orders.delete_topic("orders")
            if fail == "true":
                with pytest.raises(SparkSourceError, match=r"orders-0 was deleted; .* offset 10"):
                    query.step()
            else:
                assert query.step() == []
                assert query.step() is None
            topic = orders.create_topic("orders", partitions=2)
            for log in topic.logs():
                log.extend([b"v"] * 10)

    def test_recreated_topic(self, orders, stream):
        """Offsets that went back are told with the old and the new one."""
        query = stream(startingOffsets="earliest")
        assert len(query.step()) == 20
        orders.delete_topic("orders")
        orders.create_topic("orders", partitions=2)[0].append(b"v")
        with pytest.raises(SparkSourceError, match="orders-0: the end was changed from 10 to 1"):
            query.step()
        other = query.restarted(orders, failOnDataLoss="false")
        assert other.step() == []
        assert other.start == '{"orders": {"0": 1, "1": 0}}'
        orders["orders", 0].append(b"v")
        assert other.step() == [(0, 1)]
        other.reader.stop()

    def test_recreated_topic_with_more_records(self, orders, stream):
        """Its offsets say nothing, its id does."""
        query = stream(startingOffsets="earliest")
        assert len(query.step()) == 20
        orders.delete_topic("orders")
        for log in orders.create_topic("orders", partitions=2).logs():
            log.extend([b"v"] * 11)
        with pytest.raises(
            SparkSourceError, match=r"orders-0 was deleted and .* \[0, 10\) are not"
        ):
            query.step()

    @pytest.mark.parametrize("seed", range(2))
    @pytest.mark.parametrize("start", ["earliest", "latest"])
    def test_whatever_comes_meanwhile(self, orders, stream, start, seed):
        """Topics, partitions, restarts, repeated batches, limits: each record once, in the end."""
        draw = random.Random(f"{start} {seed}")
        options = {
            "schema": schema_of("topic", "partition", "offset"),
            "subscribe": None,
            "subscribePattern": "t.*",
            "startingOffsets": start,
            "maxOffsetsPerTrigger": str(draw.randint(1, 40)),
            "minPartitions": str(draw.randint(1, 9)),
        }
        if draw.random() < 0.5:
            options["maxPartitions"] = str(draw.randint(int(options["minPartitions"]), 9))
        store = orders
        store.delete_topic("orders")
        store.create_topic("t0", partitions=2)[0].extend([b"before"] * draw.randint(0, 20))
        query = stream(**options)
        skipped = 0 if start == "earliest" else store["t0", 0].log_end_offset
        seen = query.step() or []
        for _ in range(25):
            names = sorted(store)
            action = draw.choice(["append", "append", "step", "step", "again", "restart", "grow"])
            if action == "append":
                topic = store[draw.choice(names)]
                topic[draw.choice(topic.partitions)].extend([b"v"] * draw.randint(1, 30))
            elif action == "step":
                seen += query.step() or []
            elif action == "again":  # The driver ends after the batch is logged, and begins anew.
                end = query.latest()
                rows = places(read(query.reader, query.planned(end)))
                other = stream(**options)
                other.start = query.start
                assert places(read(other.reader, other.planned(end))) == rows
                other.start, query = end, other
                seen += rows
            elif action == "restart":
                other = stream(**options)
                other.start, query = query.start, other
            elif draw.random() < 0.5:
                name = draw.choice(names)
                store.create_partitions(name, len(store[name]) + 1)
            else:
                store.create_topic(f"t{len(names)}", partitions=draw.randint(1, 3))
        while (rows := query.step()) is not None:
            seen += rows
        there = [
            (topic.name, partition, offset)
            for topic in store.topics()
            for partition in topic
            for offset in range(topic[partition].log_end_offset)
        ]
        assert sorted(seen) == [
            each for each in there if each[:2] != ("t0", 0) or each[2] >= skipped
        ]

    def test_a_checkpoint_beyond_the_log(self, stream):
        """A batch that was logged over other files names partition and range."""
        query = stream(startingOffsets="earliest")
        end = '{"orders": {"0": 10, "1": 30}}'
        with pytest.raises(SparkSourceError, match=r"orders-1: .* up to 30, .* has \[0, 10\)"):
            query.planned(end)

    def test_lag(self, stream):
        query = stream(startingOffsets="earliest", maxOffsetsPerTrigger="6")
        query.step()
        assert query.reader.reportLatestOffset() == {"orders": {"0": 10, "1": 10}}
