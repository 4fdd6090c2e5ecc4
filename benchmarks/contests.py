"""Every contest by name, in the order of the table of targets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import (
    appending,
    broker,
    compacting,
    following,
    memory,
    opening,
    partitioning,
    peers,
    reading,
    scanning,
    serving,
    sinking,
    snapshotting,
    transacting,
)
from benchmarks.harness import Contest
from benchmarks.sizes import Size

CONTESTS: dict[str, Callable[[Path, Size], Contest]] = {
    "bulk 100 B": partial(appending.bulk, value_size=100),
    "bulk 1 KiB": partial(appending.bulk, value_size=1024),
    "small segments": appending.small_segments,
    "recovery": opening.recovery,
    "single": appending.single,
    "beside a spinning thread": appending.beside_spinner,
    "iteration": reading.iteration,
    "scan 100 B": partial(scanning.scan, value_size=100),
    "scan 1 KiB": partial(scanning.scan, value_size=1024),
    "lookup": reading.lookup,
    "random get": reading.random_get,
    "reading threads": reading.threads,
    "serving": serving.serving,
    "follow latency": following.latency,
    "follow asyncio": following.asynchronous,
    "durable": appending.durable,
    "spreading": partitioning.spreading,
    "transactions": transacting.transactions,
    "sinking": sinking.sinking,
    "clean open": opening.clean_open,
    "compaction": compacting.compacting,
    "snapshot": snapshotting.snapshots,
    "open partitions": opening.open_partitions,
    "memory": memory.ceilings,
}
if peers.NO_LMDB is None:
    CONTESTS["peers: LMDB"] = peers.lmdb
if broker.NO_BROKER is None:
    CONTESTS["peers: Kafka"] = broker.broker

# Contests that cannot be held here, and why.
LEFT_OUT: dict[str, str] = {
    name: why
    for name, why in (("peers: LMDB", peers.NO_LMDB), ("peers: Kafka", broker.NO_BROKER))
    if why is not None
}
