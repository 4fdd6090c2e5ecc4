"""
Whole jobs over a topic: files into it, and it into Parquet or into a table of a database.

Each is a stream that runs until nothing is left and then ends (``Trigger.AvailableNow``), so a
scheduler starts it again and again: what was done is remembered in its checkpoint.
"""

from __future__ import annotations
