"""Options of the source: the connector's names and rules, refused where they make no sense."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from logstore.checkpoint import TopicPartition
from logstore.spark.errors import SparkSourceError, named
from logstore.spark.java import shim_of
from logstore.spark.options import (
    SOURCE_OPTIONS,
    OptionMap,
    check_names,
    parse_source_options,
)

BASE = {"path": "/data/logs", "subscribe": "orders"}


def parse(**options):
    given = {**BASE, **{name.replace("__", "."): value for name, value in options.items()}}
    return parse_source_options({name: value for name, value in given.items() if value is not None})


def refused(text, **options):
    with pytest.raises(SparkSourceError, match=text) as error:
        parse(**options)
    assert "\n" not in str(error.value)


def test_defaults():
    """As the connector's, where it has one."""
    found = parse()
    assert found.roots == ("/data/logs",)
    assert found.subscription.topics == ("orders",)
    assert found.starting is None  # earliest in a batch query, latest in a stream
    assert found.fail_on_data_loss
    assert found.isolation == "read_committed"
    assert found.max_trigger_delay_ms == 15 * 60_000
    assert (found.batch_bytes, found.batch_rows) == (3 << 20, None)
    assert not found.include_headers
    assert not found.filter_pushdown


def test_keys_and_words_in_any_case():
    """Spark gives keys in lower case as a rule."""
    found = parse_source_options(
        {
            "PATH": "/data/logs",
            "SUBSCRIBE": " a , b,,a ",
            "failondataloss": "FALSE",
            "kafka.ISOLATION.level": "Read_Uncommitted",
            "maxtriggerdelay": "2 minutes",
        }
    )
    assert found.subscription.topics == ("a", "b")
    assert not found.fail_on_data_loss
    assert found.isolation == "read_uncommitted"
    assert found.max_trigger_delay_ms == 120_000


@pytest.mark.parametrize(
    ("path", "roots"),
    [
        ("/data/../logs", ("/logs",)),
        ("file:///data/my%20logs", ("/data/my logs",)),
        ("file:/data", ("/data",)),
        ('["/disk1", "file:///disk2"]', ("/disk1", "/disk2")),
    ],
)
def test_paths(path, roots):
    """A directory, its URL, or a list of them."""
    assert parse(path=path).roots == roots
    assert parse(path=None, kafka__bootstrap__servers=path).roots == roots


def test_refused_paths(tmp_path, monkeypatch):
    """What only seems to be a path of all hosts."""
    monkeypatch.chdir(tmp_path)
    refused(f"LOGSTORE_RELATIVE_PATH: .*{os.path.join(os.getcwd(), 'logs')}", path="logs")
    refused(f"perhaps '{Path.home()}/logs'", path="~/logs")
    refused("LOGSTORE_UNSUPPORTED_FILE_SYSTEM: path is 's3a://b/c'", path="s3a://b/c")
    refused("LOGSTORE_UNSUPPORTED_FILE_SYSTEM: path is 'dbfs:/c'", path="dbfs:/c")
    refused("on another host", path="file://elsewhere/data")
    refused("LOGSTORE_MISSING_PATH", path=None)
    servers = {"kafka__bootstrap__servers": "broker:9092", "path": None}
    refused("LOGSTORE_MISSING_PATH: .*there is no broker.* Set path to", **servers)


def test_a_path_goes_before_a_broker(caplog):
    """A job that moves over may keep its line; it is told that nothing uses it."""
    options = {"path": "/data", "kafka.bootstrap.servers": "broker:9092"}
    assert OptionMap(options).roots() == ("/data",)
    check_names(options)
    (told,) = caplog.messages
    assert "nothing here uses kafka.bootstrap.servers" in told


def test_which_partitions():
    """Exactly one of three options says."""
    assert parse(subscribe=None, assign='{"a": [1]}').subscription.assign == (
        TopicPartition("a", 1),
    )
    pattern = parse(subscribe=None, subscribePattern="or.*").subscription
    assert pattern.wants(TopicPartition("orders", 0))
    assert not pattern.wants(TopicPartition("my-orders", 0))
    refused("one of the options assign, subscribe, subscribePattern .* none", subscribe=None)
    refused("assign and subscribe are given", assign='{"a": [1]}')
    refused("names no topic", subscribe=" , ")
    refused("no regular expression", subscribe=None, subscribePattern="(")


def test_a_single_log_needs_no_topic(tmp_path):
    """Its path says it all."""
    (tmp_path / "00000000000000000000.log").touch()
    assert parse(path=str(tmp_path), subscribe=None).subscription.pattern == ".*"


def test_times_go_before_offsets():
    """As in the connector: one for all, then by partition, then offsets."""
    options = {
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": '{"orders": {"0": 5}}',
        "startingTimestamp": "7",
    }
    assert parse(**options).starting.timestamp == 7
    del options["startingTimestamp"]
    assert parse(**options).starting.timestamps == {TopicPartition("orders", 0): 5}


def test_what_suits_a_batch_or_a_stream():
    """A start at the end of a batch, an end of a stream."""
    with pytest.raises(SparkSourceError, match=r"startingOffsets cannot be latest \(-1\)"):
        parse(startingOffsets="latest").check_batch()
    with pytest.raises(SparkSourceError, match="startingOffsets cannot be latest"):
        parse(startingOffsets='{"orders": {"0": -1}}').check_batch()
    parse(startingOffsets="latest").check_stream()
    for name in ("endingOffsets", "endingOffsetsByTimestamp"):
        with pytest.raises(SparkSourceError, match=f"{name} is for batch queries"):
            parse(**{name: '{"orders": {"0": 1}}'}).check_stream()
    refused("is 'first'; give earliest, latest, or JSON", startingOffsets="first")
    refused("endingOffsets cannot be earliest", endingOffsets="earliest")


@pytest.mark.parametrize("value", ["a", "1.0", "0", "-1", "", str(2**63)])
def test_numbers(value):
    """Whole, and at least 1."""
    for name in ("batchBytes", "batchRows"):
        refused(f"option {name} is .*a whole number from 1 to 2147483647", **{name: value})
    for name in (
        "minPartitions",
        "maxPartitions",
        "maxRecordsPerPartition",
        "maxOffsetsPerTrigger",
    ):
        refused(f"option {name} is .*a whole number from 1 on", **{name: value})


def test_other_values():
    """Each is named with what it may be."""
    refused("failOnDataLoss is 'yes'; give true or false", failOnDataLoss="yes")
    refused("kafka.isolation.level is 'none'", kafka__isolation__level="none")
    refused("maxTriggerDelay is 'soon'; give a time such as", maxTriggerDelay="soon")
    refused("less than minOffsetsPerTrigger", minOffsetsPerTrigger="9", maxOffsetsPerTrigger="8")
    refused("maxPartitions is '?8'?, less than minPartitions", minPartitions="9", maxPartitions="8")
    refused("columns has 'values'; there are key, value", columns="values")
    refused("name each column once", columns="key,KEY")
    refused("option numPartitions is for writing", numPartitions="3")
    refused("for reading it is called subscribe", topic="orders")


def test_names(caplog):
    """An unknown one is refused with the nearest; settings of Kafka's clients mean nothing."""
    check_names({"kafka.acks": "1", "kafka.session.timeout.ms": "1", "groupIdPrefix": "a"})
    (told,) = caplog.messages
    assert "nothing here uses kafka.acks, kafka.session.timeout.ms, groupIdPrefix" in told
    check_names({"topic": "orders", "checkpointLocation": "/c", "option.topic": "orders"})
    for name, nearest in {
        "startingOffset": "startingOffsets",
        "kafka.max.pol.records": "kafka.max.poll.records",
        "max.poll.records": "kafka.max.poll.records",
        "kafka.isolation.lvel": "kafka.isolation.level",
        "kafka.nonsense": "see docs/spark.md",
        "xyzzy": "see docs/spark.md",
    }.items():
        with pytest.raises(SparkSourceError, match=f"LOGSTORE_UNKNOWN_OPTION: .*{nearest}"):
            check_names({name: "1"})
    with pytest.raises(SparkSourceError, match=r"'kafka.auto.offset.reset' is not supported: set"):
        check_names({"kafka.auto.offset.reset": "earliest"})


@pytest.mark.repository
def test_the_page_has_every_option():
    """And none that there is not."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text("utf-8")
    table = page.partition("## Options")[2].partition("## Batch")[0]
    named = {
        name
        for row in re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
        for name in row.split("`")[1::2]
    }
    assert {*SOURCE_OPTIONS} - named - {"paths"} == {
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
    }
    assert named - {*SOURCE_OPTIONS} == {"fetchOffset.…", "kafka.…"}


def test_errors_of_the_log_have_codes():
    """One line, whatever it was."""
    error = named(ValueError("first\nsecond"), "orders-0")
    assert str(error) == "LOGSTORE_VALUE: orders-0: first second"
    assert named(error) is error


def test_the_java_of_the_package_leaves_a_module_out(tmp_path):
    """The shim passes every other argument on as it was, spaces and all."""
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nfor each do echo "<$each>"; done\n')
    java.chmod(0o755)
    home = shim_of(str(tmp_path / "home"), str(tmp_path / "cache"))
    assert home == shim_of(str(tmp_path / "home"), str(tmp_path / "cache"))
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "*", ""]
    with os.popen(f"{home}/bin/java " + " ".join(f"'{each}'" for each in arguments)) as output:
        assert output.read() == "<-Da=b c>\n<*>\n<>\n"
