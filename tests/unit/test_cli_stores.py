"""The commands about topics: list, create, alter, delete."""

from __future__ import annotations

import json
import os

import pytest

import logstore
from logstore.cli import main


@pytest.fixture(name="data")
def _data(tmp_path):
    """A store with two topics."""
    path = tmp_path / "data"
    with logstore.open_store(path) as store:
        store.create_topic("orders", partitions=2, config={"retention.ms": 5}).append(b"v")
        store.create_topic("users")
    return path


def topics(path, capsys):
    """Return what ``topics --json`` says, by name."""
    capsys.readouterr()
    assert 0 == main(["topics", str(path), "--json"])
    found = map(json.loads, capsys.readouterr().out.splitlines())
    return {each["topic"]: each for each in found}


class TestTopics:
    def test_lines(self, data, capsys):
        """A topic a line, with the settings that are its own."""
        assert 0 == main(["topics", str(data)])
        assert [
            "orders  2 partitions  69 bytes  retention.ms=5",
            "users  1 partition  0 bytes",
        ] == capsys.readouterr().out.splitlines()

    def test_json(self, data, capsys):
        """Every field."""
        with logstore.open_store(data, mode="r") as store:
            topic_id = store["orders"].topic_id
        assert {
            "topic": "orders",
            "topic_id": topic_id,
            "partitions": 2,
            "missing": [],
            "size_bytes": 69,
            "held": False,
            "internal": False,
            "config": {"retention.ms": "5"},
        } == topics(data, capsys)["orders"]

    def test_what_was_found(self, data, capsys):
        """A topic of a broker is held; what was set aside is named."""
        os.mkdir(data / "found-0")
        os.mkdir(data / f"found-1.{'0' * 32}-stray")
        assert 0 == main(["topics", str(data)])
        out = capsys.readouterr().out
        assert "found  1 partition  0 bytes  held (nothing is deleted" in out
        assert "-stray" in out

    def test_beside_a_writer(self, data, capsys):
        """No lock is taken, nothing is written."""
        before = sorted(os.listdir(data))
        with logstore.open_store(data):
            assert 2 == len(topics(data, capsys))
        assert before == sorted(os.listdir(data))

    def test_missing_partition(self, tmp_path, capsys):
        """Several directories are one store; what is on none of them is missing."""
        with logstore.open_store(tmp_path / "a", tmp_path / "b") as store:
            store.create_topic("orders", partitions=3)
        (missing,) = (n for n in range(3) if (tmp_path / "b" / f"orders-{n}").exists())
        assert [missing] == topics(tmp_path / "a", capsys)["orders"]["missing"]
        assert 0 == main(["topics", str(tmp_path / "a"), "--log-dir", str(tmp_path / "b")])
        assert "missing" not in capsys.readouterr().out

    def test_no_store(self, tmp_path, capsys):
        """Usage, not a new directory."""
        for command in (["topics"], ["alter", "--unset", "x"], ["delete"]):
            more = [] if command == ["topics"] else ["orders"]
            assert 2 == main([command[0], str(tmp_path / "no"), *more, *command[1:]])
            assert "there is no" in capsys.readouterr().err
        assert [] == os.listdir(tmp_path)


class TestCreate:
    def test_topic(self, tmp_path, capsys):
        """With partitions and settings; the store is made."""
        arguments = ["create", str(tmp_path / "new"), "orders", "--partitions", "3"]
        assert 0 == main([*arguments, "--config", "retention.ms = 7"])
        assert {"retention.ms": "7"} == topics(tmp_path / "new", capsys)["orders"]["config"]
        assert 0 == main(["read", str(tmp_path / "new" / "orders-2")])

    def test_more_partitions(self, data, capsys):
        """--grow."""
        assert 0 == main(["create", str(data), "orders", "--grow", "--partitions", "5"])
        assert 5 == topics(data, capsys)["orders"]["partitions"]

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["orders"], "there is a topic orders"),
            (["a/b"], "is no topic's name"),
            (["new", "--config", "retention.ms"], "write NAME=VALUE"),
            (["new", "--config", "a.b=1", "--config", "a.b=2"], "given twice"),
            (["new", "--config", "segment.byte=1"], "did you mean segment.bytes"),
            (["new", "--partitions", "0"], "cannot have 0 partitions"),
            (["orders", "--grow"], "goes with --partitions"),
            (["orders", "--grow", "--partitions", "2"], "has 2 partitions already"),
        ],
    )
    def test_refused(self, data, capsys, arguments, why):
        """Status 2, a reason, and nothing has changed."""
        assert 2 == main(["create", str(data), *arguments])
        assert why in capsys.readouterr().err
        assert {"orders", "users"} == topics(data, capsys).keys()

    def test_locked(self, data, capsys):
        """Status 3, and how to wait."""
        with logstore.open_store(data):
            assert 3 == main(["create", str(data), "new"])
        assert "--lock-timeout" in capsys.readouterr().err


class TestAlter:
    def test_set_and_unset(self, data, capsys):
        """Several topics at once."""
        arguments = ["alter", str(data), "orders", "users", "--config", "segment.bytes=1000"]
        assert 0 == main([*arguments, "--unset", "retention.ms"])
        found = topics(data, capsys)
        assert [{"segment.bytes": "1000"}] * 2 == [each["config"] for each in found.values()]

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["--config", "retention.ms=-7", "--config", "x=1"], "x is not a known property"),
            (["--config", "retention.ms=-7", "--config", "x=1"], "must be at least -1"),
            (["--config", "flush.ms=1", "--unset", "flush.ms"], "both set and unset"),
            ([], "nothing to change"),
            (["nowhere", "--config", "flush.ms=1"], "no topic 'nowhere'"),
        ],
    )
    def test_refused(self, data, capsys, arguments, why):
        """As a whole: no topic has changed."""
        assert 2 == main(["alter", str(data), "orders", *arguments])
        assert why in capsys.readouterr().err
        assert {"retention.ms": "5"} == topics(data, capsys)["orders"]["config"]


class TestDelete:
    def test_asks_first(self, data, capsys):
        """Without --yes it says what would go."""
        assert 2 == main(["delete", str(data), "orders"])
        captured = capsys.readouterr()
        assert captured.out.startswith("orders  2 partitions")
        assert "add --yes" in captured.err
        assert 2 == len(topics(data, capsys))

    def test_at_once(self, data, capsys):
        """The directories are gone, too."""
        assert 0 == main(["delete", str(data), "orders", "--yes"])
        assert ["users"] == list(topics(data, capsys))
        assert not [name for name in os.listdir(data) if "orders" in name]

    def test_later(self, data, capsys):
        """--keep-files renames them."""
        assert 0 == main(["delete", str(data), "orders", "--yes", "--keep-files"])
        assert ["users"] == list(topics(data, capsys))
        assert 2 == len([name for name in os.listdir(data) if name.endswith("-delete")])

    def test_unknown(self, data, capsys):
        """Nothing is deleted if one of them is not there."""
        assert 2 == main(["delete", str(data), "orders", "no", "--yes"])
        assert "no topic 'no'" in capsys.readouterr().err
        assert 2 == len(topics(data, capsys))
