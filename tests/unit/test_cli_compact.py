"""``logstore compact``."""

from __future__ import annotations

import json

import pytest

import logstore
from logstore.cli import main


@pytest.fixture(name="path")
def _path(tmp_path):
    path = tmp_path / "aircraft-0"
    with logstore.open(path) as log:
        log.extend([b"1", b"1", b"2"], keys=[b"a", b"b", b"a"])
    return path


def test_compact(path, capsys):
    """The open segment is closed first; the rest is there at the next open."""
    assert 0 == main(["compact", str(path)])
    said = capsys.readouterr().out
    assert "3 records read, 1 dropped" in said
    assert "clean up to offset 3" in said
    with logstore.open(path) as log:
        assert [1, 2] == [record.offset for record in log.read()]


def test_json(path, capsys):
    """All figures, one object."""
    assert 0 == main(["compact", "--json", "--memory", "2400", str(path)])
    figures = json.loads(capsys.readouterr().out)
    assert (3, 2) == (figures["messages_read"], figures["messages_written"])
    assert figures["bytes_before"] > figures["bytes_after"] > 0


def test_null_keys_are_not_dropped_by_the_way(path, capsys):
    """They have to be named."""
    with logstore.open(path) as log:
        log.append(b"x")
    assert 2 == main(["compact", str(path)])
    assert "1 records without a key" in capsys.readouterr().err
    assert 0 == main(["compact", "--drop-null-keys", str(path)])
    with logstore.open(path) as log:
        assert [1, 2] == [record.offset for record in log.read()]


def test_no_partition(tmp_path, capsys):
    """A directory without a log is not made one."""
    assert 2 == main(["compact", str(tmp_path)])
    assert "holds no partition" in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())
