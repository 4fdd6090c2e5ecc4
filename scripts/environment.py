"""
Make ``.venv`` ready, doing only what is not done yet: create, install the lock, build.

    python scripts/environment.py [--chosen]

A step is done when its fingerprint stands in ``.venv/logstore-setup.json``: a hash of what the step
depends on, so a checkout that only touches files rebuilds nothing. The second run needs a tenth of
a second and no network. Standard library only: nothing is installed yet.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STATE = VENV / "logstore-setup.json"
LOCK = ROOT / "requirements" / "lock.txt"
SPARK = ROOT / "requirements" / "spark.txt"
NATIVE = ROOT / "src" / "logstore" / "_native"
COMPILER_VARIABLES = ("CC", "CFLAGS", "LDFLAGS")
CORE_VARIABLES = ("LOGSTORE_DEBUG", "LOGSTORE_PORTABLE", "LOGSTORE_SANITIZE")


def fail(message: str) -> NoReturn:
    """End with one line that says what is missing and what to do."""
    print(f"logstore: {message}", file=sys.stderr)
    raise SystemExit(1)


def fingerprint(paths: Iterable[Path], *extra: str) -> str:
    """Return a hash of names, contents and ``extra``."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(ROOT)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    for text in extra:
        digest.update(f"{text}\0".encode())
    return digest.hexdigest()


def load_state() -> dict[str, str]:
    """Return the fingerprints of the steps done; none if the environment is missing or broken."""
    try:
        state = json.loads(STATE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    usable = isinstance(state, dict) and state.get("root") == str(ROOT) and PYTHON.exists()
    return state if usable else {}


def save_state(state: dict[str, str]) -> None:
    """Replace the state file; an interrupted run repeats its last step."""
    temporary = STATE.with_suffix(".tmp")
    temporary.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
    temporary.replace(STATE)


def run(what: str, command: list[str]) -> None:
    """Run one step from the root of the checkout; on failure name it and stop."""
    print(f"logstore: {what}", flush=True)
    if not succeeds(command):
        fail(f"{what} failed; the reason stands above, `make` tries again from this step")


def succeeds(command: list[str]) -> bool:
    """Run a command from the root of the checkout and return whether it succeeded."""
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        environment.pop(name, None)
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def check_headers() -> None:
    """Stop if this Python came without its C headers."""
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").exists():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        fail(
            f"the C headers of Python {version} are missing ({include / 'Python.h'}); "
            f"install them, on Debian with: apt-get install python{version}-dev"
        )


def check_compiler() -> None:
    """Stop if no C compiler makes a program out of a one-line source."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        fail(
            f"no C compiler: '{compiler[0]}' is not there; install one (on Debian: apt-get install "
            "gcc libc6-dev) or choose one with: make CC=clang"
        )
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "probe.c"
        source.write_text("#include <stdint.h>\nint main(void) { return 0; }\n", encoding="ascii")
        command = [*compiler, str(source), "-o", str(source.with_suffix(""))]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            fail(
                f"the C compiler '{compiler[0]}' cannot build a one-line program; install the C "
                "library's headers, on Debian with: apt-get install libc6-dev"
            )


def create(state: dict[str, str]) -> None:
    """Make a fresh virtual environment with the running Python."""
    state.clear()
    check_headers()
    check_compiler()
    version = sys.version.split()[0]
    run(f"create .venv with Python {version}", [sys.executable, "-m", "venv", "--clear", str(VENV)])
    state["root"] = str(ROOT)
    state["python"] = base_python()


def base_python() -> str:
    """Return what tells this Python from another: its version and where it is installed."""
    return f"{sys.version_info.major}.{sys.version_info.minor} {os.path.realpath(sys.base_prefix)}"


def install_lock(_state: dict[str, str]) -> None:
    """Install the pinned dependencies, each checked against its hashes."""
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--require-hashes", "-r"]
    uv = [str(PYTHON), "-m", "uv", "pip", "install", "--quiet", "--python", str(PYTHON)]
    with tempfile.TemporaryDirectory() as directory:
        installer = Path(directory) / "installer.txt"
        installer.write_text(pin_of("uv", LOCK.read_text(encoding="utf-8")), encoding="utf-8")
        run("install uv", [*pip, str(installer)])
    print("logstore: install the dependencies", flush=True)
    if not succeeds([*uv, "--require-hashes", "-r", str(LOCK)]):
        # pip knows indexes and proxies of its own configuration that uv does not; it is slower.
        run("install the dependencies with pip", [*pip, str(LOCK)])


def install_spark(_state: dict[str, str]) -> None:
    """Install a Spark, as pinned; half a gigabyte, and most of the setup's time."""
    print("logstore: install Spark", flush=True)
    uv = [str(PYTHON), "-m", "uv", "pip", "install", "--quiet", "--python", str(PYTHON)]
    if not succeeds([*uv, "--require-hashes", "-r", str(SPARK)]):
        pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(SPARK)]
        run("install Spark with pip", pip)


def pin_of(name: str, lock: str) -> str:
    """Return what the lock says of one distribution: its version and hashes."""
    (pin,) = (pin for pin in re.split(r"\n(?=\S)", lock) if pin.startswith(f"{name}=="))
    return f"{pin}\n"


def install_project(state: dict[str, str]) -> None:
    """Install the checkout in place (metadata and entry points); it builds the C core as well."""
    check_headers()
    check_compiler()
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet"]
    run("build and install", [*pip, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)])
    state["native"] = native_fingerprint(state)


def build_native(_state: dict[str, str]) -> None:
    """Rebuild the C core in place."""
    check_headers()
    check_compiler()
    command = [str(PYTHON), "setup.py", "--quiet", "build_ext", "--inplace", "--force"]
    run("build the C core", command)


def native_fingerprint(state: dict[str, str]) -> str:
    """Return the fingerprint of all that goes into the C core."""
    sources = sorted([*NATIVE.glob("*.c"), *NATIVE.glob("*.h")])
    sources = [path for path in sources if path.name != "_core.c"]  # Generated.
    variables = [
        f"{name}={os.environ.get(name, '')}" for name in (*COMPILER_VARIABLES, *CORE_VARIABLES)
    ]
    fixed = [ROOT / "setup.py", ROOT / "native_build.py"]
    built = "built" if any(NATIVE.glob("_core*.so")) else "missing"
    return fingerprint([*sources, *fixed], state.get("python", ""), built, *variables)


def main() -> int:
    """Do what is not done yet."""
    parser = argparse.ArgumentParser(description="Make .venv ready.")
    parser.add_argument(
        "--chosen",
        action="store_true",
        help="make .venv anew if it has another Python than this one",
    )
    arguments = parser.parse_args()

    state = load_state()
    if not state or (arguments.chosen and state.get("python") != base_python()):
        create(state)
        save_state(state)

    steps: list[tuple[str, Callable[[dict[str, str]], None], Callable[[dict[str, str]], str]]] = [
        ("lock", install_lock, lambda _: fingerprint([LOCK])),
        ("spark", install_spark, lambda _: fingerprint([SPARK])),
        ("project", install_project, lambda _: fingerprint([ROOT / "pyproject.toml"])),
        ("native", build_native, native_fingerprint),
    ]
    for name, step, wanted in steps:
        if state.get(name) == wanted(state):
            continue
        step(state)
        state[name] = wanted(state)
        save_state(state)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
