"""
Contest of memory: what an append, a read or a recovery of any size takes beyond the caller's data.

    python -m benchmarks.memory ACTION DIRECTORY VALUE_BYTES

Each measurement is a process of its own. When the caller's data are ready, memory that was freed
on the way is given back to the system, so that nothing finds room in it unseen, and the peak is
reset. The figure is the peak of the resident memory (VmHWM) after opening, working and closing,
above what it was before the log was opened: heap, staging buffers, mappings and the pages of files
that are mapped. ``hold`` takes memory of exactly VALUE_BYTES, to see that the measurement finds it.

``read`` and ``recover`` need the log that an ``append`` has left in DIRECTORY.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import Contest, Stopwatch, Target, Variant
from benchmarks.sizes import MIB, Size

ROOT = Path(__file__).resolve().parent.parent
CODEC = "zstd"
# What has to be in the directory for an action, and what the line is called.
PREPARED = {
    "append": None,
    "append list": None,
    f"append {CODEC}": None,
    "read": "append",
    f"read {CODEC}": f"append {CODEC}",
    "recover": "append",
}
STATE = (".kafka_cleanshutdown", "recovery-point-offset-checkpoint")


def ceilings(directory: Path, size: Size) -> Contest:
    """Append a lot in one call, read it all, recover it as one segment."""
    for prepared in {action for action in PREPARED.values() if action is not None}:
        measured(prepared, directory / prepared, size.memory_bytes)

    def variant(action: str) -> Variant:
        def run(_: Stopwatch) -> float:
            prepared = PREPARED[action]
            if prepared is not None:
                taken = measured(action, directory / prepared, size.memory_bytes)
            else:
                with tempfile.TemporaryDirectory(dir=directory) as path:
                    taken = measured(action, Path(path), size.memory_bytes)
            return max(taken, 1) / MIB

        return Variant(action, run)

    def target(action: str) -> Target:
        return Target(
            f"memory beyond the caller's data, {action} {size.memory_bytes // MIB} MiB",
            action,
            None,
            64.0,
            16.0,
            at_most=True,
            unit="MiB",
        )

    return Contest(
        "memory",
        tuple(variant(action) for action in PREPARED),
        tuple(target(action) for action in PREPARED),
        rounds=3,
        warm_ups=0,
    )


def measured(action: str, path: Path, value_bytes: int) -> int:
    """Return the bytes that an action takes, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory", action, str(path), str(value_bytes)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return int(done.stdout)


def resident(field: str) -> int:
    """Return ``VmRSS`` or ``VmHWM`` of this process in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    assert found is not None
    return int(found.group(1)) << 10


def give_back() -> None:
    """Return to the system what allocators keep for later."""
    import pyarrow as pa  # noqa: PLC0415

    gc.collect()
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(AttributeError):  # Not every libc has it.
        ctypes.CDLL(None).malloc_trim(0)


def main(action: str, path: str, value_bytes: int) -> int:
    """Print the bytes that the action took beyond what was there before."""
    import logstore  # noqa: PLC0415 - The parent measures, and needs no engine.
    from benchmarks.material import Values  # noqa: PLC0415

    kind, _, how = action.partition(" ")
    directory = Path(path) / "bench-0"
    data: Any = None
    if kind == "append":
        values = Values.of(100, value_bytes)
        data = values.as_list() if how == "list" else values.plain
        del values
    elif kind == "recover":
        for name in STATE:
            (directory / name).unlink()
    give_back()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Peak = now.
    if kind == "hold":
        held = b"x" * value_bytes
        print(resident("VmHWM") - before)
        return 0 if held else 1
    codec = how if how == CODEC else "uncompressed"
    config = {"segment.bytes": 2**31 - 1, "compression.type": codec}
    with logstore.open(directory, config=config) as log:
        if how == "list":
            log.extend(data)
        elif kind == "append":
            log.extend_arrow(data, value="value")
        elif kind == "read":
            assert sum(1 for _record in log.read()) == log.log_end_offset
        assert log.log_end_offset == value_bytes // 100
    print(resident("VmHWM") - before)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
