"""``logstore retention``, ``info`` and ``alter --import``: what goes next, and what is held."""

from __future__ import annotations

import base64
import json
from uuid import UUID

import pytest

import logstore
from logstore.cli import main
from logstore.cluster_metadata import CONFIG, TOPIC
from logstore.metadata_record import encode_metadata_record
from logstore.records_builder import encode_batch

OLD_MS = 1_600_000_000_000


@pytest.fixture(name="data")
def _data(tmp_path):
    """A store with a topic that is limited, one that is not, and one that was found."""
    path = tmp_path / "data"
    with logstore.open_store(path) as store:
        config = {"retention.ms": 86_400_000, "segment.bytes": 200}
        log = store.create_topic("orders", config=config)[0]
        for _ in range(3):
            log.append(b"%0120d" % 0, timestamp=OLD_MS)
        log.append(b"%0120d" % 0)
        store.create_topic("kept")[0].append(b"v")
        size = store.create_topic("small", config={"retention.bytes": 1000})[0]
        size.append(b"v")
        store.create_topic("found")[0].append(b"v")
        store.configs.put("found", None)
        store.configs.write([str(path)])
    return path


def run(capsys, *arguments):
    capsys.readouterr()
    assert 0 == main([*map(str, arguments)])
    return capsys.readouterr().out.splitlines()


def test_plan(data, capsys):
    """It says what would go and when the next goes; nothing is changed."""
    with logstore.open_store(data) as store:
        store.positions("g").commit({("small", 0): 1})  # Internal topics are shown by name only.
    lines = run(capsys, "retention", data)
    assert 4 == len(lines)
    assert "found-0  held: it was a broker's" in lines[0]
    assert "kept-0  nothing goes now; nothing is limited" == lines[1]
    assert lines[2].startswith(
        "orders-0  3 segments would go, offsets 0 to 2, 570 bytes, by retention.ms;"
        " the segment at offset 3 goes at 20"
    )
    assert "small-0  nothing goes now; the segment at offset 0 goes after 1,000 more" in lines[3]
    with logstore.open_store(data, mode="r") as store:
        assert 4 == len(list(store["orders", 0]))


def test_json(data, capsys):
    """Every field."""
    (line,) = run(capsys, "retention", data, "orders", "--json")
    fields = json.loads(line)
    due = fields.pop("then_due_timestamp")
    assert due > OLD_MS + 86_400_000
    assert {
        "topic": "orders",
        "partition": 0,
        "held": False,
        "retention_ms": 86_400_000,
        "retention_bytes": -1,
        "segments": 3,
        "size_bytes": 570,
        "first_offset": 0,
        "next_offset": 3,
        "rules": ["retention.ms"],
        "largest_timestamp": OLD_MS,
        "then_offset": 3,
        "then_due_bytes": None,
        "waits_for_replication": False,
        "blocked": None,
    } == fields


def test_run(data, capsys):
    """It deletes what it says, and of held topics nothing, whatever the defaults are."""
    lines = run(capsys, "retention", data, "--run", "--config", "retention.bytes=0")
    assert lines[0].startswith("found-0  held")
    assert lines[1].startswith(
        "kept-0  1 segment deleted, offsets 0 to 0, 69 bytes, by retention.b"
    )
    assert lines[2].startswith("orders-0  4 segments deleted, offsets 0 to 3")
    with logstore.open_store(data, mode="r") as store:
        assert (4, 4) == (store["orders", 0].log_start_offset, store["orders", 0].log_end_offset)
        assert 1 == len(list(store["found", 0]))


def test_an_empty_log(tmp_path, capsys):
    """There is nothing to go; it is not that nothing is limited."""
    with logstore.open_store(tmp_path / "data") as store:
        store.create_topic("empty", config={"retention.ms": 1000})
    expected = ["empty-0  nothing goes now; there are no records"]
    assert expected == run(capsys, "retention", tmp_path / "data")


def test_files_that_wait_for_their_deletion(data, capsys):
    """A few of them are named."""
    with logstore.open_store(data) as store:
        assert 3 == store["orders", 0].delete_old_segments()
        found = run(capsys, "info", data / "orders-0")
        (line,) = [line for line in found if "leftovers" in line]
    assert line.count(".deleted") == 3
    assert line.endswith(" more")


def test_blocked(tmp_path, capsys):
    """A timestamp in the future is told with the remedy."""
    path = tmp_path / "data"
    with logstore.open_store(path) as store:
        config = {"retention.ms": 1000, "message.timestamp.after.max.ms": 2**63 - 1}
        store.create_topic("orders", config=config)[0].append(b"v", timestamp=4_000_000_000_000)
    (line,) = run(capsys, "retention", path)
    assert "the timestamp 4000000000000, in the future" in line
    assert "limit retention.bytes" in line


def test_info(data, capsys):
    """The same sentence; a log that stands alone has no settings to go by."""
    said = {
        fields["topic"]: fields["retention"]
        for fields in map(json.loads, run(capsys, "info", data, "--json"))
    }
    assert said["found"].startswith("held")
    assert said["orders"].startswith("3 segments would go, offsets 0 to 2")
    assert any("  retention: held" in line for line in run(capsys, "info", data / "found-0"))
    with logstore.open(data.parent / "alone") as log:
        log.append(b"v")
    (line,) = run(capsys, "info", data.parent / "alone", "--json")
    assert json.loads(line)["retention"] is None


def test_import(data, capsys):
    """Held topics get their settings, or it is said why not; others stay as they are."""
    with logstore.open_store(data, mode="r") as store:
        topic_id = UUID(bytes=base64.urlsafe_b64decode(store["found"].topic_id + "=="))
    assert 2 == main(["takeover", str(data)])
    assert "there is no __cluster_metadata-0" in capsys.readouterr().err
    metadata = data.parent / "controller" / "__cluster_metadata-0"
    metadata.mkdir(parents=True)
    settings = [
        {"resourceType": 4, "resourceName": "", "name": "log.retention.ms", "value": "5"},
        {"resourceType": 2, "resourceName": "found", "name": "segment.ms", "value": "9"},
    ]
    found = {"name": "found", "topicId": topic_id}
    values = [encode_metadata_record(TOPIC, 0, found)]
    values += [encode_metadata_record(CONFIG, 0, each) for each in settings]
    records = [(None, 1, None, value, ()) for value in values]
    (metadata / f"{0:020}.log").write_bytes(encode_batch(records))
    first, second, third = run(capsys, "takeover", data, "--metadata", metadata.parent)
    assert first.startswith("found  1 partition  69 bytes  held")
    assert first.endswith("segment.ms=9")
    assert second.startswith("  found is still held: its retention was the broker's default;")
    assert "not taken over, defaults of all brokers: log.retention.ms=5" == third
    (line,) = run(capsys, "takeover", data, "--metadata", metadata, "--json")
    assert "default" in json.loads(line)["held_because"]
