"""Staged files for tests."""

from __future__ import annotations

import numpy as np

from logstore._native import Columns
from logstore.checkpoint import TopicPartition
from logstore.files import REAL_FILES
from logstore.staged_batches import StagedBatchWriter, staged_path


def stage(directory, sink, version, records, *, task=0, attempt=0, files=REAL_FILES):
    """Write a staged file of values by (topic, partition), and return its path."""
    path = staged_path(str(directory), sink, version, task, attempt)
    with StagedBatchWriter(path, files=files) as writer:
        for place, values in records.items():
            offsets = np.cumsum([0, *map(len, values)]).astype(np.int64)
            writer.add(TopicPartition(*place), Columns(b"".join(values), offsets, timestamp=7))
    return path


def staged(store, sink, version, records, **options):
    """The same in a store's directory."""
    return stage(store.paths[0], sink, version, records, files=store.files, **options)
