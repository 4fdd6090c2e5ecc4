"""
Positions and times on the command line: ``OFFSET|earliest|latest|ISO-8601|2h``.

A time without a zone is local; what it was taken for is echoed as UTC on standard error, so that
nobody reads the wrong hour without noticing.
"""

from __future__ import annotations

import argparse
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Literal

Position = int | datetime | Literal["earliest", "latest"]

_AGE = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_AGE_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}


def parse_position(text: str) -> Position:
    """
    Return the offset, time or name that ``text`` stands for.

    ``2h`` is two hours before now; units are ms, s, m, h, d, w.

    Raises:
        argparse.ArgumentTypeError: Not a position.
    """
    if text in {"earliest", "latest"}:
        return text  # type: ignore[return-value]  # The comparison narrows, mypy does not.
    if text.isdecimal():
        return int(text)
    age = _AGE.fullmatch(text)
    if age is not None:
        when = datetime.now(tz=UTC) - float(age[1]) * _AGE_UNITS[age[2]]
        _echo(text, when)
        return when
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        message = f"{text!r} is no offset, earliest, latest, ISO-8601 time or age such as 2h"
        raise argparse.ArgumentTypeError(message) from None
    if when.tzinfo is None:
        when = when.astimezone()  # A time without zone is local.
        _echo(text, when)
    return when


def _echo(text: str, when: datetime) -> None:
    utc = when.astimezone(UTC)
    print(f"{text} is {utc:%Y-%m-%dT%H:%M:%S}.{utc.microsecond // 1000:03d}Z", file=sys.stderr)


def format_timestamp(timestamp_ms: int) -> str:
    """Return a record timestamp as ISO-8601 UTC with milliseconds, or ``-`` for none."""
    if timestamp_ms < 0:
        return "-"
    try:
        when = datetime.fromtimestamp(timestamp_ms // 1000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)  # Beyond the year 9999: as it is.
    return f"{when:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"
