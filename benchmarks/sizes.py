"""How much each contest does: real, to measure; smoke, to see that it works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """
    Amounts of one run.

    Attributes:
        value_bytes: Value bytes that one bulk append writes.
        read_bytes: Value bytes of the log that is iterated.
        calls: Single appends, or lookups, in one run.
        segment_count: Segments of the many-segment logs.
        segment_bytes: Bytes of each of them; the one-segment log has as many in all.
        durable_batches: Flushed batches in one run.
        memory_bytes: Value bytes appended and read where memory is looked at.
        spin_seconds: How long single appends run beside a busy thread.
    """

    value_bytes: int
    read_bytes: int
    calls: int
    segment_count: int
    segment_bytes: int
    durable_batches: int
    memory_bytes: int
    spin_seconds: float


MIB = 1 << 20
REAL = Size(
    value_bytes=128 * MIB,
    read_bytes=64 * MIB,
    calls=20_000,
    segment_count=1_000,
    segment_bytes=MIB,
    durable_batches=60,
    memory_bytes=512 * MIB,
    spin_seconds=1.0,
)
SMOKE = Size(
    value_bytes=MIB,
    read_bytes=MIB // 4,
    calls=200,
    segment_count=10,
    segment_bytes=64 << 10,
    durable_batches=2,
    memory_bytes=MIB,
    spin_seconds=0.02,
)
