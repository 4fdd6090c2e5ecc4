"""
``logstore.open``: from a path to a log that may be written or read, and its end of life.

====  ==============================================================================================
mode
====  ==============================================================================================
a     create the log or continue it; this process is its only writer
x     the same, but there must not be a log yet
r     read it; nothing is changed, no lock is taken, no file is made
====  ==============================================================================================

**Fork**: a child keeps reading what the parent's log held when it forked. Its copy of the lock is
closed, its writer is unbound, and its locks are new ones: another thread of the parent may have
held the old ones.

Source: DESIGN.md D3.
"""

from __future__ import annotations

import copyreg
import errno
import logging
import os
import weakref
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from logstore._native import PROCESS_POOL, WriterPool
from logstore.clock import SYSTEM_CLOCK, Clock
from logstore.config import LogConfig
from logstore.errors import ConfigError, LogExistsError, LogNotFoundError, StorageError
from logstore.files import REAL_FILES, Files
from logstore.forked_log import become_reader_of_parent
from logstore.log import Log, make_directory
from logstore.log_directory import META_PROPERTIES
from logstore.partition_state import PartitionState
from logstore.scheduler import Scheduler
from logstore.segment import LOG_SUFFIX
from logstore.watermarks import HIGH_WATERMARK_MODES, HighWatermarkMode

logger = logging.getLogger(__name__)

Mode: TypeAlias = Literal["a", "r", "x"]
MODES: Final = ("a", "r", "x")


def open(
    path: str | os.PathLike[str],
    mode: Mode = "a",
    *,
    config: LogConfig | Mapping[str, object] | None = None,
    high_watermark: HighWatermarkMode = "log_end",
    lock_timeout: float = 0.0,
) -> Log:
    """
    Open one partition log.

    Args:
        path: Its directory; created with the directories above it if it is missing.
        mode: ``"a"`` creates or continues the log, ``"x"`` creates it, ``"r"`` reads it and changes
            nothing.
        config: Settings by Kafka's names or Python's; None: the defaults, which delete nothing.
        high_watermark: ``"log_end"``: everything written may be read. ``"replicas"``: what
            replication has confirmed; it is moved by the three operations of Kafka.
        lock_timeout: How many seconds to wait for another writer to close the log.

    Raises:
        LockedError: Another handle or process is writing the log; not with mode ``"r"``.
        LogExistsError: Mode ``"x"``, and there is a log.
        LogNotFoundError: Mode ``"r"``, and there is none.
        ConfigError: Every wrong setting, a name that a broker would stop at, or a store's path.
        StorageError: A file cannot be read or written, or the path is a file's.

    After an unclean end the log is recovered from its recovery point on: ``docs/durability.md``.
    """
    return open_log(
        path, mode, config=config, high_watermark=high_watermark, lock_timeout=lock_timeout
    )


def open_log(
    path: str | os.PathLike[str],
    mode: Mode = "a",
    *,
    config: LogConfig | Mapping[str, object] | None = None,
    high_watermark: HighWatermarkMode = "log_end",
    lock_timeout: float = 0.0,
    files: Files = REAL_FILES,
    clock: Clock = SYSTEM_CLOCK,
    scheduler: Scheduler | None = None,
    live_offsets: bool | None = None,
) -> Log:
    """
    Open a log as :func:`open` does, over files, a clock and a scheduler of the caller's.

    ``live_offsets`` says whether a writer shows other processes where it stands; None: on the
    system's own files.
    """
    directory = _directory_of(path)
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    if high_watermark not in HIGH_WATERMARK_MODES:
        raise ValueError(
            f"high_watermark {high_watermark!r} is not one of {', '.join(HIGH_WATERMARK_MODES)}"
        )
    settings = LogConfig.of(config)
    if files.exists(directory) and not files.is_directory(directory):
        raise StorageError(
            f"{directory} is a file; give the directory of a log", errno.ENOTDIR, path=directory
        )
    if files.exists(os.path.join(directory, META_PROPERTIES)):
        raise ConfigError(
            [f"{directory} is a store, not a log; give a partition in it, or use open_store()"],
            path=directory,
        )
    if mode == "r":
        return view_log(directory, settings, files=files, clock=clock, scheduler=scheduler)
    if mode == "x" and _holds_log(directory, files):
        raise LogExistsError(
            f"there is a log in {directory}; open it with mode 'a', or choose another path",
            path=directory,
        )
    make_directory(directory, files)
    state = PartitionState.for_writing(
        directory, files=files, clock=clock, lock_timeout=lock_timeout
    )
    return load_log(
        directory,
        settings,
        state,
        high_watermark=high_watermark,
        files=files,
        clock=clock,
        scheduler=scheduler,
        live_offsets=live_offsets,
    )


def load_log(
    directory: str,
    config: LogConfig,
    state: PartitionState,
    *,
    high_watermark: HighWatermarkMode = "log_end",
    topic_id: str | None = None,
    files: Files = REAL_FILES,
    clock: Clock = SYSTEM_CLOCK,
    scheduler: Scheduler | None = None,
    live_offsets: bool | None = None,
    writer_pool: WriterPool = PROCESS_POOL,
) -> Log:
    """
    Return the log in a directory that this process may write in, recovered if it has to be.

    Args:
        directory: The log's; absolute.
        config: Its settings.
        state: What it keeps outside its segments; closed with the log, or if the load fails.
        high_watermark: As for :func:`open`.
        topic_id: Expected, or given to a directory without one.
        files: The door to the file system.
        clock: What time it is.
        scheduler: Runs background work; None: a thread of its own.
        live_offsets: As for :func:`open_log`.
        writer_pool: What its writer shares with others.
    """
    try:
        log = Log.create(
            directory,
            config,
            log_start_offset=state.log_start_offset,
            recovery_point=state.recovery_point,
            had_clean_shutdown=state.had_clean_shutdown,
            clock=clock,
            scheduler=scheduler,
            files=files,
            topic_id=topic_id,
            high_watermark=high_watermark,
            high_watermark_offset=state.high_watermark,
            checkpoints=state,
            writer_pool=writer_pool,
        )
    except BaseException:
        state.close(clean=False)
        raise
    if state.recovery_point > log.recovery_point:
        # What it spoke of is gone. Nothing may come in its place before it says so.
        if state.recovery_point > log.log_end_offset:
            logger.warning(
                "%s: everything below offset %d was on the device, but the log ends at %d:"
                " records are lost, and others get their offsets",
                log.directory,
                state.recovery_point,
                log.log_end_offset,
            )
        state.write_recovery_point(log.recovery_point)
    if live_offsets or (live_offsets is None and files is REAL_FILES):
        log.show_live_offsets(state.writer_epoch)
    _open_logs.add(log)
    return log


def view_log(
    directory: str,
    config: LogConfig,
    *,
    files: Files = REAL_FILES,
    clock: Clock = SYSTEM_CLOCK,
    scheduler: Scheduler | None = None,
    may_be_empty: bool = False,
) -> Log:
    """
    Return the log in a directory for reading; see :func:`open_log`.

    ``may_be_empty``: it is a log although there is nothing in it yet.
    """
    if not may_be_empty and not _holds_log(directory, files):
        raise LogNotFoundError(
            f"there is no log in {directory}; check the path, or open it with mode 'a'",
            path=directory,
        )
    log = Log.view(directory, config, clock=clock, scheduler=scheduler, files=files)
    _open_logs.add(log)
    return log


def _directory_of(path: str | os.PathLike[str]) -> str:
    """Return an absolute path: a log stays where it is when the program changes its directory."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"path is {type(text).__name__}; give a str or an os.PathLike of str")
    return os.path.abspath(text)


def _holds_log(directory: str, files: Files) -> bool:
    return files.is_directory(directory) and any(
        name.partition(".")[0].isdecimal() and LOG_SUFFIX in name
        for name in files.listdir(directory)
    )


# ---- fork ----------------------------------------------------------------------------------------

# Logs of this process: a child has to know that it is none of theirs before it touches one.
_open_logs: weakref.WeakSet[Any] = weakref.WeakSet()


def _after_fork() -> None:
    for log in list(_open_logs):
        if not log.is_closed:
            become_reader_of_parent(log)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# ---- pickle --------------------------------------------------------------------------------------


def _reduce(log: Log) -> tuple[Any, ...]:
    """Pickle a reader as "open this path read-only"."""
    if not log.is_read_only:
        raise TypeError(f"{log.directory} is open for writing; open it with mode 'r' to pickle it")
    return _open_again, (log.directory, log.config.to_properties())


def _open_again(path: str, properties: dict[str, str]) -> Log:
    return open_log(path, "r", config=properties)


copyreg.pickle(Log, _reduce)
