"""
``meta.properties``: which cluster and which node a log directory belongs to.

A properties file of Java: lines ``key=value``, comments that begin with ``#``.

============  ======================================================================
version       0: ``broker.id`` and ``cluster.id`` if they are known; 1: the following
cluster.id    22 characters of URL-safe base64, as a rule
node.id       a whole number
directory.id  the directory's own, in the form of a topic id; may be missing
============  ======================================================================

Source: Kafka ``MetaProperties``, ``MetaPropertiesEnsemble``; spec 2.5.
"""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple

from logstore.checkpoint import random_topic_id
from logstore.errors import ConfigError, CorruptCheckpointError
from logstore.files import REAL_FILES, Files
from logstore.log_directory import META_PROPERTIES

_ESCAPE: Final = re.compile(r"\\(.)")


class MetaProperties(NamedTuple):
    """What ``meta.properties`` says; None where it says nothing."""

    cluster_id: str | None
    node_id: int | None
    directory_id: str | None

    def text(self, comment: str = "logstore") -> str:
        """Return the file's text, version 1."""
        assert self.cluster_id is not None
        assert self.node_id is not None
        lines = [
            f"#{comment}",
            "version=1",
            f"cluster.id={self.cluster_id}",
            f"node.id={self.node_id}",
        ]
        if self.directory_id is not None:
            lines.append(f"directory.id={self.directory_id}")
        return "".join(f"{line}\n" for line in lines)


def read_meta_properties(directory: str, files: Files = REAL_FILES) -> MetaProperties | None:
    """
    Return what a log directory's file says, None if there is none.

    Raises:
        CorruptCheckpointError: The version is unknown, or a number is none.
    """
    path = os.path.join(directory, META_PROPERTIES)
    if not files.exists(path):
        return None
    found: dict[str, str] = {}
    for line in files.read_file(path).decode("utf-8", "replace").splitlines():
        stripped = line.strip()
        if stripped and stripped[0] not in "#!":
            key, _, value = stripped.partition("=")
            found[key.strip()] = _ESCAPE.sub(r"\1", value.strip())
    version = found.get("version", "0")
    if version not in ("0", "1"):
        raise _corrupt(path, f"version {version} is unknown")
    node = found.get("node.id" if version == "1" else "broker.id")
    if node is not None and not re.fullmatch(r"-?[0-9]{1,10}", node):
        raise _corrupt(path, f"node id {node!r} is not a number")
    return MetaProperties(
        found.get("cluster.id") or None,
        None if node is None or int(node) < 0 else int(node),
        found.get("directory.id") or None,
    )


def _corrupt(path: str, what: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(f"{path}: {what}; put the right file there", path=path)


def write_meta_properties(
    directory: str, properties: MetaProperties, files: Files = REAL_FILES
) -> None:
    """Write the file; durable on return."""
    files.replace_file(os.path.join(directory, META_PROPERTIES), properties.text().encode())


def check_ensemble(found: dict[str, MetaProperties]) -> tuple[str | None, int | None]:
    """
    Return the cluster id and node id that directories agree on.

    Args:
        found: What each directory's file says.

    Raises:
        ConfigError: They belong to different clusters or nodes, or are copies of one another.
    """
    problems = []
    for name in ("cluster_id", "node_id"):
        values = {path: getattr(each, name) for path, each in found.items()}
        known = {value for value in values.values() if value is not None}
        if len(known) > 1:
            shown = ", ".join(f"{path}: {value}" for path, value in values.items())
            problems.append(
                f"the directories differ in {name.replace('_', '.')} ({shown});"
                " open those of one node together"
            )
    seen: dict[str, str] = {}
    for path, each in found.items():
        if each.directory_id is None:
            continue
        if each.directory_id in seen:
            problems.append(
                f"{path} and {seen[each.directory_id]} have the same directory.id: one is a copy"
                " of the other; open one of them"
            )
        seen[each.directory_id] = path
    if problems:
        raise ConfigError(problems)
    clusters = [each.cluster_id for each in found.values() if each.cluster_id is not None]
    nodes = [each.node_id for each in found.values() if each.node_id is not None]
    return (clusters[0] if clusters else None, nodes[0] if nodes else None)


def new_directory_id() -> str:
    """Return an id for a directory, or for a cluster."""
    return random_topic_id()
