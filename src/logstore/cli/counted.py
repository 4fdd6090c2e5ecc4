"""How the command writes a count."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return ``1 record``, ``2 records``; for nouns whose plural ends in s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
