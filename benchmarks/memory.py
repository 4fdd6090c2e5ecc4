"""
Contest of memory: what an append or a read of any size takes beyond the caller's own data.

    python -m benchmarks.memory append|read DIRECTORY VALUE_BYTES

Each measurement is a process of its own: the peak of its resident memory above what it had when
the data were ready, in bytes. ``read`` reads the log that ``append`` left there.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Contest, Stopwatch, Target, Variant
from benchmarks.sizes import MIB, Size

ROOT = Path(__file__).resolve().parent.parent


def ceilings(directory: Path, size: Size) -> Contest:
    """Append a lot in one call, then read it all."""

    def measured(action: str, path: Path) -> float:
        command = [
            sys.executable,
            "-m",
            "benchmarks.memory",
            action,
            str(path),
            str(size.memory_bytes),
        ]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        return max(int(done.stdout), 1) / MIB

    def append(_: Stopwatch) -> float:
        with tempfile.TemporaryDirectory(dir=directory) as path:
            return measured("append", Path(path))

    def read(_: Stopwatch) -> float:
        with tempfile.TemporaryDirectory(dir=directory) as path:
            measured("append", Path(path))
            return measured("read", Path(path))

    def target(what: str) -> Target:
        return Target(
            f"memory beyond the caller's data, {what} {size.memory_bytes // MIB} MiB",
            what,
            None,
            64.0,
            16.0,
            at_most=True,
            unit="MiB",
        )

    return Contest(
        "memory",
        (Variant("append", append), Variant("read", read)),
        (target("append"), target("read")),
        rounds=3,
    )


def resident(field: str) -> int:
    """Return ``VmRSS`` or ``VmHWM`` of this process in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    assert found is not None
    return int(found.group(1)) << 10


def main(action: str, path: str, value_bytes: int) -> int:
    """Print the bytes that the action took beyond what was there before."""
    import logstore  # noqa: PLC0415 - The parent measures, and needs no engine.
    from benchmarks.material import Values  # noqa: PLC0415

    values = Values.of(100, value_bytes) if action == "append" else None
    with logstore.open(Path(path) / "bench-0") as log:
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Peak = now.
        if values is not None:
            log.extend_arrow(values.plain, value="value")
            log.flush()
        else:
            count = sum(1 for _record in log.read())
            assert count == log.log_end_offset
        print(resident("VmHWM") - before)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
