"""``logstore positions``: list, set, reset, forget."""

from __future__ import annotations

import json

import pytest

import logstore
from logstore.cli import main

FEW = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 2}


@pytest.fixture(name="data")
def _data(tmp_path):
    """A store with twelve records in two partitions of a topic, and a group."""
    path = tmp_path / "data"
    with logstore.open_store(path, config=FEW) as store:
        store.create_topic("orders", partitions=2)
        store["orders", 0].extend([b"v"] * 10, timestamps=range(1000, 11_000, 1000))
        store["orders", 1].extend([b"v"] * 2)
        store.positions("billing").commit({("orders", 0): 4}, metadata="here")
    return path


def run(*arguments):
    return main(["positions", *map(str, arguments)])


def positions(data, capsys, group="billing"):
    capsys.readouterr()
    assert 0 == run("list", data, group, "--json")
    found = map(json.loads, capsys.readouterr().out.splitlines())
    return {(each["topic"], each["partition"]): each["offset"] for each in found}


def test_list(data, capsys):
    """Position, lag, time and metadata; every group unless one is named."""
    assert 0 == run("list", data)
    (line,) = capsys.readouterr().out.splitlines()
    group, place, lag, _, metadata = line.split("  ")
    assert ("billing", "orders:0=4", "lag 6", "here") == (group, place, lag, metadata)
    assert 0 == run("list", data, "billing", "--json")
    fields = json.loads(capsys.readouterr().out)
    assert fields.pop("committed") > 0
    assert {
        "group": "billing",
        "topic": "orders",
        "partition": 0,
        "offset": 4,
        "lag": 6,
        "metadata": "here",
    } == fields


def test_unknown_group(data, capsys):
    """It is an error, not an empty list."""
    assert 2 == run("list", data, "other")
    assert "no group other" in capsys.readouterr().err


def test_set(data, capsys):
    """Several at once; what is not named stays."""
    assert 0 == run("set", data, "billing", "orders:1=1")
    assert "billing  orders:1=1\n" == capsys.readouterr().out
    assert {("orders", 0): 4, ("orders", 1): 1} == positions(data, capsys)
    assert 0 == run("set", data, "new", "orders:0=1", "orders:1=2")
    assert {("orders", 0): 1, ("orders", 1): 2} == positions(data, capsys, "new")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--to", "earliest"], {0: 0}),
        (["--to", "latest"], {0: 10}),
        (["--to", "7"], {0: 7}),
        (["--to", "+3"], {0: 7}),
        (["--to", "-3"], {0: 1}),
        (["--to=-30"], {0: 0}),
        (["--to", "1970-01-01T00:00:05Z"], {0: 4}),
        (["--to", "latest", "--topic", "orders"], {0: 10, 1: 2}),
        (["--to", "latest", "--topic", "orders:1"], {0: 4, 1: 2}),
        (["--to", "latest", "--dry-run"], {0: 4}),
    ],
)
def test_reset(data, capsys, arguments, expected):
    """By name, offset, distance and time; all that the group has, or what is named."""
    assert 0 == run("reset", data, "billing", *arguments)
    found = {partition: offset for (_, partition), offset in positions(data, capsys).items()}
    assert expected == found


def test_forget(data, capsys):
    """The group begins anew there."""
    assert 0 == run("set", data, "billing", "orders:1=1")
    assert 0 == run("forget", data, "billing", "--topic", "orders:0")
    assert {("orders", 1): 1} == positions(data, capsys)
    assert 0 == run("forget", data, "billing")
    assert 2 == run("list", data, "billing")


@pytest.mark.parametrize(
    "arguments",
    [
        ["set", "billing", "orders:0"],
        ["set", "billing", "orders=4"],
        ["reset", "billing", "--to", "soon"],
        ["reset", "billing", "--to", "latest", "--topic", "a:b"],
    ],
)
def test_wrong_usage(data, arguments):
    """The parser says what is wrong."""
    with pytest.raises(SystemExit) as caught:
        run(arguments[0], data, *arguments[1:])
    assert 2 == caught.value.code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["set", "g", "missing:0=1"], "missing"),
        (["set", "g", "orders:7=1"], "has 2 partitions"),
        (["reset", "nobody", "--to", "latest"], "has no position"),
        (["reset", "billing", "--to", "+1", "--topic", "orders:1"], "no position"),
    ],
)
def test_what_is_not_there(data, capsys, arguments, message):
    """A sentence, status 2, and nothing was changed."""
    assert 2 == run(arguments[0], data, *arguments[1:])
    assert message in capsys.readouterr().err
    assert {("orders", 0): 4} == positions(data, capsys)


def test_no_store(tmp_path, capsys):
    """Nothing is made by looking for positions."""
    assert 2 == run("set", tmp_path / "none", "g", "orders:0=1")
    assert "no directory" in capsys.readouterr().err
