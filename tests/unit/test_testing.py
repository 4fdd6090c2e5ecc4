"""What users' tests get: the plugin's fixtures, and assert_records with a readable difference."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import logstore
from logstore.testing import ManualClock, assert_records, open_log

pytest_plugins = ["pytester"]
SOURCE = Path(__file__).resolve().parents[2] / "src"

# The entry point may be installed; the module is the same either way.
PLUGIN = ("-p", "no:logstore", "-p", "pytest_logstore", "-p", "no:cacheprovider")


@pytest.fixture(name="log")
def _log(tmp_path):
    with open_log(tmp_path / "log-0", clock=ManualClock(1_700_000_000_000)) as log:
        yield log


class TestAssertRecords:
    @pytest.mark.parametrize(
        "expected",
        [
            [b"v0", None],
            [(b"k0", b"v0"), (None, None)],
            [{"offset": 0, "headers": {"h": b"1"}}, {"timestamp": 1_700_000_000_000}],
        ],
    )
    def test_forms(self, log, expected):
        """A record is expected by its value, key and value, or the fields that matter."""
        log.append(b"v0", key=b"k0", headers=[("h", b"1")])
        log.append(None)
        assert_records(log, expected)
        assert_records(log, list(log))
        assert_records(log.read(1), expected[1:])

    def test_difference(self, log):
        """The message shows what differs, and the neighbours."""
        log.extend([b"a", b"b", b"c", b"d"])
        with pytest.raises(AssertionError) as caught:
            assert_records(log, [b"a", b"b", b"x", b"d"])
        assert [
            "record 2 (offset 2) differs in value",
            "    value: expected b'x'",
            "           found    b'c'",
            "  = 0: offset=0 key=None value=b'a'",
            "  = 1: offset=1 key=None value=b'b'",
            "  - 2: value=b'x'",
            "  + 2: offset=2 key=None value=b'c'",
            "  = 3: offset=3 key=None value=b'd'",
        ] == str(caught.value).splitlines()

    def test_missing_and_surplus(self, log):
        """Counts are told when one side ends first."""
        log.extend([b"a", bytes(100)])
        with pytest.raises(AssertionError, match=r"1 record missing at the end: 3 exp.*, 2 found"):
            assert_records(log, [b"a", bytes(100), b"c"])
        with pytest.raises(
            AssertionError, match=r"1 record too many: 1 expected, 2 found"
        ) as caught:
            assert_records(log, [b"a"])
        assert "(100 bytes)" in str(caught.value)

    def test_wrong_expectations(self, log):
        """A mistake in the test is told as one."""
        with pytest.raises(TypeError, match="no field of a record: vale"):
            assert_records(log, [{"vale": b""}])
        with pytest.raises(TypeError, match="not str"):
            assert_records(log, ["text"])


class TestPlugin:
    def test_fixtures(self, pytester):
        """A log, its clock and the comparison are there by name; settings come from a marker."""
        pytester.makepyfile(
            """
            import pytest

            @pytest.mark.logstore(config={"segment.bytes": 200})
            def test_log(logstore_log, logstore_clock, assert_records):
                for n in range(9):
                    logstore_log.append(b"%d" % n)
                    logstore_clock.advance(1000)
                assert_records(logstore_log, [b"%d" % n for n in range(9)])
                assert len(logstore_log.segments) > 1
                assert logstore_log.last().timestamp == logstore_clock.milliseconds() - 1000

            def test_another(logstore_log):
                assert logstore_log.log_end_offset == 0
                logstore_log.close()
            """
        )
        pytester.runpytest(*PLUGIN, "--strict-markers").assert_outcomes(passed=2)

    def test_log_is_checked(self, pytester):
        """A test that leaves a broken log fails."""
        pytester.makepyfile(
            """
            def test_breaks(logstore_log):
                logstore_log.append(b"v")
                with open(logstore_log.active_segment.log_path, "r+b") as file:
                    file.seek(65)
                    file.write(b"?")
            """
        )
        result = pytester.runpytest(*PLUGIN)
        result.assert_outcomes(passed=1, errors=1)
        result.stdout.fnmatch_lines(["*wrong CRC-32C*"])

    def test_store(self, pytester):
        """A store goes by the same clock and marker; what goes wrong in it fails the test."""
        pytester.makepyfile(
            """
            import pytest

            @pytest.mark.logstore(config={"num.partitions": 3})
            def test_store(logstore_store, logstore_clock, assert_records):
                topic = logstore_store.create_topic("orders")
                topic.append(b"v", partition=2)
                assert_records(topic[2], [{"timestamp": logstore_clock.milliseconds()}])

            def test_closed(logstore_store):
                logstore_store.close()

            def test_error(logstore_store):
                logstore_store.report(ValueError("no luck"), "try")
            """
        )
        result = pytester.runpytest(*PLUGIN, "--strict-markers")
        result.assert_outcomes(passed=3, errors=1)
        result.stdout.fnmatch_lines(["*try: no luck*"])

    def test_difference_in_a_run(self, pytester):
        """The difference, and not the code of assert_records, is what a failed test shows."""
        pytester.makepyfile(
            """
            def test_differs(logstore_log, assert_records):
                logstore_log.append(b"a")
                assert_records(logstore_log, [b"b"])
            """
        )
        result = pytester.runpytest(*PLUGIN)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["E*record 0 (offset 0) differs in value"])
        result.stdout.no_fnmatch_line("*_difference(*")

    def test_costs_no_import(self):
        """The plugin is imported in every run of pytest: it brings nothing along."""
        code = (
            "import sys, pytest, pytest_logstore;"
            "print([n for n in sys.modules if n.split('.')[0] in ('logstore', 'numpy')])"
        )
        shown = subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(SOURCE)},
        ).stdout
        assert "[]\n" == shown


def test_open_log_is_open_with_more_arguments(tmp_path):
    """What a test opens is what a program opens."""
    with open_log(tmp_path / "log-0") as log:
        log.append(b"v")
    with logstore.open(tmp_path / "log-0") as log:
        assert_records(log, [b"v"])
