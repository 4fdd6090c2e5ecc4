"""What `make` says when something is missing: one line, with what to do."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(name="environment")
def _environment(tmp_path, monkeypatch):
    """Return the module that prepares `.venv`, for a checkout in a directory with a space."""
    path = ROOT / "scripts/environment.py"
    spec = importlib.util.spec_from_file_location("environment", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    root = tmp_path / "a checkout"
    (root / ".venv/bin").mkdir(parents=True)
    monkeypatch.setattr(module, "ROOT", root)
    monkeypatch.setattr(module, "VENV", root / ".venv")
    monkeypatch.setattr(module, "PYTHON", root / ".venv/bin/python")
    monkeypatch.setattr(module, "STATE", root / ".venv/state.json")
    return module


def setup_with(python):
    """Run setup.sh with a Python and return its exit status and standard error."""
    command = ["sh", str(ROOT / "scripts/setup.sh"), "--chosen", str(python)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.9", "3.10"])
def test_old_python_is_refused(tmp_path, version):
    """The line names the version found and how to choose another Python."""
    python = tmp_path / "old python"
    python.write_text(f"#!/bin/sh\necho {version}\n")
    python.chmod(0o755)
    status, error = setup_with(python)
    assert (1, 1) == (status, error.count("\n"))
    assert f"Python 3.11 or later is needed, '{python}' is {version}" in error
    assert "make PYTHON=" in error


def test_missing_python_is_named():
    """A name that is no command is an error of one line."""
    status, error = setup_with("no-such-python")
    assert (1, 1) == (status, error.count("\n"))
    assert "no 'no-such-python' here" in error


def test_missing_headers_are_named(environment, monkeypatch, tmp_path, capsys):
    """Without Python.h the package to install is named."""
    monkeypatch.setattr(environment.sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(SystemExit):
        environment.check_headers()
    assert "C headers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("compiler", "reason"), [("no-such-cc", "no C compiler"), ("false", "one-line")]
)
def test_missing_or_broken_compiler_is_named(environment, monkeypatch, capsys, compiler, reason):
    """A compiler that is not there, and one that cannot compile, are told apart."""
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(SystemExit):
        environment.check_compiler()
    error = capsys.readouterr().err
    assert reason in error
    assert 1 == error.count("\n")


def test_pin_of_one_distribution(environment):
    """The installer is pinned where everything else is; its name may begin another's."""
    pin = "uv==2 ; x \\\n    --hash=sha256:2 \\\n    --hash=sha256:3\n"
    assert pin == environment.pin_of("uv", f"a==1 \\\n    --hash=sha256:1\n{pin}uvloop==4\n")
    lock = (ROOT / "requirements/lock.txt").read_text(encoding="utf-8")
    assert environment.pin_of("uv", lock).count("--hash=") > 3


class TestState:
    def test_round_trip(self, environment):
        """What was saved is loaded, if the environment's Python is there."""
        environment.PYTHON.touch()
        state = {"root": str(environment.ROOT), "lock": "x"}
        environment.save_state(state)
        assert state == environment.load_state()

    def test_moved_checkout_starts_anew(self, environment):
        """A virtual environment holds absolute paths: it does not survive a move."""
        environment.PYTHON.touch()
        environment.save_state({"root": "elsewhere", "lock": "x"})
        assert {} == environment.load_state()

    @pytest.mark.parametrize("text", ["", "[]", "{", '{"root": 1}'])
    def test_damaged_state_starts_anew(self, environment, text):
        """An unreadable state file costs a new environment, nothing else."""
        environment.PYTHON.touch()
        environment.STATE.write_text(text)
        assert {} == environment.load_state()

    def test_missing_python_starts_anew(self, environment):
        """A state without its Python is none."""
        environment.save_state({"root": str(environment.ROOT)})
        assert {} == environment.load_state()


def test_fingerprint_depends_on_content_and_name_alone(environment):
    """A touched file keeps its fingerprint; another content or name changes it."""
    source = environment.ROOT / "x.c"
    source.write_text("int x;")
    first = environment.fingerprint([source])
    source.touch()
    assert first == environment.fingerprint([source])
    assert first != environment.fingerprint([source], "CC=clang")
    source.write_text("int y;")
    assert first != environment.fingerprint([source])
