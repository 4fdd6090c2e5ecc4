"""
Which offsets a repair has put into quarantine: the names of the files there say it.

``<segment>.log.<position>.<first offset>-<last offset>.quarantine`` holds bytes of a segment;
without a last offset: from there to the end of the log. Kafka and logstore ignore names ending in
``.quarantine``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

QUARANTINE_SUFFIX = ".quarantine"

_NAME = re.compile(r"\d{20}\.log\.\d+\.(\d+)-(\d*)(?:\.\d+)?\.quarantine")


class OffsetRange(NamedTuple):
    """Offsets from ``first`` to ``last``, inclusive."""

    first: int
    last: int


def quarantine_name(
    segment_name: str, position: int, first_offset: int, last_offset: int | None
) -> str:
    """Return the name of the file for bytes of a segment."""
    last = "" if last_offset is None else last_offset
    return f"{segment_name}.{position}.{first_offset}-{last}{QUARANTINE_SUFFIX}"


def quarantined_offsets(directory: Path) -> list[OffsetRange]:
    """Return the ranges in the names of a partition's quarantine files, adjacent ones joined."""
    ranges = sorted(
        OffsetRange(int(found[1]), int(found[2]))
        for found in (_NAME.fullmatch(path.name) for path in directory.iterdir())
        if found is not None and found[2]
    )
    joined: list[OffsetRange] = []
    for each in ranges:
        if joined and each.first <= joined[-1].last + 1:
            joined[-1] = OffsetRange(joined[-1].first, max(joined[-1].last, each.last))
        else:
            joined.append(each)
    return joined
