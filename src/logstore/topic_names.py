"""
Names of topics: which are allowed, and which would be mistaken for one another.

1 to 249 characters out of ``A-Z a-z 0-9 . _ -``, not ``.`` or ``..``. Nothing in them can lead out
of a directory. Two names that differ in ``.`` and ``_`` only are one name in metrics.

Source: Kafka ``Topic``; spec 2.2.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Final

from logstore.errors import InvalidTopicError

TOPIC_NAME_CHARACTERS_MAX: Final = 249
DIRECTORY_NAME_CHARACTERS_MAX: Final = 255

GROUP_METADATA_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
SHARE_GROUP_STATE_TOPIC: Final = "__share_group_state"
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
SINK_COMMITS_TOPIC: Final = "__logstore_sink_commits"  # Ours: what sinks have committed.
INTERNAL_TOPICS: Final = frozenset(
    {
        GROUP_METADATA_TOPIC,
        TRANSACTION_STATE_TOPIC,
        SHARE_GROUP_STATE_TOPIC,
        SINK_COMMITS_TOPIC,
    }
)

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def problem_of(name: object) -> str | None:
    """Return why no topic can have a name, None if one can."""
    if not isinstance(name, str):
        return f"a topic's name is a str, not {type(name).__name__}"
    if not name:
        return "the empty name is no topic's; give it a name"
    if name in (".", ".."):
        return f"{name!r} is no topic's name; use another"
    if len(name) > TOPIC_NAME_CHARACTERS_MAX:
        return (
            f"the name has {len(name)} characters; use {TOPIC_NAME_CHARACTERS_MAX} at most:"
            f" {name[:40]}…"
        )
    if not _LEGAL.fullmatch(name):
        return f"{name!r} is no topic's name; use ASCII letters, digits, '.', '_' and '-' only"
    return None


def check_topic_name(name: str) -> None:
    """
    Raise unless a topic may have this name.

    Raises:
        InvalidTopicError: It may not.
    """
    problem = problem_of(name)
    if problem is None and name == CLUSTER_METADATA_TOPIC:
        problem = f"{name} is a broker's own; use another name"
    if problem is not None:
        raise InvalidTopicError(problem)


def check_not_internal(name: str) -> None:
    """
    Raise if the records of a topic are those of whoever keeps its state there, and nobody else's.

    Raises:
        InvalidTopicError: It is internal.

    Source: Kafka ``ReplicaManager.appendRecords``, ``internalTopicsAllowed``.
    """
    if name in INTERNAL_TOPICS:
        raise InvalidTopicError(
            f"{name} holds the store's own records; use positions(), transaction() or"
            " commit_staged(), which write them",
            topic=name,
        )


def colliding_name(name: str, others: Iterable[str]) -> str | None:
    """Return a name that differs from ``name`` only in '.' and '_', None if there is none."""
    unified = name.replace(".", "_")
    for other in others:
        if other != name and other.replace(".", "_") == unified:
            return other
    return None


def set_aside_name(topic: str, partition: int, kind: str) -> str:
    """
    Return the name of a directory that is set aside: ``<topic>-<partition>.<uuid>-delete``.

    The topic is cut so that the whole has 255 characters at most; ``future`` is never cut.

    Args:
        topic: The topic.
        partition: Its partition.
        kind: ``delete``, ``stray`` or ``future``.

    Source: Kafka ``LocalLog.logDeleteDirName``; spec 2.2.
    """
    assert kind in ("delete", "stray", "future")
    suffix = f"-{partition}.{uuid.uuid4().hex}-{kind}"
    if kind != "future":
        topic = topic[: DIRECTORY_NAME_CHARACTERS_MAX - len(suffix)]
    return topic + suffix
