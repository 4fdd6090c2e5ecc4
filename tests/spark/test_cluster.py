"""The format on a cluster of several processes, whose parts fail and are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import IS_CI, IS_NIGHTLY

import logstore

pytest.importorskip("pyspark", reason="needs the extra [spark-local]")

JOB = Path(__file__).with_name("cluster_job.py")
FEW = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
TOPICS = ("failing", "slow", "dying")
NUMBERS = list(range(100))
SECONDS_MAX = 500


@pytest.mark.skipif(not (IS_CI or IS_NIGHTLY), reason="costs a minute: for CI and the nightly run")
@pytest.mark.timeout(2 * SECONDS_MAX)
def test_each_record_is_there_once(request, tmp_path):
    """
    A task raises, a writer is killed, an executor is killed; a straggler's task is run twice.

    At last the driver is killed between the sink's commit and Spark's: the query goes on, and finds
    the batch there.
    """
    path = str(tmp_path / "store")
    with logstore.open_store(path, config=FEW) as store:
        source = store.create_topic("in", partitions=4)
        for number in NUMBERS:
            source[number % 4].append(b"%d" % number, key=b"k%d" % number)
        with store.transaction("t") as transaction:  # So that its topic has one partition.
            for topic in TOPICS:
                store.create_topic(topic, partitions=2)
            transaction.append(("in", 0), b"100", key=b"k100")
    finished = run_job(path, tmp_path)
    assert list(TOPICS[:-1]) == finished
    made = {each.name for each in tmp_path.iterdir()}
    assert {"failed-0", "failed-1", "failed-2", "waits", "was-faster"} <= made

    checkpoint = tmp_path / "checkpoint"
    assert not (checkpoint / "commits" / "1").exists()
    with logstore.open_store(path, mode="r") as store:
        assert [1] == [sink.version for sink in store.sinks()]
        for topic in TOPICS[:-1]:
            assert [*NUMBERS, 100] == numbers(store, topic), topic
        assert 60 < len(numbers(store, "dying")) < 100

    spark = request.getfixturevalue("spark")
    stream = spark.readStream.format("logstore").option("subscribe", "in")
    writer = stream.load(path).select("key", "value").writeStream.format("logstore")
    writer = writer.option("topic", "dying").option("checkpointLocation", str(checkpoint))
    assert writer.trigger(availableNow=True).start(path).awaitTermination(SECONDS_MAX)
    with logstore.open_store(path) as store:
        assert [*NUMBERS, 100] == numbers(store, "dying")
        assert [] == list(store.check())


def run_job(path, directory):
    """Run the job until its driver is killed; the copies that it has finished."""
    command = [sys.executable, "-W", "ignore", str(JOB), path, str(directory)]
    said = directory / "said"
    with said.open("wb") as out:  # No pipe: what is left of Spark's processes would hold it.
        job = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        try:
            assert 0 != job.wait(SECONDS_MAX), said.read_text()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
    lines = said.read_text(errors="replace").splitlines()
    return [line.split()[0] for line in lines if line.startswith(TOPICS)]


def numbers(store, topic):
    return sorted(int(record.value) for log in store[topic].logs() for record in log)
