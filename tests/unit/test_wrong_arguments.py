"""Arguments that cannot be meant: an error that says so, and a log that goes on."""

from __future__ import annotations

import pytest

WRONG = {
    "extend(None)": lambda log: log.extend(None),
    "extend(5)": lambda log: log.extend(5),
    "extend(b)": lambda log: log.extend(b"one value"),
    "append(str)": lambda log: log.append("text"),
    "append(key=str)": lambda log: log.append(b"v", key="text"),
    "append(timestamp=str)": lambda log: log.append(b"v", timestamp="now"),
    "log[str]": lambda log: log["a"],
    "read(float)": lambda log: log.read(1.5),
    "scan(str)": lambda log: log.scan("earlier").count(),
    "follow(str)": lambda log: log.follow("earlier"),
    "fetch(str)": lambda log: log.fetch("earliest", max_bytes=100),
    "send_to(None)": lambda log: log.fetch(0, max_bytes=100).send_to(None),
    "offset_at(str)": lambda log: log.offset_at("2024-05-01"),
    "offset_at(float)": lambda log: log.offset_at(1.5),
    "truncate_to(str)": lambda log: log.truncate_to("1"),
    "truncate_to(float)": lambda log: log.truncate_to(1.5),
    "truncate_fully_and_start_at(float)": lambda log: log.truncate_fully_and_start_at(9.5),
    "maybe_increment_log_start_offset(float)": (
        lambda log: log.maybe_increment_log_start_offset(1.5)
    ),
    "flush(float)": lambda log: log.flush(1.5),
}


@pytest.mark.parametrize("use", WRONG.values(), ids=WRONG)
def test_wrong_type(logstore_log, use):
    """A TypeError with some words, and the next append finds everything as it was."""
    logstore_log.extend([b"a", b"b", b"c"])
    with pytest.raises(TypeError, match=r"\w+ \w+"):
        use(logstore_log)
    assert 3 == logstore_log.append(b"d")
    assert [b"a", b"b", b"c", b"d"] == list(logstore_log.read_values())
