"""A reader that looks at a closed log while a writer comes: what it shows is all of one moment."""

from __future__ import annotations

import pytest

import logstore
from logstore import live_view


@pytest.fixture(name="path")
def _path(tmp_path):
    return str(tmp_path / "orders-0")


def append_ten(path, value):
    """Append in two batches."""
    with logstore.open(path) as log:
        for _ in range(2):
            log.extend([value] * 5)


class Interloper:
    """Does something once, when the reader has looked at the mark of the lock so many times."""

    def __init__(self, monkeypatch, work):
        self.look = live_view._lock_mark
        self.work = work
        self.left = None
        monkeypatch.setattr(live_view, "_lock_mark", self)

    def __call__(self, *arguments):
        mark = self.look(*arguments)
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.left = None
                self.work()
        return mark


@pytest.mark.parametrize("looks", [1, 2])
@pytest.mark.parametrize("is_open_already", [True, False])
def test_truncated_during_the_look(path, monkeypatch, looks, is_open_already):
    """A writer that comes and truncates right after the last check of an unwritten log."""
    append_ten(path, b"old")
    writers = []

    def truncate():
        writer = logstore.open(path)
        writers.append(writer)
        assert writer.log_end_offset % 10 == 0
        writer.truncate_to(5)
        writer.extend([b"new"] * 5)

    interloper = Interloper(monkeypatch, truncate)
    if is_open_already:
        reader = logstore.open(path, "r")
        assert 10 == reader.log_end_offset
        append_ten(path, b"old")
        interloper.left = looks
        end = reader.log_end_offset
    else:
        interloper.left = looks
        reader = logstore.open(path, "r")
        end = reader.log_end_offset
    assert 1 == len(writers)
    assert 10 == end
    values = [record.value for record in reader.read()]
    assert [b"old"] * 5 + [b"new"] * 5 == values
    reader.close()
    writers[0].close()


def test_killed_before_the_look(path, monkeypatch):
    """A writer that came and was killed after the clean end of the one before was read."""
    append_ten(path, b"old")
    look = live_view.PartitionState.for_reading
    written = []

    def come_and_die_after_the_look(*arguments, **options):
        state = look(*arguments, **options)
        if not written:
            writer = logstore.open(path)
            written.append(writer.extend([b"torn"] * 10))
            with open(writer.active_segment.log_path, "r+b") as file:
                file.truncate(writer.active_segment.size_bytes - 3)
            writer.abandon()
        return state

    monkeypatch.setattr(live_view.PartitionState, "for_reading", come_and_die_after_the_look)
    with logstore.open(path, "r") as reader:
        assert [range(10, 20)] == written
        assert [b"old"] * 10 == [record.value for record in reader.read()]
