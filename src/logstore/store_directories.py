"""
The log directories of a store: opened together, and what is in each.

======================================  ==========================================================
``<topic>-<partition>``                 a partition
``<topic>-<partition>.<uuid>-delete``   is deleted after file.delete.delay.ms
``<topic>-<partition>.<uuid>-future``   a replica that a broker was moving here: kept, not served
``<topic>-<partition>.<uuid>-stray``    not the broker's any more: kept, not served
``__cluster_metadata-0``                a broker's own: left alone
``remote-log-index-cache``              likewise
======================================  ==========================================================

Source: Kafka ``LogManager.loadLogs``, ``createAndValidateLogDirs``; spec 2.2, 6.1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from logstore.checkpoint import TopicPartition, topic_partition_of
from logstore.clock import Clock
from logstore.errors import ConfigError, LockedError, LogExistsError, LogNotFoundError, StorageError
from logstore.files import Files
from logstore.log import make_directory
from logstore.log_directory import STORE, LogDirectory, enter_for_store, is_log_directory
from logstore.meta_properties import (
    MetaProperties,
    check_ensemble,
    new_directory_id,
    read_meta_properties,
    write_meta_properties,
)
from logstore.segment import LOG_SUFFIX
from logstore.store_config import StoreConfig
from logstore.topic_configs import TOPICS_FILE
from logstore.topic_names import CLUSTER_METADATA_TOPIC, problem_of

REMOTE_LOG_INDEX_CACHE: Final = "remote-log-index-cache"
DELETE_SUFFIX: Final = "-delete"
FUTURE_SUFFIX: Final = "-future"
STRAY_SUFFIX: Final = "-stray"

Report = Callable[[BaseException, str], object]


class DirectoryContents(NamedTuple):
    """
    What is in a log directory.

    Attributes:
        partitions: The partitions, with their directories.
        deleted: Directories that wait for their deletion.
        set_aside: Those of ``-future`` and ``-stray``.
        unknown: Directories that a broker would refuse to start with.
    """

    partitions: list[tuple[TopicPartition, str]]
    deleted: list[str]
    set_aside: list[str]
    unknown: list[str]


def contents_of(path: str, files: Files) -> DirectoryContents:
    """
    Return what is in a log directory.

    Raises:
        StorageError: It cannot be read.
    """
    found = DirectoryContents([], [], [], [])
    for name in files.listdir(path):
        each = os.path.join(path, name)
        if name == REMOTE_LOG_INDEX_CACHE or not files.is_directory(each):
            continue
        topic_partition = topic_partition_of(name)
        if topic_partition is None or topic_partition.partition < 0:
            found.unknown.append(each)
        elif name.endswith(DELETE_SUFFIX):
            found.deleted.append(each)
        elif name.endswith((FUTURE_SUFFIX, STRAY_SUFFIX)):
            found.set_aside.append(each)
        elif topic_partition.topic == CLUSTER_METADATA_TOPIC:
            continue
        elif problem_of(topic_partition.topic) is not None or name != str(topic_partition):
            found.unknown.append(each)
        else:
            found.partitions.append((topic_partition, each))
    return found


def absolute_paths(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """
    Return the real paths of a store's directories.

    Raises:
        ConfigError: There is none, or one is there twice, or within another.
    """
    if not paths:
        raise ConfigError(["a store needs a directory; give at least one"])
    found: list[str] = []
    for path in paths:
        text = os.fspath(path)
        if not isinstance(text, str):
            raise TypeError(f"a path is {type(text).__name__}; give a str or an os.PathLike of str")
        found.append(os.path.realpath(text))
    problems = [
        f"{path} is given twice; give it once" for path in {*found} if found.count(path) > 1
    ]
    problems += [
        f"{path} is within {outer}, where only partitions belong; give another directory"
        for path in {*found}
        for outer in {*found} - {path}
        if os.path.commonpath([path, outer]) == outer
    ]
    if problems:
        raise ConfigError(problems)
    return found


def is_partition(path: str, files: Files) -> bool:
    """Return whether a directory is a log's own: there are segments in it."""
    return any(
        name.endswith(LOG_SUFFIX) and name.removesuffix(LOG_SUFFIX).isdecimal()
        for name in files.listdir(path)
    )


def check_is_no_partition(path: str, files: Files) -> None:
    """
    Raise if a directory is a log's own, not one of logs.

    Raises:
        ConfigError: There are segments in it.
    """
    if is_partition(path, files):
        problem = f"{path} is a log, not a directory of logs; give the directory that it is in"
        raise ConfigError([problem], path=path)


def check_for_reading(path: str, files: Files) -> None:
    """
    Raise unless a directory may be a store's.

    Raises:
        LogNotFoundError: There is no directory.
    """
    if not files.is_directory(path):
        raise LogNotFoundError(
            f"there is no store in {path}; check the path, or open it with mode 'a'", path=path
        )
    check_is_no_partition(path, files)


def lock_directories(
    paths: Sequence[str],
    *,
    must_be_new: bool,
    config: StoreConfig,
    files: Files,
    clock: Clock,
    lock_timeout: float,
    report: Report,
) -> tuple[dict[str, LogDirectory], dict[str, BaseException]]:
    """
    Become the only writer of a store's directories, made if they are missing.

    Returns:
        Those that may be used, and the errors of those that failed, each by its path.

    Raises:
        LockedError: Somebody is writing in one of them.
        LogExistsError: One has to be new, and is not.
        ConfigError: They do not belong together.
        StorageError: None may be used.
    """
    live: dict[str, LogDirectory] = {}
    offline: dict[str, BaseException] = {}
    try:
        for path in paths:
            try:
                if must_be_new:
                    _check_is_new(path, files)
                make_directory(path, files)
                check_is_no_partition(path, files)
                live[path] = enter_for_store(
                    path, files=files, clock=clock, lock_timeout=lock_timeout
                )
            except (LockedError, LogExistsError):
                raise
            except StorageError as error:
                offline[path] = error
                report(error, f"open the log directory {path}")
        _agree(live, offline, config, files, report)
    except BaseException:
        for directory in live.values():
            directory.leave(STORE, clean=True)  # Nothing was opened.
        raise
    if not live:
        raise next(iter(offline.values()))
    return live, offline


def _check_is_new(path: str, files: Files) -> None:
    if not files.exists(path):
        return
    contents = contents_of(path, files)
    if (
        is_log_directory(path, files)
        or files.exists(os.path.join(path, TOPICS_FILE))
        or contents.partitions
    ):
        raise LogExistsError(
            f"there is a store in {path}; open it with mode 'a', or choose another path", path=path
        )


def _agree(
    live: dict[str, LogDirectory],
    offline: dict[str, BaseException],
    config: StoreConfig,
    files: Files,
    report: Report,
) -> None:
    """Check that directories belong together, and let new ones belong to them."""
    found: dict[str, MetaProperties] = {}
    for path, directory in list(live.items()):
        try:
            properties = read_meta_properties(path, files)
        except (StorageError, ValueError) as error:
            del live[path]
            directory.leave(STORE, clean=True)  # Nothing was opened.
            offline[path] = error
            report(error, f"open the log directory {path}")
            continue
        if properties is not None:
            found[path] = properties
    cluster_id, node_id = check_ensemble(found)
    if cluster_id is None:
        cluster_id = config.cluster_id or new_directory_id()
    for path in live:
        if path not in found:
            properties = MetaProperties(
                cluster_id, config.node_id if node_id is None else node_id, new_directory_id()
            )
            write_meta_properties(path, properties, files)
