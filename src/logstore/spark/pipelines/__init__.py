"""
Whole jobs over a topic: files into it (``ingest``), and it into Parquet (``export``).

Each is a stream that runs until nothing is left and then ends (``Trigger.AvailableNow``), so a
scheduler starts it again and again: what was done is remembered in its checkpoint.
"""

from __future__ import annotations
