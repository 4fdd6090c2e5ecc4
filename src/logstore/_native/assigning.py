"""
Headers of scanned batches, changed where they are: offsets, times, and whose the batches are.

The CRCs must have been verified. New ones are made from them and from what changes in the headers,
so that the records are not read, and damage that comes meanwhile is found later all the same.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from logstore._native._core import ffi, lib
from logstore._native.kernels import BATCH_DTYPE, CHECK_DTYPE, address_of
from logstore.errors import CorruptRecordError


def assign_batches(
    data: bytearray | memoryview | npt.NDArray[Any],
    batches: npt.NDArray[Any],
    checks: npt.NDArray[Any] | None,
    *,
    next_offset: int,
    leader_epoch: int,
    log_append_time: int = -1,
) -> int:
    """
    Assign offsets and epoch to batches in place and return the next offset.

    Max timestamp and type are rewritten, with a new CRC, where they differ: to ``log_append_time``
    if that is >= 0, else to what ``checks`` found (None: left alone) as CreateTime. ``batches``,
    whose positions are relative to ``data``, is updated too.

    Source: Kafka ``LogValidator.assignOffsetsNonCompressed``; spec 5.4, path 1.
    """
    _check_array(batches)
    assert checks is None or (checks.dtype == CHECK_DTYPE and len(checks) == len(batches))
    assert checks is None or checks.flags.c_contiguous
    view = ffi.from_buffer(data, require_writable=True)
    result = lib.ls_assign_batches(
        ffi.cast("uintptr_t", view),
        len(view),
        address_of(batches),
        0 if checks is None else address_of(checks),
        len(batches),
        next_offset,
        leader_epoch,
        log_append_time,
    )
    return _checked(result)


def number_batches(
    data: bytearray | memoryview | npt.NDArray[Any],
    batches: npt.NDArray[Any],
    *,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> int:
    """
    Make batches one producer's, in its transaction, in place, and return the next sequence number.

    Args:
        data: Their bytes.
        batches: As a scan found them; updated too.
        producer_id: Whose they become.
        producer_epoch: Likewise.
        base_sequence: Of the first record; 2^31 - 1 is followed by 0.

    Raises:
        CorruptRecordError: Bytes and batches do not belong together.
    """
    _check_array(batches)
    view = ffi.from_buffer(data, require_writable=True)
    result = lib.ls_number_batches(
        ffi.cast("uintptr_t", view),
        len(view),
        address_of(batches),
        len(batches),
        producer_id,
        producer_epoch,
        base_sequence,
    )
    return _checked(result)


def _check_array(batches: npt.NDArray[Any]) -> None:
    assert batches.dtype == BATCH_DTYPE
    assert batches.flags.c_contiguous


def _checked(result: int) -> int:
    if result < 0:
        raise CorruptRecordError(
            "a batch lies outside its bytes, or has a negative count; scan it again"
        )
    return int(result)
