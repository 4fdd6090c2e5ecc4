"""From Arrow rows to staged files, without Spark: where each row goes, and what is refused."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import socket
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logstore
from logstore import staged_batches
from logstore.checkpoint import TopicPartition
from logstore.errors import RecordTooLargeError
from logstore.partitioner import partition_of_key
from logstore.record import RecordBatch
from logstore.spark.errors import SparkSourceError
from logstore.spark.sink_options import parse_sink_options
from logstore.spark.staging import RecordStager, TopicPlan
from logstore.staged_batches import StagedBatchWriter, StagedFile, staged_path

pa = pytest.importorskip("pyarrow")
NOW = 1_000


@pytest.fixture(name="stage")
def _stage(tmp_path):
    """Return records by place of what is staged from columns."""

    def run(*batches, topic="t", partitions=3, timestamps=True, turn=0, **plan):
        before = os.listdir(tmp_path)
        stager = RecordStager(
            lambda: StagedBatchWriter(staged_path(str(tmp_path), "q", 0, 0, 0)),
            topic=topic,
            plan_of=lambda _: TopicPlan(partitions, **plan),
            keeps_timestamps=timestamps,
            now_ms=NOW,
            turn=turn,
        )
        try:
            for batch in batches:
                stager.add(pa.record_batch(batch))
            paths = stager.finish()
        except BaseException:
            stager.discard()
            assert before == os.listdir(tmp_path)
            raise
        return records_of(*paths)

    return run


def records_of(*paths):
    """Return the records of staged files by place."""
    found = {}
    for path in paths:
        with StagedFile(path) as file:
            for each in file.batches:
                batch = RecordBatch(bytes(file.read([each])))
                batch.ensure_valid()
                found.setdefault(each.place, []).extend(batch.records())
    return found


def values(found):
    """Return values by place."""
    return {tuple(place): [record.value for record in each] for place, each in found.items()}


def test_keys_land_where_kafka_puts_them(stage):
    """By murmur2; in the order of the rows, over several record batches; a slice of one too."""
    keys = [b"k%d" % (at % 7) for at in range(100)]
    rows = pa.record_batch({"key": keys, "value": [b"%d" % at for at in range(100)]})
    found = stage(rows.slice(0, 50), rows.slice(50, 3), rows.slice(53))
    expected = {}
    for at, key in enumerate(keys):
        expected.setdefault(("t", partition_of_key(key, 3)), []).append((key, b"%d" % at))
    assert expected == {
        tuple(place): [(record.key, record.value) for record in each]
        for place, each in found.items()
    }


def test_partition_goes_before_key(stage):
    """A null leaves it to the key, or to the turn."""
    found = stage(
        {
            "value": [b"1", b"2", b"3", b"4"],
            "key": pa.array([b"a", b"a", None, None], pa.binary()),
            "partition": pa.array([2, None, 1, None], pa.int32()),
        },
        turn=4,
    )
    key = partition_of_key(b"a", 3)
    expected = {}
    for partition, value in ((2, b"1"), (key, b"2"), (1, b"3"), (4 % 3, b"4")):
        expected.setdefault(("t", partition), []).append(value)
    assert expected == values(found)
    with pytest.raises(SparkSourceError, match="Partition 3 of topic t with partition count 3 is"):
        stage({"value": [b"1"], "partition": pa.array([3], pa.int32())})


def test_rows_without_key_take_turns(stage):
    """As many as fill a batch go to one partition, the next ones to the next."""
    found = stage({"value": [b"x" * 100] * 10}, batch_bytes=250)
    counts = {place: len(each) for place, each in values(found).items()}
    assert {("t", 0): 4, ("t", 1): 3, ("t", 2): 3} == counts
    one = {"value": [b"x" * 100]}
    assert found == stage(*[one] * 10, batch_bytes=250)


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    batch_bytes=st.integers(1, 90),
    partitions=st.integers(2, 5),
    turn=st.integers(0, 9),
)
def test_turns_of_rows_without_key(sizes, cuts, batch_bytes, partitions, turn):
    """The next one's turn comes when a batch is full, as where the partition is null."""
    rows = pa.record_batch({"value": [b"%02d" % at + b"x" * each for at, each in enumerate(sizes)]})
    edges = sorted({0, len(sizes), *(cut for cut in cuts if cut < len(sizes))})
    parts = [rows.slice(start, stop - start) for start, stop in itertools.pairwise(edges)]
    expected, filled = {}, 0
    for value in rows.column(0).to_pylist():
        filled += len(value)
        number = (turn + filled // batch_bytes) % partitions
        expected.setdefault(("t", number), []).append(value)
    for given_null in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            stager = RecordStager(
                lambda directory=directory: StagedBatchWriter(staged_path(directory, "q", 0, 0, 0)),
                topic="t",
                plan_of=lambda _: TopicPlan(partitions, batch_bytes),
                keeps_timestamps=False,
                now_ms=NOW,
                turn=turn,
            )
            for part in parts:
                nulls = pa.nulls(len(part), pa.int32())
                stager.add(part.append_column("partition", nulls) if given_null else part)
            assert expected == values(records_of(*stager.finish()))


def test_topics(stage):
    """By the column, unless the option says one; null is refused with the connector's words."""
    rows = {"value": [b"1", b"2", b"3"], "topic": ["u", "t", "u"]}
    assert {("u", 0): [b"1", b"3"], ("t", 0): [b"2"]} == values(
        stage(rows, topic=None, partitions=1)
    )
    assert {("w", 0): [b"1", b"2", b"3"]} == values(stage(rows, topic="w", partitions=1))
    with pytest.raises(SparkSourceError, match="null topic present in the data"):
        stage({"value": [b"1"], "topic": pa.array([None], pa.string())}, topic=None)


def test_fields(stage):
    """Nulls, text, headers with null values and repeated names, times; names in any case."""
    second = dt.datetime(1970, 1, 1, 0, 0, 2, 500, tzinfo=dt.UTC)
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    found = stage(
        {
            "VALUE": pa.array(["é", None, ""], pa.string()),
            "key": pa.array(["a", None, ""], pa.large_string()),
            "headers": pa.array(
                [[{"key": "h", "value": None}, {"key": "h", "value": b"2"}], None, []],
                pa.list_(pair),
            ),
            "timestamp": pa.array([second, None, second], pa.timestamp("us", tz="Europe/Berlin")),
            "offset": [7, 8, 9],
            "timestampType": [0, 0, 0],
        },
        partitions=1,
    )
    assert [
        (b"a", "é".encode(), (("h", None), ("h", b"2")), 2000),
        (None, None, (), NOW),
        (b"", b"", (), 2000),
    ] == [
        (record.key, record.value, record.headers, record.timestamp)
        for record in found[TopicPartition("t", 0)]
    ]


def test_headers_of_a_part(stage):
    """Of rows from the middle of larger columns; behind a null list there may be items."""
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    lists = [[{"key": f"h{at}", "value": None if at % 3 else b"%d" % at}] * at for at in range(9)]
    items = pa.array([item for each in lists for item in each], pair)
    ends = pa.array([sum(map(len, lists[:at])) for at in range(10)], pa.int32())
    has_some = pa.array([at == 4 for at in range(9)])
    headers = pa.ListArray.from_arrays(ends, items, mask=has_some)
    rows = pa.record_batch({"value": [b"%d" % at for at in range(9)], "headers": headers})
    found = stage(rows.slice(2, 5), partitions=1)[TopicPartition("t", 0)]
    assert [
        ((f"h{at}", None if at % 3 else b"%d" % at),) * at if at != 4 else () for at in range(2, 7)
    ] == [record.headers for record in found]


def test_times(stage):
    """Option timestamps=write leaves the column out; -1 is none; before that there is nothing."""
    rows = {"value": [b"1"], "timestamp": pa.array([-1000], pa.timestamp("us", tz="UTC"))}
    for timestamps, expected in ((True, -1), (False, NOW)):
        (records,) = stage(rows, timestamps=timestamps).values()
        assert [expected] == [record.timestamp for record in records]
    rows = {"value": [b"1"], "timestamp": pa.array([-1001], pa.timestamp("us", tz="UTC"))}
    with pytest.raises(SparkSourceError, match="2 ms before 1970"):
        stage(rows)
    (records,) = stage({"value": [b"1"]}).values()
    assert [NOW] == [record.timestamp for record in records]


def test_refused(stage):
    """A header without a name, a record that its topic does not take; nothing is left."""
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    with pytest.raises(SparkSourceError, match="a header has no key"):
        stage(
            {
                "value": [b"1"],
                "headers": pa.array([[{"key": None, "value": b""}]], pa.list_(pair)),
            }
        )
    with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes 200"):
        stage({"value": [b"x" * 300]}, batch_bytes=200, max_message_bytes=200)


def test_no_rows(stage):
    """No file."""
    assert {} == stage()
    assert {} == stage({"value": pa.array([], pa.binary())})


def test_many_rows(stage, monkeypatch, tmp_path):
    """In several files, batches that are not full too; nothing is lost, the order stays."""
    monkeypatch.setattr(staged_batches, "OPEN_BYTES", 1000)
    monkeypatch.setattr(staged_batches, "FILE_BYTES", 5000)
    batches = [
        {"key": [b"%d" % (at % 5)] * 30, "value": [b"%05d" % (30 * at + n) for n in range(30)]}
        for at in range(50)
    ]
    found = values(stage(*batches))
    assert len(os.listdir(tmp_path)) >= 5
    assert 1500 == sum(map(len, found.values()))
    assert all(each == sorted(each) for each in found.values())


def test_commit(tmp_path, stage):
    """What is staged is what a store has."""
    stage({"key": [b"a"], "value": [b"1"]}, partitions=1)
    (name,) = os.listdir(tmp_path)
    with logstore.open_store(tmp_path) as store:
        store.create_topic("t")
        store.commit_staged("q", 0, [tmp_path / name])
        assert [(b"a", b"1", NOW)] == [
            (each.key, each.value, each.timestamp) for each in store["t", 0]
        ]


@pytest.mark.parametrize(
    ("elsewhere", "code"),
    [("store", "STORE_MISMATCH"), ("empty", "STORE_MISMATCH"), (None, "STORE_NOT_FOUND")],
)
def test_a_host_that_sees_something_else(tmp_path, elsewhere, code):
    """It writes nothing, and says which host it is."""
    pytest.importorskip("pyspark", reason="needs the extra [spark-local]")
    from pyspark.sql.types import StructType

    from logstore.spark.sink import SinkPlan

    path = tmp_path / "store"
    with logstore.open_store(path) as store:
        store.create_topic("t")
    schema = StructType().add("value", "binary")
    plan = SinkPlan.make(parse_sink_options({"path": str(path), "topic": "t"}), schema)
    path.rename(tmp_path / "planned")
    if elsewhere is not None:
        path.mkdir()
    if elsewhere == "store":
        logstore.open_store(path).close()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SparkSourceError, match=f"LOGSTORE_{code}: on host {socket.gethostname()}"):
        plan.stage(iter([]), 0, 0, plan.job_id, 0)
    assert before == sorted(tmp_path.rglob("*"))


def test_large_rows_keep_their_order(stage):
    """They are not brought in order of partitions first, which would copy them."""
    rows = [bytes([number]) * 70_000 for number in range(40)]
    partitions = [number % 3 if number % 5 else 0 for number in range(40)]
    found = stage({"value": rows, "partition": pa.array(partitions, pa.int32())})
    for partition in range(3):
        expected = [row for row, at in zip(rows, partitions, strict=True) if at == partition]
        assert expected == [each.value for each in found["t", partition]]


def test_a_row_larger_than_memory_should_be(stage):
    """It is encoded, and read for the commit, in memory that is a file's."""
    value = os.urandom(1 << 20) * 17
    columns = [{"value": [each]} for each in (b"small", value, b"x")]
    found = stage(*columns, partitions=1, max_message_bytes=1 << 26)
    assert [b"small", value, b"x"] == [each.value for each in found["t", 0]]
