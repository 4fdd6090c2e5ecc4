"""``logstore info --sinks`` and ``logstore forget-sink``."""

from __future__ import annotations

import json

import pytest
from staged_records import staged

import logstore
from logstore.cli import main


@pytest.fixture(name="data")
def _data(tmp_path):
    """A store that two sinks have written to."""
    path = tmp_path / "data"
    config = {"transaction.state.log.num.partitions": 1}
    with logstore.open_store(path, config=config) as store:
        store.create_topic("orders")
        store.create_topic("users")
        for sink, version, topics in (("q", 3, ("orders", "users")), ("job_7", 0, ("users",))):
            records = {(topic, 0): [b"1"] for topic in topics}
            store.commit_staged(sink, version, [staged(store, sink, version, records)])
    return str(path)


def sinks(data, capsys):
    """Return what ``info --sinks --json`` says."""
    capsys.readouterr()
    assert 0 == main(["info", "--sinks", "--json", data])
    found = map(json.loads, capsys.readouterr().out.splitlines())
    return [(each["sink_id"], each["topic"], each["version"]) for each in found]


def test_info(data, capsys):
    """A line for each sink and topic."""
    assert 0 == main(["info", "--sinks", data])
    lines = capsys.readouterr().out.splitlines()
    assert 2 == len(lines)
    assert lines[0].startswith("orders  sink q  version 3  committed 20")
    assert [("q", "orders", 3), ("q", "users", 3)] == sinks(data, capsys)


def test_forget(data, capsys):
    """Only with --yes; of one topic, or all; a sink that is not there is an error."""
    assert 2 == main(["forget-sink", data, "q"])
    assert "add --yes" in capsys.readouterr().err
    assert 0 == main(["forget-sink", data, "q", "--topic", "users", "--yes"])
    assert [("q", "orders", 3)] == sinks(data, capsys)
    assert 0 == main(["forget-sink", data, "q", "--yes", "--json"])
    assert "orders" == json.loads(capsys.readouterr().out)["topic"]
    assert [] == sinks(data, capsys)
    assert 2 == main(["forget-sink", data, "q", "--yes"])
    assert "no sink 'q'" in capsys.readouterr().err
