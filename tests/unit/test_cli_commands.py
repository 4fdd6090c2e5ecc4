"""The commands on real logs: what they print, where, and their exit status."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys

import pytest
from patience import PATIENCE_SECONDS, until

import logstore
from logstore.cli import COMMANDS, build_parser, main

NOW_MS = 1_700_000_000_000
COMMAND = [sys.executable, "-m", "logstore"]


@pytest.fixture(name="log_path")
def _log_path(tmp_path):
    """Ten records, one hour apart, in small segments; keys a and b."""
    path = tmp_path / "orders-0"
    with logstore.open(path, config={"segment.bytes": 300}) as log:
        for number in range(10):
            log.append(
                b"value %d" % number,
                key=b"ab"[number % 2 :][:1],
                timestamp=NOW_MS + number * 3_600_000,
            )
    return path


def run(*arguments, data=None, **options):
    """Run the command in a process of its own."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=data,
        capture_output=True,
        timeout=2 * PATIENCE_SECONDS,
        check=False,
        **options,
    )


def lines_of(capsys):
    return capsys.readouterr().out.splitlines()


def command_names():
    """The commands by what they are called, which their modules are not all."""
    (commands,) = build_parser()._subparsers._group_actions
    return list(commands.choices)


class TestRead:
    def test_values(self, log_path, capfdbinary):
        """One value a line."""
        assert 0 == main(["read", str(log_path)])
        assert b"".join(b"value %d\n" % n for n in range(10)) == capfdbinary.readouterr().out

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (["--from", "8"], [8, 9]),
            (["--from", "latest"], []),
            (["--to", "2"], [0, 1]),
            (["--to", "earliest"], []),
            (["--from", "3", "--to", "5"], [3, 4]),
            (["--from", "2023-11-15T06:00Z"], [8, 9]),
            (["--from", "2023-11-15T00:13:20+02:00", "--to", "2023-11-15T00:00Z"], [0, 1]),
            (["-n", "2"], [0, 1]),
            (["-n", "0"], []),
            (["--tail", "3"], [7, 8, 9]),
            (["--tail", "0"], []),
            (["--tail", "99"], list(range(10))),
            (["--tail", "2", "--to", "5"], [3, 4]),
            (["--tail", "2", "--from", "9"], [9]),
            (["--tail", "2", "--from", "2023-11-15T07:00Z"], [9]),
            (["--tail", "3", "-n", "1"], [7]),
            (["--key", "b"], [1, 3, 5, 7, 9]),
            (["--key", "b", "-n", "2"], [1, 3]),
            (["--key", "a", "--tail", "2"], [6, 8]),
            (["--key", "none", "--tail", "2"], []),
            (["--isolation", "read_uncommitted", "--from", "9"], [9]),
        ],
    )
    def test_which_records(self, log_path, capfdbinary, arguments, expected):
        """Start, end, count, tail and key, alone and together."""
        assert 0 == main(["read", str(log_path), "-f", "%o\\n", *arguments])
        assert expected == [int(line) for line in capfdbinary.readouterr().out.split()]

    def test_tail_reads_from_the_end(self, log_path, monkeypatch, capfdbinary):
        """The last records of a large log do not cost reading all of it."""
        starts = []
        read = logstore.Log.read

        def watched(self, start="earliest", *rest, **options):
            starts.append(start)
            return read(self, start, *rest, **options)

        monkeypatch.setattr(logstore.Log, "read", watched)
        assert 0 == main(["read", str(log_path), "--tail", "2"])
        assert b"value 8\nvalue 9\n" == capfdbinary.readouterr().out
        assert [8] == starts

    def test_format(self, log_path, capfdbinary):
        """The letters of kcat with the names of the directory."""
        assert 0 == main(["read", str(log_path), "-n", "1", "-f", "%t/%p %o %T %k %K %v %S\\n"])
        assert b"orders/0 0 1700000000000 a 1 value 0 7\n" == capfdbinary.readouterr().out

    @pytest.mark.parametrize("command", ["read", "follow"])
    @pytest.mark.parametrize("number", ["-3", "x", "1.5"])
    def test_wrong_number(self, log_path, capsys, command, number):
        """Both commands count alike."""
        with pytest.raises(SystemExit):
            main([command, str(log_path), "-n", number])
        assert f"{number!r} is no number of records" in capsys.readouterr().err

    def test_missing_log(self, tmp_path, capsys):
        """Exit status 2, and nothing is created."""
        assert 2 == main(["read", str(tmp_path / "none-0")])
        assert "no log" in capsys.readouterr().err
        assert not (tmp_path / "none-0").exists()

    def test_offset_out_of_range(self, log_path, capsys):
        """Exit status 2."""
        assert 2 == main(["read", str(log_path), "--from", "11"])
        assert "11" in capsys.readouterr().err

    def test_damage(self, log_path, capfdbinary):
        """What is before the damage is printed; exit status 1."""
        segment = min(log_path.glob("*.log"))
        content = bytearray(segment.read_bytes())
        content[-1] ^= 1
        segment.write_bytes(content)
        assert 1 == main(["read", str(log_path), "--isolation", "read_uncommitted"])
        assert b"verify" in capfdbinary.readouterr().err


class TestAppend:
    def append(self, path, data, *arguments):
        found = run("append", path, *arguments, data=data)
        assert b"" == found.stderr
        assert 0 == found.returncode
        return found.stdout.decode()

    def test_lines(self, tmp_path):
        """Each line is a value; the range is printed; the last line may lack its end."""
        path = tmp_path / "new" / "n-0"
        data = b"one\n\ntwo \xff\nthree"
        assert "appended 4 records: offsets 0 to 3\n" == self.append(path, data)
        with logstore.open(path, mode="r") as log:
            assert [b"one", b"", b"two \xff", b"three"] == list(log.read_values())

    def test_nothing(self, log_path):
        """No input appends nothing."""
        assert "appended nothing; the log ends at 10\n" == self.append(log_path, b"")

    def test_json_round_trip(self, tmp_path):
        """What `read --json` writes makes the same log: binary, null, empty, headers, times."""
        source, copy = tmp_path / "a-0", tmp_path / "b-0"
        records = [
            (b"k", b"v", [("h", b"\xff"), ("n", None)], NOW_MS),
            (None, None, [], NOW_MS + 5),
            (b"\xfe", b"\x00\x80", [("", b"")], NOW_MS + 1),
            (b"", b"", [("h", b"1"), ("h", b"2")], 0),
            ("ö".encode(), "a\nb\u2028".encode(), [], NOW_MS),
        ]
        with logstore.open(source) as log:
            for key, value, headers, timestamp in records:
                log.append(value, key=key, headers=headers, timestamp=timestamp)
        lines = run("read", source, "--json").stdout
        assert len(records) == len(lines.splitlines())
        assert "offsets 0 to 4\n" in self.append(copy, lines, "--input", "json")
        with logstore.open(source, mode="r") as first, logstore.open(copy, mode="r") as second:
            assert list(first.read()) == list(second.read())

    def test_csv(self, tmp_path):
        """A header, a key column, a quoted line end."""
        data = b'id,note\r\n1,"a\nb"\r\n2,c\r\n'
        out = self.append(tmp_path / "c-0", data, "--input", "csv", "--key-column", "id")
        assert "appended 2 records" in out
        with logstore.open(tmp_path / "c-0", mode="r") as log:
            assert [(b"1", {"id": "1", "note": "a\nb"}), (b"2", {"id": "2", "note": "c"})] == [
                (record.key, json.loads(record.value)) for record in log.read()
            ]

    @pytest.mark.parametrize(
        ("data", "arguments", "why"),
        [
            (b'{"value": "v"}\n{"value": 1}\n', ["--input", "json"], b"line 2"),
            (b'{"value": "v", "timestamp": 1700000000}\n', ["--input", "json"], b"seconds"),
            (b"a,b\n", ["--input", "csv", "--key-column", "id"], b"no column 'id'"),
            (b"", ["--input", "csv"], b"--key-column"),
            (b"", ["--key-column", "id"], b"--key-column"),
        ],
    )
    def test_wrong_input(self, tmp_path, data, arguments, why):
        """Exit status 2 with the reason."""
        found = run("append", tmp_path / "w-0", *arguments, data=data)
        assert why in found.stderr
        assert 2 == found.returncode

    def test_batches_through_a_pipe(self, tmp_path):
        """1,000 lines go at once, fewer after 50 ms: a slow producer's lines are not held back."""
        path = tmp_path / "p-0"
        with subprocess.Popen(
            [*COMMAND, "append", str(path), "--sync"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            process.stdin.write(b"".join(b"%d\n" % n for n in range(2_500)))
            process.stdin.flush()
            segment = path / f"{0:020d}.log"
            until(lambda: segment.exists() and record_count(segment) == 2_500)
            process.stdin.write(b"late")
            process.stdin.close()
            assert b"appended 2,501 records: offsets 0 to 2500\n" == process.stdout.read()
        assert 0 == process.returncode

    def test_locked(self, log_path):
        """Another writer: exit status 3, and who it is."""
        with logstore.open(log_path):
            found = run("append", log_path, data=b"x\n")
        assert 3 == found.returncode
        assert b"is writing" in found.stderr

    def test_interrupted(self, tmp_path):
        """Ctrl-C: what was sent stays, the range is printed, exit status 130."""
        path = tmp_path / "i-0"
        with subprocess.Popen(
            [*COMMAND, "append", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A shell starts what runs in its background with Ctrl-C ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        ) as process:
            process.stdin.write(b"one\ntwo\n")
            process.stdin.flush()
            segment = path / f"{0:020d}.log"
            until(lambda: segment.exists() and record_count(segment) == 2)
            process.send_signal(signal.SIGINT)
            output, error = process.communicate(timeout=PATIENCE_SECONDS)
        assert b"appended 2 records: offsets 0 to 1\n" == output
        assert b"" == error
        assert 130 == process.returncode
        with logstore.open(path, mode="r") as log:
            assert 2 == log.offsets.log_end_offset


def record_count(segment):
    from logstore.record import iterate_batches

    with contextlib.suppress(ValueError):
        return sum(batch.record_count for batch in iterate_batches(segment.read_bytes()))
    return -1


def on_terminal(*arguments, path=None):
    """Run the command with a terminal as its output, and return what it writes there."""
    parent, child = pty.openpty()
    paths = [*([str(path)] if path else []), *sys.path]
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=child,
        stderr=child,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TERM": "xterm"},
    )
    os.close(child)
    written = b""
    while select.select([parent], [], [], PATIENCE_SECONDS)[0]:
        try:
            data = os.read(parent, 65536)
        except OSError:  # Linux: the other side is closed.
            break
        if not data:
            break
        written += data
    os.close(parent)
    return written, process.wait(PATIENCE_SECONDS)


class TestTerminalAndPipe:
    def test_binary(self, tmp_path):
        """Escaped on a terminal, as it is in a pipe."""
        path = tmp_path / "b-0"
        with logstore.open(path) as log:
            log.append(b"\x1b[31m\x00\xff")
        assert b"\x1b[31m\x00\xff\n" == run("read", path).stdout
        written, status = on_terminal("read", path)
        assert 0 == status
        assert b"\\x1b[31m\\x00\\xff\r\n" == written

    @pytest.mark.parametrize("has_rich", [True, False])
    def test_bar_on_a_terminal(self, log_path, tmp_path, has_rich):
        """Long work shows how far it is, with the extra or without, and leaves only the verdict."""
        if not has_rich:
            (tmp_path / "hidden").mkdir()
            (tmp_path / "hidden" / "rich.py").write_text("raise ImportError")
        else:
            pytest.importorskip("rich")
        written, status = on_terminal("verify", log_path, path=tmp_path / "hidden")
        assert 0 == status
        assert b"verifying" in written
        assert written.endswith(b"sound\r\n")

    def test_no_bar_in_a_pipe(self, log_path):
        """Nothing but the verdict is written, and nothing to standard error."""
        found = run("verify", log_path)
        assert b"" == found.stderr
        assert re.fullmatch(rb"1 partition, \d+ bytes of segments: sound\n", found.stdout)

    def test_closed_pipe(self, tmp_path):
        """`| head -1` ends quietly with 0."""
        path = tmp_path / "h-0"
        with logstore.open(path) as log:
            log.extend([b"x" * 100] * 20_000)
        script = f'"$0" -m logstore read "{path}" | head -1; echo "${{PIPESTATUS[0]}}" >&2'
        found = subprocess.run(
            ["bash", "-c", script, sys.executable],
            capture_output=True,
            timeout=2 * PATIENCE_SECONDS,
            check=True,
        )
        assert b"x" * 100 + b"\n" == found.stdout
        assert b"0\n" == found.stderr


class TestOthers:
    def test_verify_and_repair(self, log_path, capsys):
        """Damage is 1; after the repair it is 0, and what was lost was said."""
        segment = min(log_path.glob("*.log"))
        content = bytearray(segment.read_bytes())
        content[-1] ^= 1
        segment.write_bytes(content)
        assert 1 == main(["verify", str(log_path)])
        assert "wrong CRC-32C" in capsys.readouterr().out
        assert 0 == main(["repair", str(log_path)])
        out = lines_of(capsys)
        assert "; lost: offset " in out[0]
        assert ["1 repair"] == out[1:]
        assert 0 == main(["verify", str(log_path)])
        assert 0 == main(["repair", str(log_path)])
        assert "nothing was damaged" in capsys.readouterr().out
        assert 9 == len(run("read", log_path).stdout.splitlines())

    def test_repair_as_json(self, log_path, capsys):
        """One object for each file that was set aside."""
        next(log_path.glob("*.index")).write_bytes(b"\xa5" * 8)
        assert 0 == main(["repair", "--json", str(log_path)])
        found = [json.loads(line) for line in lines_of(capsys)]
        assert found[0]["quarantine"].endswith(".index.quarantine")
        assert found[0]["first_offset"] is None

    @pytest.mark.parametrize("command", ["repair", "append"])
    def test_locked(self, log_path, command, capsys):
        """Exit status 3."""
        with logstore.open(log_path):
            assert 3 == main([command, str(log_path)])
        assert "is writing" in capsys.readouterr().err

    @pytest.mark.parametrize("command", ["dump", "info", "read", "verify"])
    def test_beside_a_writer(self, log_path, command, capsys):
        """Commands that only look need no lock."""
        with logstore.open(log_path) as log:
            log.append(b"more")
            assert 0 == main([command, str(log_path)])

    def test_info(self, log_path, capsys):
        """Offsets and sizes, as text and as JSON."""
        assert 0 == main(["info", "--json", str(log_path)])
        found = json.loads(capsys.readouterr().out)
        assert (0, 10, "orders", 0) == (
            found["log_start_offset"],
            found["log_end_offset"],
            found["topic"],
            found["partition"],
        )
        assert found["clean_shutdown"]
        assert 0 == main(["info", str(log_path)])
        assert "  log end offset: 10" in lines_of(capsys)

    def test_dump(self, log_path, capsys):
        """Every file with its entries; one file alone; records."""
        assert 0 == main(["dump", str(log_path)])
        out = capsys.readouterr().out
        for path in log_path.iterdir():
            assert str(path) in out
        segment = min(log_path.glob("*.log"))
        assert 0 == main(["dump", "--json", str(segment)])
        first = json.loads(lines_of(capsys)[0])
        assert (0, 0, 1, True) == (
            first["baseOffset"], first["position"], first["count"], first["isvalid"]
        )  # fmt: skip
        assert 0 == main(["dump", "--records", str(log_path)])
        assert (
            'offset: 0 timestamp: 1700000000000 time: 2023-11-14T22:13:20.000Z key: "a" '
            in (lines_of(capsys)[0])
        )

    @pytest.mark.parametrize("command", ["dump", "info", "verify", "repair"])
    def test_no_partition(self, tmp_path, command, capsys):
        """A wrong path is exit status 2."""
        assert 2 == main([command, str(tmp_path / "none")])
        assert "none" in capsys.readouterr().err

    @pytest.mark.parametrize(
        "arguments",
        [[], ["nonsense"], ["read"], ["read", "x", "-n", "-1"], ["read", "x", "--from", "soon"]],
    )
    def test_usage(self, arguments, capsys):
        """Exit status 2 with a hint."""
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert 2 == caught.value.code
        assert "usage: logstore" in capsys.readouterr().err

    def test_version(self, capsys):
        """The version and nothing else."""
        with pytest.raises(SystemExit) as caught:
            main(["--version"])
        assert 0 == caught.value.code
        assert re.fullmatch(r"logstore \S.*\n", capsys.readouterr().out)

    @pytest.mark.parametrize("command", command_names())
    def test_help_has_an_example(self, command, capsys):
        """Each --help shows how."""
        with pytest.raises(SystemExit) as caught:
            main([command, "--help"])
        assert 0 == caught.value.code
        out = capsys.readouterr().out
        assert "examples:\n  " in out
        assert "logstore " + command in out


class TestCompletion:
    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["logstore", "re"], {"read", "repair", "restore", "retention"}),
            (["logstore", "read", "--ta"], {"--tail"}),
            (["logstore", "append", "--key"], {"--key-column"}),
            (["logstore", "--v"], {"--version"}),
        ],
    )
    def test_bash(self, words, expected, capsys):
        """The script parses, and completes commands and options."""
        assert 0 == main(["completion", "bash"])
        script = capsys.readouterr().out
        subprocess.run(["bash", "-n"], input=script.encode(), check=True)
        quoted = " ".join(words)
        probe = (
            f"{script}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n_logstore\n"
            'printf "%s\\n" "${COMPREPLY[@]}"\n'
        )
        found = subprocess.run(["bash"], input=probe.encode(), capture_output=True, check=True)
        assert b"" == found.stderr
        assert expected == set(found.stdout.decode().split())

    @pytest.mark.parametrize("shell", ["zsh", "fish"])
    def test_other_shells(self, shell, capsys):
        """Every command is in the script."""
        assert 0 == main(["completion", shell])
        script = capsys.readouterr().out
        assert len(COMMANDS) == len(command_names())
        for name in command_names():
            assert name in script


class TestFollow:
    def test_over_restarts_of_the_writer(self, tmp_path):
        """Each record is printed when it comes; a closed log is waited at."""
        path = tmp_path / "f-0"
        with logstore.open(path) as log:
            log.append(b"one")
        command = [*COMMAND, "follow", str(path), "--from", "earliest", "-f", "%o %s\\n"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert b"0 one\n" == process.stdout.readline()
            for at, value in enumerate((b"two", b"three"), 1):
                with logstore.open(path) as log:
                    log.append(value)
                    assert b"%d %s\n" % (at, value) == process.stdout.readline()
            process.send_signal(signal.SIGINT)
        assert 130 == process.returncode

    def test_options(self, log_path, capsysbinary):
        """Records to print, how many, and for how long."""
        options = ["--from", "0", "-n", "2", "--timeout", "5", "-f", "%o "]
        assert 0 == main(["follow", str(log_path), *options])
        assert b"0 1 " == capsysbinary.readouterr().out
        assert 0 == main(["follow", str(log_path), "--timeout", "0.01", "--json"])
        assert b"" == capsysbinary.readouterr().out
