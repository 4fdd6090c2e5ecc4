"""
The settings of the cleaner, by Kafka's names.

===================================  =======  ============  =====================================
property                             type     default       means
===================================  =======  ============  =====================================
log.cleaner.backoff.ms               long     15000         pause when there is nothing to clean
log.cleaner.dedupe.buffer.size       long     134217728     bytes of the offset maps of all threads
log.cleaner.io.buffer.load.factor    double   0.9           share of an offset map that is filled
log.cleaner.io.buffer.size           int      524288        bytes read and written at once, of all
log.cleaner.io.max.bytes.per.second  double   no limit      bytes read and written, of all
log.cleaner.threads                  int      1             logs that are cleaned at the same time
===================================  =======  ============  =====================================

Which log is cleaned, and when, its own settings say: ``cleanup.policy``,
``min.cleanable.dirty.ratio``, ``min.compaction.lag.ms``, ``max.compaction.lag.ms``,
``delete.retention.ms``.

Source: Kafka ``CleanerConfig``; spec 9.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol

from logstore.errors import ConfigError

ENTRY_BYTES: Final = 24


class CleanerSettings(Protocol):
    """What the cleaner needs of somebody's settings."""

    @property
    def log_cleaner_backoff_ms(self) -> int:
        """See the module's table."""
        ...

    @property
    def log_cleaner_dedupe_buffer_size(self) -> int:
        """See the module's table."""
        ...

    @property
    def log_cleaner_io_buffer_load_factor(self) -> float:
        """See the module's table."""
        ...

    @property
    def log_cleaner_io_buffer_size(self) -> int:
        """See the module's table."""
        ...

    @property
    def log_cleaner_io_max_bytes_per_second(self) -> float:
        """See the module's table."""
        ...

    @property
    def log_cleaner_threads(self) -> int:
        """See the module's table."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class CleanerConfig:
    """
    The settings of a cleaner that is no store's; immutable.

    Raises:
        ConfigError: Lists every wrong value, not only the first one.

    Source: Kafka ``CleanerConfig``. The table is in the module's docstring.
    """

    log_cleaner_backoff_ms: int = 15_000
    log_cleaner_dedupe_buffer_size: int = 128 << 20
    log_cleaner_io_buffer_load_factor: float = 0.9
    log_cleaner_io_buffer_size: int = 512 << 10
    log_cleaner_io_max_bytes_per_second: float = math.inf
    log_cleaner_threads: int = 1

    def __post_init__(self) -> None:
        problems = [
            f"{name.replace('_', '.')}={value} must be {rule}"
            for name, value, is_right, rule in (
                (
                    "log_cleaner_backoff_ms",
                    self.log_cleaner_backoff_ms,
                    self.log_cleaner_backoff_ms >= 0,
                    "at least 0",
                ),
                (
                    "log_cleaner_dedupe_buffer_size",
                    self.log_cleaner_dedupe_buffer_size,
                    self.log_cleaner_dedupe_buffer_size // max(1, self.log_cleaner_threads)
                    >= 4 * ENTRY_BYTES,
                    f"at least {4 * ENTRY_BYTES} for each thread",
                ),
                (
                    "log_cleaner_io_buffer_load_factor",
                    self.log_cleaner_io_buffer_load_factor,
                    0 < self.log_cleaner_io_buffer_load_factor <= 1,
                    "above 0 and at most 1",
                ),
                (
                    "log_cleaner_io_buffer_size",
                    self.log_cleaner_io_buffer_size,
                    self.log_cleaner_io_buffer_size >= 0,
                    "at least 0",
                ),
                (
                    "log_cleaner_io_max_bytes_per_second",
                    self.log_cleaner_io_max_bytes_per_second,
                    self.log_cleaner_io_max_bytes_per_second > 0,
                    "above 0",
                ),
                (
                    "log_cleaner_threads",
                    self.log_cleaner_threads,
                    self.log_cleaner_threads >= 0,
                    "at least 0",
                ),
            )
            if not is_right
        ]
        if problems:
            raise ConfigError(problems)
