"""``logstore copy`` and ``logstore diff``."""

from __future__ import annotations

import json

import pytest

import logstore
from logstore.cli import main


@pytest.fixture(name="data")
def _data(tmp_path):
    """A store with records, a position and a transaction."""
    few = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
    path = tmp_path / "data"
    with logstore.open_store(path, config=few) as store:
        orders = store.create_topic("orders", partitions=2, config={"retention.ms": 5_000_000})
        for number in range(20):
            orders.append(b"%d" % number, key=b"%d" % number)
        store.create_topic("users").append(b"u")
        store.positions("billing").commit({("orders", 0): 3})
        with store.transaction("t") as transaction:
            transaction.append("users", b"in one")
    return path


def output(capsys, *arguments, status=0):
    """What a command prints, in lines."""
    capsys.readouterr()
    assert status == main([str(argument) for argument in arguments])
    return capsys.readouterr().out.splitlines()


class TestCopyOfAPartition:
    def test_there_and_again(self, data, tmp_path, capsys):
        """The second time goes on; a diff finds nothing, whatever the codec."""
        source, target = data / "orders-0", tmp_path / "backup" / "orders-0"
        with logstore.open(source, mode="r") as log:
            end = log.log_end_offset
        (line,) = output(capsys, "copy", source, target, "--reencode", "gzip")
        assert line.startswith(f"{target}: offsets 0 to {end - 1}, ")
        assert [f"{target}: nothing new, it ends at {end}"] == (
            output(capsys, "copy", source, target)
        )
        assert [f"{source}: the same, {end} records"] == output(capsys, "diff", source, target)

    def test_a_range(self, data, tmp_path, capsys):
        """As JSON; the rest is what the diff shows, with status 1."""
        source, target = data / "orders-0", tmp_path / "backup" / "orders-0"
        (line,) = output(capsys, "copy", source, target, "--from", 2, "--to", 5, "--json")
        assert {
            "partition": str(target),
            "first_offset": 2,
            "end_offset": 5,
            "left_offsets": 0,
        }.items() <= json.loads(line).items()
        assert [] == output(capsys, "diff", source, target, "--from", 2, "--to", 5)[1:]
        first, second, *_ = output(capsys, "diff", source, target, status=1)
        assert first.startswith(f"{source}: 3 records the same, ")
        assert second.startswith("  offsets 0 to 1 (2 records): only in a: key=")

    def test_an_open_transaction(self, tmp_path, capsys):
        """What it holds back is told."""
        with logstore.open_store(tmp_path / "data") as store:
            store.create_topic("orders").append(b"v")
            transaction = store.transaction("t")
            transaction.append("orders", b"late")
            transaction.flush()
            arguments = ["copy", tmp_path / "data" / "orders-0", tmp_path / "copy-0"]
            assert 0 == main([str(each) for each in arguments])
            said = capsys.readouterr()
            transaction.abort()
        assert "offsets 0 to 0" in said.out
        assert "1 offset from an open transaction on are left" in said.err

    @pytest.mark.parametrize(
        ("target", "message"),
        [("data/orders-0", "is what is to be copied"), ("data", "name the partition in it")],
    )
    def test_wrong_places(self, data, target, message, capsys):
        """Nothing is written."""
        assert 2 == main(["copy", str(data / "orders-0"), str(data.parent / target)])
        assert message in capsys.readouterr().err

    def test_another_log(self, data, tmp_path, capsys):
        """A target with other records is left alone."""
        with logstore.open(tmp_path / "mine-0") as log:
            log.append(b"mine")
        assert 2 == main(["copy", str(data / "orders-0"), str(tmp_path / "mine-0")])
        assert "has another record at offset 0" in capsys.readouterr().err


class TestCopyOfAStore:
    def test_everything(self, data, tmp_path, capsys):
        """Topics with their settings, positions, transactional ids; then nothing differs."""
        target = tmp_path / "copy"
        lines = output(capsys, "copy", data, target)
        assert 5 == len(lines)
        assert all(": the same, " in line for line in output(capsys, "diff", data, target))
        with logstore.open_store(target) as store:
            assert 5_000_000 == store["orders"].config.retention_ms
            assert {("orders", 0): 3} == dict(store.positions("billing"))
            assert [b"u", b"in one"] == list(store["users", 0].read_values())
            with store.transaction("t") as transaction:  # Whose epoch goes on.
                transaction.append("users", b"more")
            assert not store.errors

    def test_empty_partitions_of_internal_topics(self, tmp_path, capsys):
        """One line says how many there are, also in diff and info; JSON has each."""
        data, target = tmp_path / "internal", tmp_path / "copy"
        with logstore.open_store(data) as store:
            store.create_topic("empty")
            store.positions("billing").commit({("empty", 0): 0})
        with logstore.open_store(tmp_path / "other") as store:
            store.create_topic("empty")
        lines = output(capsys, "copy", data, target)
        assert ["empty-0", "49 partitions of internal topics"] == [
            line.split(": ")[0] for line in lines if not line.startswith("__")
        ]
        assert 3 == len(lines)
        assert 51 == len(output(capsys, "copy", data, target, "--json"))
        lines = output(capsys, "diff", data, target)
        assert (3, "49 partitions of internal topics: empty") == (len(lines), lines[-1])
        lines = output(capsys, "diff", tmp_path / "other", data, status=1)
        assert f"49 partitions of internal topics: empty, and only in {data}" == lines[-1]
        lines = output(capsys, "info", data)
        assert (2, "49 partitions of internal topics: empty") == (
            sum(not line.startswith(" ") for line in lines[:-1]),
            lines[-1],
        )
        assert 51 == len(output(capsys, "info", data, "--json"))
        assert "log end offset: 0" in "".join(output(capsys, "info", data / "__consumer_offsets-0"))

    def test_some_topics(self, data, tmp_path, capsys):
        """Others are not made."""
        output(capsys, "copy", data, tmp_path / "copy", "--topic", "users", "--reencode", "zstd")
        with logstore.open_store(tmp_path / "copy", mode="r") as store:
            assert ["users"] == list(store)

    def test_unknown_topic(self, data, tmp_path, capsys):
        """It is named."""
        assert 2 == main(["copy", str(data), str(tmp_path / "copy"), "--topic", "nobody"])
        assert "nobody" in capsys.readouterr().err

    def test_fewer_partitions(self, data, tmp_path, capsys):
        """Nothing is copied: keys would go elsewhere."""
        with logstore.open_store(tmp_path / "copy") as store:
            store.create_topic("orders")
        assert 2 == main(["copy", str(data), str(tmp_path / "copy")])
        assert "orders has 2 partitions" in capsys.readouterr().err


class TestDiff:
    @pytest.fixture(name="other")
    def _other(self, tmp_path):
        with logstore.open_store(tmp_path / "other") as store:
            store.create_topic("users").append(b"v", key=b"\xff")
        return tmp_path / "other"

    def test_stores(self, data, other, capsys):
        """Partitions that one has not, and records."""
        lines = output(capsys, "diff", data, other, status=1)
        assert f"orders-1: only in {data}" in lines
        assert "users-0: 0 records the same, 1 different, 1 only in a" in lines
        assert '  offset 1: only in a: key=null value="in one"' in lines
        assert any(
            line.startswith("  offset 0: different timestamp, key, value: timestamp=1")
            and line.endswith('value="v"')
            and "key=base64:/w==" in line
            for line in lines
        )

    def test_json(self, data, other, capsys):
        """The first differing records whole; what is not shown is counted."""
        (line,) = output(
            capsys, "diff", data, other, "--topic", "users", "-n", 1, "--json", status=1
        )
        found = json.loads(line)
        assert {"same": 0, "different": 1, "only_in_a": 1, "only_in_b": 0} == found["counts"]
        (difference,) = found["differences"]
        assert ("different", 0, 0, 1) == tuple(
            difference[name] for name in ("kind", "first_offset", "last_offset", "count")
        )
        assert ["dQ==", "dg=="] == [difference[side]["value"] for side in "ab"]
        assert 1 == found["omitted"]
        assert not found["same"]

    def test_a_partition_and_a_store(self, data, capsys):
        """Are no pair."""
        assert 2 == main(["diff", str(data), str(data / "orders-0")])
        assert "give a pair" in capsys.readouterr().err
