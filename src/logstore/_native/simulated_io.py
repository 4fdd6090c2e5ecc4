"""
The ios for tests, typed: one that loses what was not synced, one that fails on request.

``logstore.simulated_files`` makes files of them and says what they do.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from logstore._native._core import ffi, lib
from logstore._native.io import check

FAULTS: Final[dict[str, int]] = {
    "drop": lib.LS_IO_SIM_DROP,
    "tear": lib.LS_IO_SIM_TEAR,
    "garbage": lib.LS_IO_SIM_GARBAGE,
    "size": lib.LS_IO_SIM_SIZE,
    "names": lib.LS_IO_SIM_NAMES,
}

OPERATIONS: Final[dict[str, int]] = {
    ffi.string(lib.ls_io_name(op)).decode(): op for op in range(lib.LS_IO_OP_COUNT)
}


def simulated_io(seed: int, crash_at: int, faults: Collection[str]) -> Any:
    """A new simulated ``ls_io``, freed with its last reference."""
    mask = 0
    for fault in faults:
        mask |= FAULTS[fault]
    io = lib.ls_io_sim_new(seed % 2**64, crash_at, mask)
    return io if io == ffi.NULL else ffi.gc(io, lib.ls_io_free)


def operation_count(io: Any) -> int:
    """Operations so far that changed or synced something."""
    return int(lib.ls_io_sim_operations(io))


def unsynced_count(io: Any) -> int:
    """Files and directory entries with changes that a power loss may take."""
    return int(lib.ls_io_sim_unsynced(io))


def has_crashed(io: Any) -> bool:
    """Whether the crash has come."""
    return bool(lib.ls_io_sim_has_crashed(io))


def set_crash_at(io: Any, crash_at: int) -> None:
    """The number of the operation in which the crash comes."""
    check(lib.ls_io_sim_set_crash_at(io, crash_at), "set the crash point")


def crash(io: Any, power_loss: bool) -> None:
    """Crash, and leave the real files as they are found afterwards."""
    check(lib.ls_io_sim_crash(io, power_loss), "leave what a crash leaves")


def failing_io(inner: Any) -> Any:
    """A new ``ls_io`` around ``inner``, freed with its last reference."""
    io = lib.ls_io_fail_new(inner)
    return io if io == ffi.NULL else ffi.gc(io, lib.ls_io_free)


def add_failure(io: Any, operation: str | None, error: int, at: int, persistent: bool) -> None:
    """Let a call fail with an errno, or, with 0, transfer half."""
    op = lib.LS_IO_FAIL_ANY if operation is None else OPERATIONS[operation]
    check(lib.ls_io_fail_add(io, op, error, at, persistent), "add a failure")


def clear_failures(io: Any) -> None:
    """Fail no more."""
    check(lib.ls_io_fail_clear(io), "clear the failures")


def call_count(io: Any, operation: str | None) -> int:
    """Calls of an operation so far, retries included; None: of all."""
    op = lib.LS_IO_FAIL_ANY if operation is None else OPERATIONS[operation]
    return check(lib.ls_io_fail_calls(io, op), "count calls")


def set_budget(io: Any, size_bytes: int | None) -> None:
    """Bytes by which files may still grow; None: any number."""
    check(lib.ls_io_fail_set_budget(io, -1 if size_bytes is None else size_bytes), "set a budget")


def budget(io: Any) -> int | None:
    """Bytes by which files may still grow; None: any number."""
    size_bytes = int(lib.ls_io_fail_budget(io))
    return None if size_bytes < 0 else size_bytes
