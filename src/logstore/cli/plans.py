"""What retention removes of a partition next, in fields and as a sentence."""

from __future__ import annotations

from typing import Any

from logstore.cli.times import format_timestamp
from logstore.log import Log
from logstore.partition_retention import blocked_retention
from logstore.retention import RetentionPlan
from logstore.segment import LogSegment

HELD = "held: it was a broker's, and nobody has stated its retention; nothing is deleted"


def fields_of(log: Log, plan: RetentionPlan[LogSegment]) -> dict[str, Any]:
    """Return what a plan says of a log, for JSON."""
    gone = plan.deletions
    timestamps = [each.largest_timestamp for each in gone if each.largest_timestamp is not None]
    blocked = blocked_retention(plan)
    return {
        "retention_ms": log.config.retention_ms if log.config.delete else -1,
        "retention_bytes": log.config.retention_bytes if log.config.delete else -1,
        "segments": len(gone),
        "size_bytes": sum(each.segment.size_bytes for each in gone),
        "first_offset": gone[0].segment.base_offset if gone else None,
        "next_offset": gone[-1].next_offset if gone else None,
        "rules": list(dict.fromkeys(each.rule for each in gone)),
        "largest_timestamp": max(timestamps, default=None),
        "then_offset": None if plan.first_kept is None else plan.first_kept.base_offset,
        "then_due_timestamp": plan.due_ms,
        "then_due_bytes": plan.due_bytes,
        "waits_for_replication": plan.waits_for_replication,
        "blocked": None if blocked is None else str(blocked),
    }


def sentence_of(fields: dict[str, Any], *, is_done: bool = False) -> str:
    """Return it for people."""
    parts = []
    count = fields["segments"]
    if count:
        segments = "1 segment" if count == 1 else f"{count} segments"
        verb = "deleted" if is_done else "would go"
        parts.append(
            f"{segments} {verb}, offsets {fields['first_offset']} to {fields['next_offset'] - 1},"
            f" {fields['size_bytes']:,} bytes, by {' and '.join(fields['rules'])}"
        )
    else:
        parts.append("nothing goes now")
    if fields["blocked"] is not None:
        parts.append(fields["blocked"])
    elif fields["waits_for_replication"]:
        parts.append(f"the segment at offset {fields['then_offset']} waits for the high watermark")
    else:
        ways = []
        if fields["then_due_timestamp"] is not None:
            ways.append(f"at {format_timestamp(fields['then_due_timestamp'])} by retention.ms")
        if fields["then_due_bytes"] is not None:
            ways.append(f"after {fields['then_due_bytes']:,} more bytes by retention.bytes")
        if ways:
            parts.append(f"the segment at offset {fields['then_offset']} goes {', or '.join(ways)}")
        elif not count:
            is_limited = fields["retention_ms"] >= 0 or fields["retention_bytes"] >= 0
            parts.append("there are no records" if is_limited else "nothing is limited")
    return "; ".join(parts)
