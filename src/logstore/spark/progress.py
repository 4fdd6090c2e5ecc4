"""How far a query is behind, of what Spark reports of it."""

from __future__ import annotations

import json
from typing import Any

from logstore.checkpoint import TopicPartition
from logstore.spark.errors import SparkSourceError
from logstore.spark.offsets import Offsets, from_json


def lag(progress: Any) -> dict[TopicPartition, int]:
    """
    Return how many offsets a query was behind in each partition when it reported its progress.

    Args:
        progress: ``query.lastProgress``, or the progress of a listener's event; None before the
            first report. Sources whose offsets are not topics' are left out.
    """
    found: dict[TopicPartition, int] = {}
    for source in progress["sources"] if progress is not None else ():
        try:
            latest, end = (_offsets(source[name]) for name in ("latestOffset", "endOffset"))
        except SparkSourceError:
            continue
        for each, offset in latest.items():
            found[each] = max(offset - end.get(each, 0), 0)
    return found


def _offsets(value: Any) -> Offsets:
    if isinstance(value, str):
        value = json.loads(value)
    return from_json({} if value is None else value)
