"""
Settings of topics that were a broker's, taken over from its metadata.

Source: DESIGN.md D8.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from logstore.cluster_metadata import read_cluster_metadata
from logstore.errors import LogNotFoundError
from logstore.topic_configs import RETENTION_PROPERTIES
from logstore.topic_names import CLUSTER_METADATA_TOPIC
from logstore.topic_store import TopicStore

BROKER_POLICY: Final = "log.cleanup.policy"
METADATA_DIRECTORY: Final = f"{CLUSTER_METADATA_TOPIC}-0"


@dataclass(frozen=True, slots=True)
class ConfigImport:
    """
    What :meth:`LogStore.import_configs` has done.

    Attributes:
        path: The metadata that was read.
        imported: The settings that each topic has got.
        held: The topics that are still held, and why.
        broker_configs: What was altered for brokers, by broker id (``""``: all). It is not applied:
            what a broker's properties file said is not here.
    """

    path: str
    imported: Mapping[str, Mapping[str, str]]
    held: Mapping[str, str]
    broker_configs: Mapping[str, Mapping[str, str]]


def import_configs(store: TopicStore, path: str | os.PathLike[str] | None) -> ConfigImport:
    """Do what :meth:`LogStore.import_configs` says."""
    directory = _metadata_directory(store, path)
    metadata = read_cluster_metadata(directory, store.files)
    found: dict[str, Mapping[str, str]] = {}
    held: dict[str, str] = {}
    policies = {
        policy
        for settings in metadata.broker_configs.values()
        if (policy := settings.get(BROKER_POLICY)) is not None
    }
    for name in store:
        if not store.is_held(name):
            continue
        topic_id = store.topic_id_of(name)
        known_id = metadata.topics.get(name)
        if known_id is None:
            held[name] = "the metadata does not have it"
            continue
        if topic_id is not None and topic_id != known_id:
            held[name] = f"the metadata has another of this name, with the id {known_id}"
            continue
        settings = metadata.topic_configs.get(name, {})
        if policies and "cleanup.policy" not in settings:
            # With retention.ms of its own it would be deleted here, and was compacted there.
            held[name] = f"its cleanup policy was the broker's: {' or '.join(sorted(policies))}"
            continue
        if settings:
            found[name] = settings
        if not settings.keys() & RETENTION_PROPERTIES:
            held[name] = "its retention was the broker's default; state it with alter_topic()"
    refused = store.alter_topics(found)  # All at once: each write is of the whole file.
    held |= {name: "; ".join(error.problems) for name, error in refused.items()}
    imported = {name: settings for name, settings in found.items() if name not in refused}
    return ConfigImport(directory, imported, held, metadata.broker_configs)


def _metadata_directory(store: TopicStore, path: str | os.PathLike[str] | None) -> str:
    """Return the directory of the metadata log: the one given, or the store's."""
    places = store.paths if path is None else (os.fspath(path),)
    for place in places:
        if os.path.basename(os.path.normpath(place)) == METADATA_DIRECTORY:
            return place
        candidate = os.path.join(place, METADATA_DIRECTORY)
        if store.files.exists(candidate):
            return candidate
    raise LogNotFoundError(
        f"there is no {METADATA_DIRECTORY} in {', '.join(places)}; give its path",
        path=places[0] if places else None,
    )
