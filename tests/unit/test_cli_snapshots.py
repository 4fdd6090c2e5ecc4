"""``logstore snapshot``, ``restore`` and ``fork``."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import logstore
from logstore.cli import main

FEW = {"offsets.topic.num.partitions": 2}
START = 1_700_000_000_000


@pytest.fixture(name="path")
def _path(tmp_path):
    with logstore.open_store(tmp_path / "data", config={"segment.bytes": 1000, **FEW}) as store:
        store.create_topic("orders", partitions=2)
        for number in range(50):
            store["orders", 0].append(b"%d" % number * 20, timestamp=START + number)
        store.positions("g").commit({("orders", 0): 50})
    return tmp_path / "data"


def values(path, topic="orders", partition=0):
    with logstore.open_store(path, mode="r") as store:
        return list(store[topic, partition].read_values())


def test_snapshot(path, tmp_path, capsys):
    """A line, or an object with all figures."""
    dest = tmp_path / "monday"
    assert 0 == main(["snapshot", str(path), str(dest)])
    assert f"{dest}: 4 partitions; " in capsys.readouterr().out
    assert values(path) == values(dest)
    again = tmp_path / "tuesday"
    assert 0 == main(["snapshot", "--json", str(path), str(again), "--base", str(dest)])
    said = json.loads(capsys.readouterr().out)
    assert (str(again), 50) == (said["path"], said["end_offsets"]["orders-0"])
    assert said["linked_bytes"] > 0 == said["reused_bytes"]
    assert said["copied_because"] is None


def test_refused(path, tmp_path, capsys):
    """Where something is, no store, no snapshot to begin with."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    assert 2 == main(["snapshot", str(path), str(tmp_path / "full")])
    assert 2 == main(["snapshot", str(path), str(path / "inside")])
    assert 2 == main(["snapshot", str(tmp_path / "none"), str(tmp_path / "x")])
    assert 2 == main(["snapshot", str(path), str(tmp_path / "x"), "--base", str(path)])
    assert 2 == main(["restore", str(path), str(tmp_path / "x")])
    said = capsys.readouterr().err
    assert "something in" in said
    assert "no snapshot" in said
    assert "inside the store" in said
    assert {"data", "full"} == {*os.listdir(tmp_path)}


def test_live_store(path, tmp_path, capsys):
    """Which process has it is told; its own store.snapshot() is the way."""
    code = (
        "import sys, logstore; store = logstore.open_store(sys.argv[1]);"
        "print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert 3 == main(["snapshot", str(path), str(tmp_path / "x")])
        assert 3 == main(["fork", str(path), str(tmp_path / "x")])
        assert f"process {child.pid}" in capsys.readouterr().err
        child.kill()


def test_restore(path, tmp_path, capsys):
    """Whole, or to a time: what was cut is told."""
    main(["snapshot", str(path), str(tmp_path / "s")])
    assert 0 == main(["restore", str(tmp_path / "s"), str(tmp_path / "whole")])
    assert values(path) == values(tmp_path / "whole")
    time = "2023-11-14T22:13:20.009+00:00"
    to_time = ["restore", "--to-time", time, str(tmp_path / "s")]
    capsys.readouterr()
    assert 0 == main([*to_time, str(tmp_path / "then")])
    assert "orders-0 ends at offset 10" in capsys.readouterr().out
    assert 10 == len(values(tmp_path / "then"))
    assert 0 == main([*to_time, "--json", str(tmp_path / "json")])
    said = json.loads(capsys.readouterr().out)
    assert 10 == said["cuts"]["orders-0"] == said["end_offsets"]["orders-0"]
    assert (0, []) == (said["aborted"], said["clamped"])
    with pytest.raises(SystemExit):
        main(["restore", "--to-time", "earliest", str(tmp_path / "s"), str(tmp_path / "x")])


def test_restore_clamps(path, tmp_path, capsys):
    """A position behind the end is told."""
    with logstore.open_store(path) as store:
        store.alter_topic("orders", {"message.timestamp.after.max.ms": 10**13})
        store["orders", 1].append(b"far ahead", timestamp=4_000_000_000_000)
        store.positions("g").commit({("orders", 1): 1})
        store.snapshot(tmp_path / "s")
    assert 0 == main(
        ["restore", "--to-time", "3000000000000", str(tmp_path / "s"), str(tmp_path / "t")]
    )
    assert "group g was at 1 of orders-1" in capsys.readouterr().out


def test_fork(path, tmp_path, capsys):
    """Both sides may be written."""
    assert 0 == main(["fork", str(path), str(tmp_path / "fork")])
    assert "4 partitions" in capsys.readouterr().out
    assert 0 == main(["fork", "--json", str(path), str(tmp_path / "other")])
    assert 4 == json.loads(capsys.readouterr().out)["partitions"]
    with logstore.open_store(tmp_path / "fork") as fork:
        fork["orders", 0].append(b"mine")
    assert [*values(path), b"mine"] == values(tmp_path / "fork")
