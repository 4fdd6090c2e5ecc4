"""
Build the sdist and, from it, the wheel; look into both; test the one wheel on every Python here.

    python scripts/test_wheel.py [--build-only | --test-only] [pytest options]

Each CPython from 3.11 on that is found (on PATH, among pyenv's and uv's) gets a fresh environment
with the locked dependencies and the wheel, no compiler, and runs tests against what is installed:
the newest all unit tests, the others those of the compiled core.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
LOCK = ROOT / "requirements" / "lock.txt"
TESTS = ("tests/unit",)
# Where the compiled core meets the interpreter. The newest Python runs all unit tests; the others
# these, for the sources are tested in full already, and a quarter of an hour is not much.
CORE_TESTS = (
    "tests/unit/test_kernels_*.py",
    "tests/unit/test_native_*.py",
    "tests/unit/test_tail_reader.py",
    "tests/unit/test_record*.py",
    "tests/unit/test_opening.py",
    "tests/unit/test_follow.py",
    "tests/unit/test_arrow*.py",
    "tests/unit/test_exports.py",
    "tests/unit/test_store.py",
)
PROBE = """
import json, os, sys, sysconfig
print(json.dumps([sys.implementation.name, sys.version_info[:2], os.path.realpath(sys.executable),
                  bool(sysconfig.get_config_var("Py_GIL_DISABLED"))]))
"""


def run(*command: str | Path, **options: object) -> None:
    """Run a command; a failure ends this program."""
    print(
        "$", *(Path(part).name if isinstance(part, Path) else part for part in command), flush=True
    )
    subprocess.run([str(part) for part in command], check=True, **options)  # type: ignore[call-overload]


def build() -> tuple[Path, Path]:
    """Build into ``dist`` with the locked tools and return the sdist and the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        DIST,
        ROOT,
        stdout=subprocess.DEVNULL,
    )
    return built()


def built() -> tuple[Path, Path]:
    """Return the sdist and the wheel that are in ``dist``."""
    (sdist,) = DIST.glob("*.tar.gz")
    (wheel,) = DIST.glob("*.whl")
    return sdist, wheel


def check_contents(sdist: Path, wheel: Path) -> None:
    """Stop unless the sdist can be built from, and the wheel holds what runs and nothing else."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {
        path.relative_to(ROOT).as_posix() for path in ROOT.glob("src/logstore/_native/*.[ch]")
    }
    missing = sources - names
    assert not missing, f"not in the sdist: {sorted(missing)}"
    assert not [name for name in names if name.endswith((".so", ".o", ".pyc"))]

    assert re.search(r"-cp311-abi3-\w+\.whl$", wheel.name), f"not an abi3 wheel: {wheel.name}"
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    assert "logstore/py.typed" in packed
    assert any(re.fullmatch(r"logstore/_native/_core\.abi3\.\w+", name) for name in packed)
    stray = [name for name in packed if name.endswith((".c", ".h")) or name.startswith("tests")]
    assert not stray, f"in the wheel: {sorted(stray)}"


def interpreters() -> list[tuple[str, Path]]:
    """Return (version, path) of one CPython for each version from 3.11 on, oldest first."""
    candidates = [Path(sys.executable)]
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        candidates += Path(directory or ".").glob("python3.[0-9][0-9]")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += pyenv.glob("versions/*/bin/python3.[0-9][0-9]")
    uv = Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local/share")) / "uv/python"
    candidates += uv.glob("*/bin/python3.[0-9][0-9]")

    found: dict[tuple[int, int], Path] = {}
    for candidate in candidates:
        probe = subprocess.run(
            [candidate, "-c", PROBE],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": "/usr/bin:/bin"},
        )
        if probe.returncode != 0:
            continue  # A shim of a version that is not selected.
        name, (major, minor), executable, free_threaded = json.loads(probe.stdout)
        if name == "cpython" and (major, minor) >= (3, 11) and not free_threaded:
            found.setdefault((major, minor), Path(executable))
    return [(f"{major}.{minor}", found[major, minor]) for major, minor in sorted(found)]


def test(
    version: str, interpreter: Path, wheel: Path, options: list[str], patterns: Sequence[str]
) -> None:
    """Install the wheel into a fresh environment and run the tests there, away from the sources."""
    with tempfile.TemporaryDirectory(prefix="logstore-wheel-") as name:
        directory = Path(name)
        python = directory / "venv/bin/python"
        uv: list[str | Path] = [sys.executable, "-m", "uv", "--quiet"]
        environment = {
            **os.environ,
            "CC": "false",  # A wheel needs no compiler.
            "LOGSTORE_HYPOTHESIS": "small",
        }
        for variable in ("PYTHONPATH", "VIRTUAL_ENV"):
            environment.pop(variable, None)
        run(*uv, "venv", "--python", interpreter, directory / "venv", env=environment)
        pip = [*uv, "pip", "install", "--python", python]
        run(*pip, "--require-hashes", "-r", LOCK, env=environment)
        run(*pip, "--no-deps", wheel, env=environment)
        for part in ("pyproject.toml", "README.md", "tests", "benchmarks"):
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(
                    source, directory / part, ignore=shutil.ignore_patterns("__pycache__")
                )
            elif source.exists():
                shutil.copy(source, directory / part)
        where = "import logstore, sys; assert sys.prefix in logstore.__file__, logstore.__file__"
        run(python, "-c", where, cwd=directory, env=environment)
        print(f"== the wheel on CPython {version}", flush=True)
        tests = sorted(str(path) for pattern in patterns for path in directory.glob(pattern))
        assert tests
        pytest: list[str | Path] = [
            python,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "not repository",
        ]
        # Twice as many as there are cores: these tests wait for a device.
        side_by_side = ["-n", str(2 * (os.cpu_count() or 1)), "--dist", "loadfile"]
        run(*pytest, *(options or [*side_by_side, *tests]), cwd=directory, env=environment)


def main() -> int:
    """Build, check, test."""
    parser = argparse.ArgumentParser(description="Build the wheel and test it.")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--build-only", action="store_true", help="stop after the look into both")
    part.add_argument("--test-only", action="store_true", help="test what was built before")
    arguments, options = parser.parse_known_args()

    if arguments.test_only:
        _, wheel = built()
    else:
        sdist, wheel = build()
        check_contents(sdist, wheel)
        print(f"built {sdist.name} and {wheel.name}")
    if not arguments.build_only:
        found = interpreters()
        assert found
        for version, interpreter in found:
            is_newest = version == found[-1][0]
            test(version, interpreter, wheel, options, TESTS if is_newest else CORE_TESTS)
        print("the wheel works on CPython", ", ".join(version for version, _ in found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
