"""Two logs, record by record."""

from __future__ import annotations

import pytest

import logstore
from logstore.log_comparison import compare_logs


def log_of(path, *, values=b"abcdefghij", gone=(), **options):
    """A log of one-letter values with keys; ``gone``: compacted away."""
    log = logstore.open(path, config={"cleanup.policy": "compact"})
    keys = [b"gone" if offset in gone else b"%d" % offset for offset in range(len(values))]
    log.extend(
        [bytes([value]) for value in values],
        keys=keys,
        timestamps=range(1000, 1000 + len(values)),
        **options,
    )
    return log


def ranges(found):
    return [(each.kind, each.first, each.last, each.fields) for each in found.differences]


@pytest.fixture(name="a")
def _a(tmp_path):
    with log_of(tmp_path / "a-0") as log:
        yield log


class TestCompare:
    def test_the_same(self, a, tmp_path):
        """However they are batched and compressed."""
        with log_of(tmp_path / "b-0", compression="gzip") as b:
            found = compare_logs(a, b)
        assert found.is_same
        assert 10 == found.same
        assert [] == found.differences

    def test_values(self, a, tmp_path):
        """Neighbours that differ in the same fields are one range."""
        with log_of(tmp_path / "b-0", values=b"abcXXfghiX") as b:
            found = compare_logs(a, b)
        assert [("different", 3, 4, ("value",)), ("different", 9, 9, ("value",))] == ranges(found)
        assert (7, 3) == (found.same, found.counts["different"])
        first = found.differences[0]
        assert (b"d", b"X", 2) == (first.a.value, first.b.value, first.count)

    @pytest.mark.parametrize(
        ("field", "change"),
        [
            ("timestamp", {"timestamp": 1}),
            ("key", {"key": None}),
            ("value", {"value": None}),
            ("headers", {"headers": [("h", None)]}),
        ],
    )
    def test_every_field_counts(self, tmp_path, field, change):
        """Null is not empty."""
        record = {"value": b"", "key": b"", "timestamp": 5}
        with logstore.open(tmp_path / "a-0") as a, logstore.open(tmp_path / "b-0") as b:
            a.append(**record)
            b.append(**(record | change))
            assert [("different", 0, 0, (field,))] == ranges(compare_logs(a, b))

    def test_records_that_one_has_not(self, a, tmp_path):
        """At the end and at the beginning; which log is which matters."""
        with log_of(tmp_path / "b-0", values=b"abcdef") as b:
            b.maybe_increment_log_start_offset(2)
            assert [("only in a", 0, 1, ()), ("only in a", 6, 9, ())] == ranges(compare_logs(a, b))
            found = compare_logs(b, a)
        assert [("only in b", 0, 1, ()), ("only in b", 6, 9, ())] == ranges(found)
        assert {"different": 0, "only in a": 0, "only in b": 6} == found.counts

    def test_compacted(self, a, tmp_path):
        """What a cleaner took is missed; a range reaches over what neither has."""
        with log_of(tmp_path / "b-0", gone={2, 3, 5, 9}) as b:
            b.roll()
            b.append(b"z", key=b"z")
            b.compact()
            found = compare_logs(a, b, stop=9)
        assert [("only in a", 2, 3, ()), ("only in a", 5, 5, ())] == ranges(found)

    def test_a_part(self, a, tmp_path):
        """From an offset that one of them does not have to one that neither has."""
        with log_of(tmp_path / "b-0", values=b"Xbcd") as b:
            assert compare_logs(a, b, 1, 4).is_same
            assert {"only in a": 2} == {
                kind: count for kind, count in compare_logs(a, b, 8, 99).counts.items() if count
            }

    def test_how_much_is_kept(self, a, tmp_path):
        """The first ranges are; the rest is counted."""
        with log_of(tmp_path / "b-0", values=b"XbXdXfXhXj") as b:
            found = compare_logs(a, b, differences_max=2)
        assert [0, 2] == [each.first for each in found.differences]
        assert (3, 5, 5) == (found.omitted, found.counts["different"], found.same)


def test_progress(tmp_path):
    """Every record is told of in the end, but for the last few."""
    with logstore.open(tmp_path / "a-0") as a, logstore.open(tmp_path / "b-0") as b:
        for log in (a, b):
            log.extend([b""] * 40_000)
        told = []
        compare_logs(a, b, advance=told.append)
    assert len(told) > 1
    assert 20_000 < sum(told) <= 40_000
