"""The store: topics come and go, and everything is there again when it is opened."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import traceback

import pytest

import logstore
from logstore.checkpoint import OffsetCheckpointFile, PartitionMetadataFile
from logstore.clock import ManualClock
from logstore.errors import (
    ClosedError,
    ConfigError,
    ForkedError,
    InvalidPartitionsError,
    InvalidTopicError,
    LockedError,
    LogExistsError,
    LogNotFoundError,
    OfflineError,
    ReadOnlyError,
    TopicExistsError,
    UnknownTopicError,
)
from logstore.files import REAL_FILES
from logstore.scheduler import ManualScheduler
from logstore.store import open_log_store
from logstore.store_directories import contents_of
from logstore.topic_configs import CREATING


@pytest.fixture(name="clock")
def _clock():
    return ManualClock()


@pytest.fixture(name="open_it")
def _open_it(tmp_path, clock):
    """Open a store in ``tmp_path / "data"``; at the end it is checked and closed."""
    stores = []

    def open_it(*paths, **options):
        options.setdefault("clock", clock)
        options.setdefault("scheduler", ManualScheduler(clock))
        store = open_log_store(*(paths or (tmp_path / "data",)), **options)
        stores.append(store)
        return store

    yield open_it
    for store in stores:
        if not store.is_closed:
            assert [] == list(store.check())
            store.close()


def values(log):
    return [record.value for record in log]


class TestTopics:
    def test_life(self, open_it, tmp_path):
        """What was created and appended is there after a clean end, and needs no recovery."""
        store = open_it()
        orders = store.create_topic("orders", partitions=3)
        assert (0, 1, 2) == orders.partitions
        where = [orders.append(b"%d" % n, key=b"key %d" % n) for n in range(20)]
        topic_id = orders.topic_id
        store.close()
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()

        store = open_it()
        assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        assert ["orders"] == list(store)
        assert topic_id == store["orders"].topic_id
        for n, (partition, offset) in enumerate(where):
            assert b"%d" % n == store["orders", partition][offset].value
        assert all(log.recovery_point == log.log_end_offset for log in store.logs())
        assert not store.errors

    def test_it_is_a_mapping(self, open_it):
        """Names lead to topics, numbers of partitions to logs."""
        store = open_it()
        store.create_topic("b", partitions=2)
        store.create_topic("a")
        assert (["a", "b"], 2) == (list(store), len(store))
        assert "a" in store
        assert "c" not in store
        assert ("b", 1) in store
        assert ("b", 2) not in store
        assert [("a", 0), ("b", 0), ("b", 1)] == list(store.partitions())
        assert store["b"] is store["b"]
        assert store["b", 1] is store["b"][1]
        assert [0, 1] == list(store["b"])
        assert 1 in store["b"]
        with pytest.raises(UnknownTopicError, match="no topic 'c'"):
            store["c"]
        with pytest.raises(UnknownTopicError, match="it has partitions 0 to 1"):
            store["b", 2]

    def test_partition_metadata_and_meta_properties(self, open_it, tmp_path):
        """The topic id is in each partition; the directory says whose it is."""
        topic = open_it().create_topic("orders", partitions=2)
        for partition in range(2):
            path = tmp_path / "data" / f"orders-{partition}" / "partition.metadata"
            assert topic.topic_id == PartitionMetadataFile(path).read().topic_id
        lines = (tmp_path / "data" / "meta.properties").read_text().splitlines()
        assert "version=1" in lines
        assert "node.id=1" in lines
        assert {"cluster.id", "directory.id"} <= {line.partition("=")[0] for line in lines}

    @pytest.mark.parametrize(
        "name", ["", ".", "..", "a/b", "../a", "a b", "ä", "a\0", "x" * 250, "a\n", "a:b"]
    )
    def test_names_that_no_topic_has(self, open_it, name, tmp_path):
        """Kafka's rules; nothing leads out of the directory."""
        store = open_it()
        with pytest.raises(InvalidTopicError):
            store.create_topic(name)
        with pytest.raises(UnknownTopicError):
            store[name]
        with pytest.raises(UnknownTopicError):
            store.delete_topic(name)
        assert ["data"] == os.listdir(tmp_path)

    def test_longest_name(self, open_it, tmp_path):
        """249 characters; the directory of its deletion is cut to 255."""
        store = open_it()
        store.create_topic("x" * 249)
        store.delete_topic("x" * 249)
        (name,) = (each for each in os.listdir(tmp_path / "data") if each.endswith("-delete"))
        assert 255 == len(name)

    def test_reserved_and_colliding_names(self, open_it):
        """A broker's metadata is none of ours; '.' and '_' are one in metrics."""
        store = open_it()
        with pytest.raises(InvalidTopicError, match="broker's own"):
            store.create_topic("__cluster_metadata")
        store.create_topic("a.b")
        with pytest.raises(InvalidTopicError, match=r"a_b and a\.b differ"):
            store.create_topic("a_b")
        with pytest.raises(TopicExistsError):
            store.create_topic("a.b")
        assert store.create_topic("__consumer_offsets").is_internal

    @pytest.mark.parametrize("count", [0, -1, 10**9])
    def test_numbers_of_partitions(self, open_it, count):
        """At least one."""
        with pytest.raises(InvalidPartitionsError):
            open_it().create_topic("orders", partitions=count)

    def test_default_number_of_partitions(self, open_it):
        """num.partitions of the store."""
        assert 3 == len(open_it(config={"num.partitions": 3}).create_topic("orders"))

    def test_more_partitions(self, open_it):
        """A topic grows; it never shrinks."""
        store = open_it()
        topic = store.create_topic("orders", partitions=2)
        store["orders", 1].append(b"v")
        store.create_partitions("orders", 4)
        assert (0, 1, 2, 3) == topic.partitions
        assert topic[3].topic_id == topic.topic_id
        with pytest.raises(InvalidPartitionsError, match="has 4 partitions already"):
            store.create_partitions("orders", 4)
        store.close()
        store = open_it()
        assert 4 == len(store["orders"])
        assert [b"v"] == values(store["orders", 1])

    def test_delete(self, open_it, clock, tmp_path):
        """Deleted at once for everybody, removed after file.delete.delay.ms."""
        scheduler = ManualScheduler(clock)
        store = open_it(scheduler=scheduler, config={"file.delete.delay.ms": 1000})
        topic = store.create_topic("orders", partitions=2)
        log = store["orders", 0]
        log.append(b"v")
        other = store.create_topic("other")
        store.delete_topic("orders")
        assert ["other"] == list(store)
        with pytest.raises(UnknownTopicError):
            store["orders"]
        with pytest.raises(ClosedError):
            log.append(b"v")
        with pytest.raises(UnknownTopicError):
            topic.append(b"v")
        assert "deleted" in repr(topic)
        assert 2 == len(contents_of(str(tmp_path / "data"), REAL_FILES).deleted)
        scheduler.advance_to(clock.milliseconds() + 1000)
        assert [] == contents_of(str(tmp_path / "data"), REAL_FILES).deleted
        assert (0, 0) == other.append(b"v")

    def test_deleted_directories_of_before_are_removed(self, open_it, clock, tmp_path):
        """Closed before the delay was over: the next open goes on."""
        store = open_it()
        store.create_topic("orders")
        store.delete_topic("orders")
        store.close()
        scheduler = ManualScheduler(clock)
        store = open_it(scheduler=scheduler)
        assert [] == list(store)
        scheduler.advance_to(clock.milliseconds() + 60_000)
        assert [] == contents_of(str(tmp_path / "data"), REAL_FILES).deleted

    def test_made_again_after_deletion(self, open_it):
        """Nothing of the deleted topic holds for the new one."""
        store = open_it()
        old = store.create_topic("orders", config={"retention.ms": 5}).topic_id
        store["orders", 0].extend([b"a", b"b", b"c"])
        store["orders", 0].flush()
        store["orders", 0].maybe_increment_log_start_offset(2)
        store.delete_topic("orders")
        new = store.create_topic("orders")
        assert old != new.topic_id
        assert (0, 0) == (new[0].log_start_offset, new[0].log_end_offset)
        assert -1 == new.config.retention_ms
        new.append(b"new")
        store.close()
        assert [b"new"] == values(open_it()["orders", 0])

    def test_delete_partition(self, open_it):
        """The others stay; a topic of one partition is deleted as such."""
        store = open_it()
        store.create_topic("orders", partitions=3)
        store.delete_partition("orders", 1)
        assert (0, 2) == store["orders"].partitions
        with pytest.raises(UnknownTopicError):
            store["orders", 1]
        store.close()
        store = open_it()
        assert (0, 2) == store["orders"].partitions
        assert not store.errors
        store.delete_partition("orders", 0)
        with pytest.raises(InvalidPartitionsError):
            store.delete_partition("orders", 2)

    def test_closed_log_is_opened_again(self, open_it):
        """A log of the store may be used as a context manager."""
        store = open_it()
        store.create_topic("orders")
        with store["orders", 0] as log:
            log.append(b"a")
        assert log.is_closed
        assert (0, 1) == store["orders"].append(b"b")
        assert [b"a", b"b"] == values(store["orders", 0])


class TestModes:
    def test_new(self, open_it, tmp_path):
        """Mode "x" makes a store where there is none."""
        open_it(mode="x").close()
        with pytest.raises(LogExistsError):
            open_it(mode="x")
        with pytest.raises(ValueError, match="mode 'w'"):
            open_it(mode="w")

    def test_reading_changes_nothing(self, open_it, tmp_path):
        """Mode "r" beside a writer, and after it."""
        writer = open_it()
        writer.create_topic("orders", partitions=2)
        writer["orders", 0].append(b"a")
        before = sorted(os.listdir(tmp_path / "data"))
        reader = open_it(mode="r", live_offsets=True)
        assert ["orders"] == list(reader)
        writer["orders", 0].flush()
        with pytest.raises(ReadOnlyError):
            reader.create_topic("other")
        with pytest.raises(ReadOnlyError):
            reader["orders", 0].append(b"x")
        assert before == sorted(os.listdir(tmp_path / "data"))
        writer.create_topic("later")
        assert ["later", "orders"] == list(reader)
        assert 0 == reader["later", 0].log_end_offset
        writer.delete_topic("orders")
        assert ["later"] == list(reader)
        reader.close()

    def test_reading_a_partition_that_is_being_made(self, open_it, tmp_path):
        """It is there, and empty."""
        open_it().close()
        (tmp_path / "data" / "orders-0").mkdir()
        reader = open_it(mode="r")
        assert 0 == reader["orders", 0].log_end_offset
        reader.close()
        assert [] == os.listdir(tmp_path / "data" / "orders-0")

    def test_reader_pickles(self, tmp_path):
        """As "open these paths read-only"."""
        with logstore.open_store(tmp_path / "data") as store:
            store.create_topic("orders")
            store["orders"].append(b"v")
            with pytest.raises(TypeError, match="open for writing"):
                pickle.dumps(store)
        with logstore.open_store(tmp_path / "data", mode="r") as reader:
            other = pickle.loads(pickle.dumps(reader))
        assert [b"v"] == values(other["orders", 0])
        other.close()

    def test_no_store(self, open_it, tmp_path):
        """Mode "r" makes nothing."""
        with pytest.raises(LogNotFoundError):
            open_it(mode="r")
        assert [] == os.listdir(tmp_path)

    def test_a_log_is_no_store(self, open_it, tmp_path):
        """Who gives a partition's directory is told so."""
        logstore.open(tmp_path / "data").close()
        for mode in ("a", "r"):
            with pytest.raises(ConfigError, match="is a log, not a directory of logs"):
                open_it(mode=mode)

    def test_one_writer(self, open_it, tmp_path):
        """The lock is the directory's: of stores, and of logs in it."""
        store = open_it()
        store.create_topic("orders")
        with pytest.raises(LockedError):
            open_it()
        with pytest.raises(LockedError):
            logstore.open(tmp_path / "data" / "orders-0")
        store.close()
        with logstore.open(tmp_path / "data" / "orders-0") as log:
            log.append(b"v")
            with pytest.raises(LockedError):
                open_it()
        assert [b"v"] == values(open_it()["orders", 0])

    def test_closed(self, open_it):
        """After close nothing works, and a second close does nothing."""
        store = open_it()
        topic = store.create_topic("orders")
        store.close()
        store.close()
        assert "closed" in repr(store)
        for use in (
            lambda: store["orders"],
            lambda: store["orders", 0],
            lambda: store.create_topic("x"),
            lambda: topic.append(b"v"),
            lambda: list(store),
            store.__enter__,
        ):
            with pytest.raises(ClosedError):
                use()

    def test_lazy(self, open_it, tmp_path):
        """Each partition is opened at its first use; what was clean stays clean."""
        store = open_it()
        store.create_topic("orders", partitions=3)
        store.close()
        store = open_it(lazy=True)
        assert [] == list(store.logs())
        store["orders", 1].append(b"v")
        assert 1 == len(list(store.logs()))
        store.create_topic("new", partitions=2)
        assert 3 == len(list(store.logs()))
        store.close()
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        store = open_it()
        assert [b"v"] == values(store["orders", 1])
        assert ["new", "orders"] == list(store)
        assert store["new", 1].topic_id == store["new"].topic_id

    def test_lazy_after_a_crash_is_not_clean(self, open_it, tmp_path):
        """What was not opened still has to be recovered."""
        store = open_it()
        store.create_topic("orders", partitions=2)
        store["orders", 0].append(b"a")
        store["orders", 1].append(b"b")
        store.abandon()
        store = open_it(lazy=True)
        assert [b"a"] == values(store["orders", 0])
        store.close()
        assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        store = open_it()
        assert [b"b"] == values(store["orders", 1])
        store.close()
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()

    def test_dropped(self, tmp_path):
        """A store that nobody reaches any more warns, and leaves the lock."""
        store = logstore.open_store(tmp_path / "data")
        store.create_topic("orders")
        del store  # It and its topics know each other.
        with pytest.warns(ResourceWarning, match="was not closed"):
            gc.collect()
        with logstore.open_store(tmp_path / "data") as store:
            assert ["orders"] == list(store)

    def test_progress(self, open_it):
        """Each partition is told of once."""
        store = open_it()
        store.create_topic("orders", partitions=5)
        store.close()
        seen = []
        open_it(progress=seen.append)
        assert [1, 2, 3, 4, 5] == [each.loaded for each in seen]
        assert {0, 1, 2, 3, 4} == {each.topic_partition.partition for each in seen}
        assert {5} == {each.total for each in seen}


class TestFork:
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork in a process with threads
    def test_child_reads(self, tmp_path):
        """What was open and what was not; it changes nothing, and the parent goes on."""
        with logstore.open_store(tmp_path / "data") as store:
            store.create_topic("orders", partitions=2)
            for log in store["orders"].logs():
                log.append(b"v")
        store = logstore.open_store(tmp_path / "data", lazy=True)
        store["orders", 0].append(b"w")
        before = sorted(os.listdir(tmp_path / "data"))

        def child():
            assert [b"v", b"w"] == values(store["orders", 0])
            assert [b"v"] == values(store["orders", 1])
            for write in (
                lambda: store["orders", 0].append(b"x"),
                lambda: store["orders", 1].append(b"x"),
                lambda: store.create_topic("other"),
                lambda: store.delete_topic("orders"),
                lambda: store.alter_topic("orders", {}),
                store.flush,
            ):
                with pytest.raises((ForkedError, ReadOnlyError)):
                    write()
            store.close()
            assert before == sorted(os.listdir(tmp_path / "data"))

        pid = os.fork()
        if pid == 0:
            try:
                child()
                os._exit(0)
            except BaseException:  # noqa: BLE001 - the child ends here
                traceback.print_exc()
                os._exit(1)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        store["orders", 1].append(b"x")
        store.close()
        with logstore.open_store(tmp_path / "data") as store:
            assert [b"v", b"x"] == values(store["orders", 1])
            assert not store.errors


class TestTakingOver:
    def test_log_that_stood_alone(self, open_it, tmp_path):
        """Its state comes with it: log start, recovery point, clean end."""
        path = tmp_path / "data" / "orders-0"
        with logstore.open(path) as log:
            log.extend([b"a", b"b", b"c"])
            log.flush()
            log.maybe_increment_log_start_offset(1)
        assert (path / ".kafka_cleanshutdown").exists()
        store = open_it()
        log = store["orders", 0]
        assert ((1, 3), [b"b", b"c"]) == ((log.log_start_offset, log.recovery_point), values(log))
        own = [name for name in os.listdir(path) if "checkpoint" in name or name.startswith(".")]
        assert ["leader-epoch-checkpoint"] == own
        assert store["orders"].is_held
        store.close()
        checkpoint = OffsetCheckpointFile(tmp_path / "data" / "log-start-offset-checkpoint")
        assert {("orders", 0): 1} == checkpoint.read()

    def test_log_that_crashed_alone(self, open_it, tmp_path):
        """It is recovered from its own recovery point."""
        path = tmp_path / "data" / "orders-0"
        log = logstore.open(path)
        log.append(b"a", sync=True)
        log.append(b"b")
        log.abandon()
        store = open_it()
        assert [b"a", b"b"] == values(store["orders", 0])

    def test_log_that_is_open(self, open_it, tmp_path):
        """Who has it open does not know of the store: it is not served, until it is closed."""
        log = logstore.open(tmp_path / "data" / "orders-0")
        store = open_it()
        with pytest.raises(LockedError):
            store["orders", 0]
        assert ["load orders-0"] == [report.what for report in store.errors]
        log.append(b"v")
        log.close()
        assert [b"v"] == values(store["orders", 0])

    def test_names_that_are_no_partitions(self, open_it, tmp_path):
        """A broker would refuse to start; they are left alone and reported."""
        (tmp_path / "data" / "lost+found").mkdir(parents=True)
        (tmp_path / "data" / "orders-00").mkdir()
        (tmp_path / "data" / "remote-log-index-cache").mkdir()
        (tmp_path / "data" / "__cluster_metadata-0").mkdir()
        store = open_it()
        assert [] == list(store)
        assert 2 == len(store.errors)

    def test_set_aside(self, open_it, tmp_path):
        """A broker's future and stray directories are kept and not served."""
        for kind in ("future", "stray"):
            (tmp_path / "data" / f"orders-0.{'0' * 32}-{kind}").mkdir(parents=True)
        store = open_it()
        assert [] == list(store)
        assert 2 == len(store.set_aside)


class TestDirectories:
    def test_new_partitions_go_where_the_fewest_are(self, open_it, tmp_path):
        """Over several directories; all are one store."""
        paths = [tmp_path / name for name in "abc"]
        store = open_it(*paths)
        store.create_topic("one")
        store.create_topic("orders", partitions=5)
        counts = [len(contents_of(str(path), REAL_FILES).partitions) for path in paths]
        assert [2, 2, 2] == counts
        store.close()
        assert 5 == len(open_it(*reversed(paths))["orders"])

    def test_missing_directory(self, open_it, tmp_path):
        """What is on a disk that was not given is missed, not made again."""
        store = open_it(tmp_path / "a", tmp_path / "b")
        store.create_topic("orders", partitions=2)
        for log in store["orders"].logs():
            log.append(b"v")
        store.close()
        store = open_it(tmp_path / "a")
        assert (0, 1) == store["orders"].partitions
        (there,) = (
            number for number in (0, 1) if store.online_partitions_of("orders") == (number,)
        )
        assert [b"v"] == values(store["orders", there])
        with pytest.raises(OfflineError, match="a directory that was not given"):
            store["orders", 1 - there]
        assert [f"load orders-{1 - there}"] == [report.what for report in store.errors]
        assert {there} == {store["orders"].append(b"v").partition for _ in range(5)}
        store.close()
        assert [b"v"] == values(open_it(tmp_path / "a", tmp_path / "b")["orders", 1 - there])

    def test_a_topic_that_is_being_created(self, open_it, tmp_path):
        """A reader that comes meanwhile misses nothing; the next writer makes the rest."""
        store = open_it(tmp_path)
        store.create_topic("orders", partitions=3)
        store._put("orders", store.configs.get("orders").replace(state=CREATING))
        store.close()
        shutil.rmtree(tmp_path / "orders-2")
        reader = open_it(tmp_path, mode="r")
        assert (0, 1) == reader.online_partitions_of("orders")
        assert not reader.errors
        reader.close()
        store = open_it(tmp_path)
        assert (0, 1, 2) == store.online_partitions_of("orders")
        assert not store.errors

    def test_two_directories_of_a_partition(self, open_it, tmp_path):
        """Which is right is not known: neither is served, the others are."""
        store = open_it(tmp_path / "a", tmp_path / "b")
        store.create_topic("orders", partitions=2)
        store.close()
        shutil.copytree(tmp_path / "a" / "orders-0", tmp_path / "b" / "orders-0")
        store = open_it(tmp_path / "a", tmp_path / "b")
        with pytest.raises(OfflineError, match="there are two directories of orders-0"):
            store["orders", 0]
        assert (1,) == store.online_partitions_of("orders")
        assert 1 == len(store.errors)

    def test_of_different_stores(self, open_it, tmp_path):
        """Directories of two clusters are no store; one is not there twice."""
        for name in "ab":
            open_it(tmp_path / name).close()
        with pytest.raises(ConfigError, match=r"differ in cluster\.id"):
            open_it(tmp_path / "a", tmp_path / "b")
        with pytest.raises(ConfigError, match="is given twice"):
            open_it(tmp_path / "a", tmp_path / "." / "a")
        with pytest.raises(ConfigError, match="at least one"):
            open_log_store()
        for paths in (("a", "a/inner"), ("a/inner", "a")):
            with pytest.raises(ConfigError, match=r"inner is within .*a, where only partitions"):
                open_it(*(tmp_path / each for each in paths))
        assert not (tmp_path / "a" / "inner").exists()
        open_it(tmp_path / "a")
