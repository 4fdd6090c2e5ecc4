"""
What a store knows of its topics beyond their directories: ids, partitions, settings.

``logstore-topics`` in each log directory, which a broker ignores: there this is kept by the
controller. One JSON object::

    {
        "version": 0,
        "generation": 7,
        "topics": {
            "orders": {
                "topic_id": "…",
                "partitions": [0, 1, 2, 3],
                "config": {"retention.ms": "60000"},
                "held": false,
                "state": "creating",
            }
        },
    }

``generation``  rises with each write: of several directories the highest counts
``partitions``  those that there are; a directory that is missing is reported, not made again
``config``      settings that are not the store's defaults, by Kafka's names, as text
``held``        retention and compaction wait until somebody has said what they should be
``state``       ``creating`` or ``deleting``: what a crash left unfinished is finished at the next
                open; missing otherwise

A topic that is not in the file was found on the disk: it was a broker's, or a log that stood alone.
What its settings were is not known, so it is held (DESIGN.md D8).

**Durability**: a change is durable on return, in every directory that works.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from logstore.config import _DIFFERENCE, LogConfig
from logstore.errors import ConfigError, StorageError
from logstore.files import REAL_FILES, Files

logger = logging.getLogger(__name__)

TOPICS_FILE: Final = "logstore-topics"
VERSION: Final = 0
CREATING: Final = "creating"
DELETING: Final = "deleting"

# Who states one of these has said what may be deleted.
RETENTION_PROPERTIES: Final = frozenset({"cleanup.policy", "retention.ms", "retention.bytes"})

# What a property of before is now.
REPLACED_DIFFERENCE: Final = frozenset(
    {"message.timestamp.before.max.ms", "message.timestamp.after.max.ms"}
)


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """What is known of one topic; immutable."""

    topic_id: str | None = None
    partitions: tuple[int, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    is_held: bool = False
    state: str | None = None

    def replace(self, **changes: Any) -> TopicEntry:
        """Return a copy with changes."""
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Return it as the file has it."""
        found: dict[str, Any] = {
            "topic_id": self.topic_id,
            "partitions": list(self.partitions),
            "config": dict(self.config),
        }
        if self.is_held:
            found["held"] = True
        if self.state is not None:
            found["state"] = self.state
        return found

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> TopicEntry:
        """Return what a file says; ValueError, KeyError or TypeError if it says nothing."""
        partitions = tuple(sorted({int(each) for each in data["partitions"]}))
        config = {str(name): str(value) for name, value in dict(data["config"]).items()}
        topic_id = data.get("topic_id")
        state = data.get("state")
        if state not in (None, CREATING, DELETING) or any(each < 0 for each in partitions):
            raise ValueError("a topic is malformed")
        return cls(
            None if topic_id is None else str(topic_id),
            partitions,
            config,
            bool(data.get("held", False)),
            state,
        )


class TopicConfigs:
    """
    The topics of a store, and their settings.

    Args:
        defaults: What a topic has that says nothing else.
        files: The door to the file system.

    **Thread rule**: changes under the store's lock; reads from any thread.
    """

    def __init__(self, defaults: LogConfig, files: Files = REAL_FILES) -> None:
        self.defaults = defaults
        self._files = files
        self._topics: dict[str, TopicEntry] = {}
        self._effective: dict[str, tuple[LogConfig, bool]] = {}  # As they were asked for.
        self._generation = 0
        self._is_written = True

    def load(self, directories: Iterable[str]) -> dict[str, StorageError]:
        """
        Take what the directories say; the highest generation counts.

        Returns:
            The directories that could not be read, each with its error.
        """
        best: dict[str, TopicEntry] = {}
        generation = 0
        failed = {}
        for directory in directories:
            path = os.path.join(directory, TOPICS_FILE)
            if not self._files.exists(path):
                continue
            try:
                found_generation, found = _parse(self._files.read_file(path))
            except StorageError as error:
                failed[directory] = error
                continue
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                # Its topics are taken for ones that were found: nothing of them is deleted.
                logger.warning("%s is taken for empty: %s", path, error)
                continue
            if found_generation > generation:
                generation, best = found_generation, found
        self._generation = generation
        self._topics = best
        self._effective = {}
        return failed

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def get(self, topic: str) -> TopicEntry | None:
        """Return what is known of a topic, None if it was only found."""
        return self._topics.get(topic)

    def items(self) -> tuple[tuple[str, TopicEntry], ...]:
        """Return all that is known."""
        return tuple(self._topics.items())

    def put(self, topic: str, entry: TopicEntry | None) -> None:
        """Set what is known of a topic, or forget it with None; :meth:`write` makes it durable."""
        if entry is None:
            self._topics.pop(topic, None)
        else:
            self._topics[topic] = entry
        self._effective.pop(topic, None)
        self._is_written = False

    @property
    def is_written(self) -> bool:
        """Whether the files say what is known."""
        return self._is_written

    def write(self, directories: Iterable[str]) -> dict[str, StorageError]:
        """
        Make what is known durable in each directory.

        Returns:
            The directories that could not be written, each with its error.

        Raises:
            StorageError: None could be written.
        """
        generation = self._generation + 1
        topics = {name: entry.to_json() for name, entry in self._topics.items()}
        content = {"version": VERSION, "generation": generation, "topics": topics}
        data = json.dumps(content, separators=(",", ":"), sort_keys=True).encode() + b"\n"
        failed: dict[str, StorageError] = {}
        count = 0
        for directory in directories:
            try:
                self._files.replace_file(os.path.join(directory, TOPICS_FILE), data)
                count += 1
            except StorageError as error:
                failed[directory] = error
        if failed and not count:
            raise next(iter(failed.values()))
        self._generation = generation
        self._is_written = True
        return failed

    # -- settings ----------------------------------------------------------------------------------

    def is_held(self, topic: str) -> bool:
        """Whether retention and compaction of a topic wait for somebody to state its settings."""
        return self._in_force(topic)[1]

    def config_of(self, topic: str) -> LogConfig:
        """Return the settings in force for a topic: the store's, and over them its own."""
        return self._in_force(topic)[0]

    def _in_force(self, topic: str) -> tuple[LogConfig, bool]:
        """Return the settings of a topic, and whether it is held."""
        found = self._effective.get(topic)
        if found is not None:
            return found
        entry = self._topics.get(topic)
        config = self.defaults
        is_held = entry is None or entry.is_held
        if entry is not None and entry.config:
            try:
                config = config.replace(**entry.config)
            except ConfigError as error:
                # Of another version, or together with new defaults: what was meant is not known.
                logger.warning("the settings of %s do not count, it is held: %s", topic, error)
                is_held = True
        if is_held:
            config = config.replace(cleanup_policy="delete", retention_ms=-1, retention_bytes=-1)
        self._effective[topic] = config, is_held
        return config, is_held

    def changed(self, topic: str, changes: Mapping[str, object]) -> TopicEntry:
        """
        Return what is known of a topic with other settings; nothing is changed.

        Args:
            topic: Its name.
            changes: Values by Kafka's names or Python's; None: the store's default from now on.

        Raises:
            ConfigError: Every unknown name and wrong value.
        """
        entry = self._topics.get(topic) or TopicEntry(is_held=True)
        config = self.checked(changes, entry.config)
        is_held = entry.is_held and not any(
            property_name(name) in RETENTION_PROPERTIES for name in changes
        )
        return entry.replace(config=config, is_held=is_held)

    def checked(
        self, changes: Mapping[str, object], before: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """
        Return settings of a topic after changes, by Kafka's names, as text.

        Raises:
            ConfigError: Every unknown name and wrong value.
        """
        if not isinstance(changes, Mapping):
            raise ConfigError([f"config is a {type(changes).__name__}; give a mapping"])
        kept = dict(before or {})
        stated: dict[str, object] = {}
        unset: dict[str, object] = {}
        for name, value in changes.items():
            if value is None:
                unset[name] = None
            else:
                stated[name] = value
        known = self.defaults.to_properties()
        problems = [
            f"{name} is not a known property; remove it"
            for name in unset
            if property_name(name) not in known and name not in kept
        ]
        for name in (*unset, *stated):
            kept.pop(property_name(name), None)
            kept.pop(name, None)
        try:
            # All at once: what is wrong between old and new settings counts, too.
            config = self.defaults.replace(**{**kept, **stated})
        except ConfigError as error:
            raise ConfigError([*problems, *error.problems]) from None
        if problems:
            raise ConfigError(problems)
        properties = config.to_properties()
        names = {property_name(name) for name in stated}
        if _DIFFERENCE in names:
            names |= REPLACED_DIFFERENCE
        for name in names & properties.keys():  # Others have no effect any more.
            kept[name] = properties[name]
        return kept


def property_name(name: object) -> str:
    """Return Kafka's spelling of a property's name."""
    text = name.replace("_", ".") if isinstance(name, str) else ""
    return "segment.bytes" if text == "internal.segment.bytes" else text


def _parse(data: bytes) -> tuple[int, dict[str, TopicEntry]]:
    content = json.loads(data)
    if content["version"] != VERSION:
        raise ValueError(f"version {content['version']} is unknown")
    topics = {
        str(name): TopicEntry.of_json(entry) for name, entry in dict(content["topics"]).items()
    }
    return int(content["generation"]), topics
