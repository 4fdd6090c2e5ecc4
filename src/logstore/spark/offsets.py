"""
Offsets of partitions as the Kafka connector's checkpoints have them: ``{"topic": {"0": 123}}``.

An offset is of the next record to read. Spark compares offsets as JSON text, so there is one
spelling: topics by name, partitions by number. -2 stands for the earliest offset, -1 for the
latest; the latter is also what a query that starts at the latest begins with, so that its real
start is in the checkpoint before anything else happens.

Source: Spark ``JsonUtils``, ``KafkaSourceOffset``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from logstore.checkpoint import TopicPartition
from logstore.spark.errors import SparkSourceError

EARLIEST: Final = -2
LATEST: Final = -1
NAMED_OFFSETS: Final = {"earliest": EARLIEST, "latest": LATEST}

Offsets: TypeAlias = dict[TopicPartition, int]
# As Spark's Python API takes and gives them.
OffsetJson: TypeAlias = dict[str, dict[str, int]]


class OffsetSpec(NamedTuple):
    """
    Where to start or to end.

    Attributes:
        option: The option that says so, for messages.
        default: For every partition: EARLIEST, LATEST or None.
        offsets: By partition; a whole topic's is under partition None.
        timestamp: Milliseconds since the epoch for every partition.
        timestamps: By partition.
    """

    option: str
    default: int | None = None
    offsets: Mapping[tuple[str, int | None], int] | None = None
    timestamp: int | None = None
    timestamps: Mapping[TopicPartition, int] | None = None

    @property
    def is_timestamp(self) -> bool:
        """Whether times are given."""
        return self.timestamp is not None or self.timestamps is not None

    def offset_of(self, topic_partition: TopicPartition) -> int:
        """Return what is said of a partition, which may be EARLIEST or LATEST."""
        if self.offsets is None:
            assert self.default is not None
            return self.default
        found = self.offsets.get(topic_partition)
        return self.offsets[topic_partition.topic, None] if found is None else found

    def timestamp_of(self, topic_partition: TopicPartition) -> int:
        """Return the time for a partition."""
        if self.timestamps is None:
            assert self.timestamp is not None
            return self.timestamp
        return self.timestamps[topic_partition]

    def check_covers(self, assigned: Iterable[TopicPartition]) -> None:
        """
        Raise unless exactly these partitions are spoken of.

        Raises:
            SparkSourceError: START_OFFSET_DOES_NOT_MATCH_ASSIGNED and its like.
        """
        given: set[tuple[str, int | None]]
        if self.timestamps is not None:
            given, what = {(each.topic, each.partition) for each in self.timestamps}, "TIMESTAMP"
        elif self.offsets is not None:
            given, what = set(self.offsets), "START" if "starting" in self.option else "END"
        else:
            return
        found = set(assigned)
        missing = [each for each in found if each not in given and (each.topic, None) not in given]
        topics = {each.topic for each in found}
        unknown = [
            each
            for each in given
            if (each[0] not in topics if each[1] is None else each not in found)
        ]
        if missing or unknown:
            hint = "" if what == "TIMESTAMP" else "; -1 is the latest offset, -2 the earliest"
            raise SparkSourceError(
                f"{what}_OFFSET_DOES_NOT_MATCH_ASSIGNED",
                f"{self.option} must specify all topic-partitions, and no others{hint}."
                f" Specified: {_shown(given)}. Assigned: {_shown(found)}",
            )


def _shown(partitions: Iterable[tuple[str, int | None]]) -> str:
    names = [topic if number is None else f"{topic}-{number}" for topic, number in partitions]
    return "[" + ", ".join(sorted(names)) + "]"


def to_json(offsets: Mapping[TopicPartition, int]) -> OffsetJson:
    """Return offsets for Spark; equal ones give equal text."""
    found: OffsetJson = {}
    for topic, partition in sorted(offsets):
        found.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return found


def from_json(value: Any) -> Offsets:
    """
    Return offsets that Spark gives back, or has found in a checkpoint.

    Raises:
        SparkSourceError: INVALID_OFFSETS: they have another shape.
    """
    try:
        return {
            TopicPartition(topic, int(number)): int(offset)
            for topic, numbers in value.items()
            for number, offset in numbers.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise SparkSourceError(
            "INVALID_OFFSETS",
            f"the checkpoint has {json.dumps(value)}, which is not of the form"
            ' {"topic": {"0": 123}}; use the checkpoint of a query over topics',
        ) from None


def parse_offsets(
    option: str, text: str, *, earliest: bool = True, latest: bool = True
) -> OffsetSpec:
    """
    Return what an option says: ``earliest``, ``latest``, or JSON by topic and partition.

    ``{"t": {"0": 23, "1": -2}, "u": "latest"}``: the name of a topic may have a word for all of its
    partitions.

    Args:
        option: Its name.
        text: Its value.
        earliest: Whether the earliest offset makes sense.
        latest: Whether the latest does.
    """
    allowed = {EARLIEST} if earliest else set()
    if latest:
        allowed.add(LATEST)
    word = text.strip().lower()
    if word in NAMED_OFFSETS:
        _check_allowed(option, NAMED_OFFSETS[word], allowed)
        return OffsetSpec(option, default=NAMED_OFFSETS[word])
    found: dict[tuple[str, int | None], int] = {}
    example = '{"topic": {"0": 23, "1": -2}}'
    if not word.startswith("{"):
        raise invalid(option, f"is {text!r}; give earliest, latest, or JSON such as {example}")
    for topic, numbers in _parse_topics(option, text, example):
        if isinstance(numbers, str) and numbers.lower() in NAMED_OFFSETS:
            found[topic, None] = NAMED_OFFSETS[numbers.lower()]
            _check_allowed(option, found[topic, None], allowed)
            continue
        for number, offset in _parse_numbers(option, topic, numbers):
            if offset < 0:
                _check_allowed(option, offset, allowed)
            found[topic, number] = offset
    return OffsetSpec(option, offsets=found)


def parse_timestamps(option: str, text: str) -> OffsetSpec:
    """Return what an option says: JSON of milliseconds since the epoch by topic and partition."""
    found: dict[TopicPartition, int] = {}
    for topic, numbers in _parse_topics(option, text, '{"topic": {"0": 1700000000000}}'):
        for number, timestamp in _parse_numbers(option, topic, numbers):
            if timestamp < 0:
                raise invalid(option, f"has the time {timestamp}; give milliseconds since 1970")
            found[TopicPartition(topic, number)] = timestamp
    return OffsetSpec(option, timestamps=found)


def parse_assignment(option: str, text: str) -> tuple[TopicPartition, ...]:
    """Return the partitions of ``{"topic": [0, 1]}``, in order."""
    example = '{"topic": [0, 1]}'
    found: set[TopicPartition] = set()
    for topic, numbers in _parse_topics(option, text, example):
        if not isinstance(numbers, list) or not all(
            type(number) is int and number >= 0 for number in numbers
        ):
            raise invalid(option, f"has {numbers!r} for topic {topic}; give JSON such as {example}")
        found.update(TopicPartition(topic, number) for number in numbers)
    if not found:
        raise invalid(option, f"names no partition; give JSON such as {example}")
    return tuple(sorted(found))


def _parse_topics(option: str, text: str, example: str) -> list[tuple[str, Any]]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise invalid(option, f"is no JSON ({error}); give JSON such as {example}") from None
    if not isinstance(value, dict):
        raise invalid(option, f"is {value!r}; give JSON such as {example}")
    return list(value.items())


def _parse_numbers(option: str, topic: str, numbers: Any) -> list[tuple[int, int]]:
    found = []
    if not isinstance(numbers, dict):
        raise invalid(option, f'has {numbers!r} for topic {topic}; give {{"0": ...}}')
    for number, value in numbers.items():
        if not number.isdecimal() or type(value) is not int:
            raise invalid(
                option, f"has {number!r}: {value!r} for topic {topic}; both are whole numbers"
            )
        found.append((int(number), value))
    return found


def _check_allowed(option: str, offset: int, allowed: set[int]) -> None:
    if offset in allowed:
        return
    words = {value: word for word, value in NAMED_OFFSETS.items()}
    given = f"{words[offset]} ({offset})" if offset in words else str(offset)
    why = ""
    if offset == LATEST:
        why = " in a batch query, which has to start somewhere before its end"
    elif offset == EARLIEST:
        why = ", where everything begins"
    raise invalid(option, f"cannot be {given}{why}")


def invalid(option: str, problem: str) -> SparkSourceError:
    """Return the error for an option's value: a sentence that goes on after its name."""
    return SparkSourceError("INVALID_OPTION", f"option {option} {problem}")
