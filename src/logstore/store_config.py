"""
The settings of a store: Kafka's broker properties in, typed fields out, validated once.

Properties of the store itself (bounds are inclusive; *int* is 32 bits, *long* 64)::

    property                                       type   default        valid
    cluster.id                                     string (drawn)        any
    log.cleaner.backoff.ms                         long   15000          >= 0
    log.cleaner.dedupe.buffer.size                 long   134217728      >= 1048576
    log.cleaner.enable                             bool   true           any
    log.cleaner.io.buffer.load.factor              double 0.9            0.0..1.0
    log.cleaner.io.buffer.size                     int    524288         >= 0
    log.cleaner.io.max.bytes.per.second            double 1.7976931e+308 > 0
    log.cleaner.threads                            int    1              >= 0
    log.flush.offset.checkpoint.interval.ms        int    60000          >= 1
    log.flush.start.offset.checkpoint.interval.ms  int    60000          >= 1
    log.initial.task.delay.ms                      long   30000          >= 0
    log.retention.check.interval.ms                long   300000         >= 1
    node.id                                        int    1              >= 0
    num.partitions                                 int    1              >= 1
    num.recovery.threads.per.data.dir              int    2              >= 1
    offset.metadata.max.bytes                      int    4096           >= 0
    offsets.topic.num.partitions                   int    50             >= 1
    offsets.topic.segment.bytes                    int    104857600      >= 14
    preallocated.bytes.max                         long   1073741824     >= 0
    replica.high.watermark.checkpoint.interval.ms  long   5000           >= 1
    staging.bytes.max                              long   67108864       >= 0
    transaction.state.log.num.partitions           int    50             >= 1
    transaction.state.log.segment.bytes            int    104857600      >= 14
    transactional.id.expiration.ms                 int    604800000      >= 1

Every other property is a default for the store's topics, by the broker's name
(``log.segment.bytes``, ``log.retention.hours``, ``message.max.bytes``) or by the topic's
(``segment.bytes``, ``retention.ms``, ``max.message.bytes``): see ``config.py``.

``staging.bytes.max`` and ``preallocated.bytes.max`` are ours, bounds of all logs of the store
together (DESIGN.md D12): of the memory in which appends put records together and that is kept for
the next ones, and of the room on the devices that is allocated ahead of the writers. Beyond them
logs work without, and appends of many records are slower.

``cluster.id`` and ``node.id`` count where a store is made; a directory keeps those that it has.

Source: Kafka ``ServerLogConfigs``, ``CleanerConfig``; spec 9.2.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from logstore.config import (
    _DEFAULTS,
    INT_MAX,
    LONG_MAX,
    LogConfig,
    _parsed,
    _property_of,
    _ratio,
    _setting,
    _text,
    _truth,
    _whole,
)
from logstore.errors import ConfigError

# Bounds of what logs have together (DESIGN.md D12); also of those of a process that have no store.
PREALLOCATED_BYTES_MAX: Final = 1 << 30
STAGING_BYTES_MAX: Final = 64 << 20

# Broker properties that are defaults of a topic's property with another name.
TOPIC_PROPERTIES: Final = {
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.cleanup.policy": "cleanup.policy",
    "log.flush.interval.messages": "flush.messages",
    "log.flush.interval.ms": "flush.ms",
    "log.index.interval.bytes": "index.interval.bytes",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.preallocate": "preallocate",
    "log.retention.bytes": "retention.bytes",
    "log.retention.ms": "retention.ms",
    "log.roll.jitter.ms": "segment.jitter.ms",
    "log.roll.ms": "segment.ms",
    "log.segment.bytes": "segment.bytes",
    "log.segment.delete.delay.ms": "file.delete.delay.ms",
    "message.max.bytes": "max.message.bytes",
}

# Broker properties in another unit: the one in milliseconds wins, then the finer one.
IN_OTHER_UNITS: Final = (
    ("log.retention.minutes", "retention.ms", 60_000),
    ("log.retention.hours", "retention.ms", 3_600_000),
    ("log.roll.hours", "segment.ms", 3_600_000),
    ("log.roll.jitter.hours", "segment.jitter.ms", 3_600_000),
)


def _rate(value: object) -> float:
    try:
        number = float(value) if isinstance(value, (int, float, str)) else 0.0
    except ValueError:
        number = 0.0
    if not number > 0:
        raise ValueError("must be a number above 0")
    return number


def _name(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or any(map(str.isspace, value.strip())):
        raise ValueError("must be a word")
    return value.strip()


def _topic_defaults(value: object) -> LogConfig:
    if not isinstance(value, LogConfig):
        raise ValueError("must be a LogConfig")  # noqa: TRY004  One kind for all problems.
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreConfig:
    """
    The settings of a store; immutable.

    Attributes:
        topic_defaults: What a topic has that says nothing else.

    Raises:
        ConfigError: Lists every wrong value, not only the first one.

    Source: Kafka ``KafkaConfig``. The table is in the module's docstring.
    """

    cluster_id: str | None = _setting(None, _name)
    log_cleaner_backoff_ms: int = _setting(15_000, _whole(0, LONG_MAX))
    log_cleaner_dedupe_buffer_size: int = _setting(128 << 20, _whole(1 << 20, LONG_MAX))
    log_cleaner_enable: bool = _setting(True, _truth)
    log_cleaner_io_buffer_load_factor: float = _setting(0.9, _ratio)
    log_cleaner_io_buffer_size: int = _setting(512 << 10, _whole(0, INT_MAX))
    log_cleaner_io_max_bytes_per_second: float = _setting(sys.float_info.max, _rate)
    log_cleaner_threads: int = _setting(1, _whole(0, INT_MAX))
    log_flush_offset_checkpoint_interval_ms: int = _setting(60_000, _whole(1, INT_MAX))
    log_flush_start_offset_checkpoint_interval_ms: int = _setting(60_000, _whole(1, INT_MAX))
    log_initial_task_delay_ms: int = _setting(30_000, _whole(0, LONG_MAX))
    log_retention_check_interval_ms: int = _setting(300_000, _whole(1, LONG_MAX))
    node_id: int = _setting(1, _whole(0, INT_MAX))
    num_partitions: int = _setting(1, _whole(1, INT_MAX))
    num_recovery_threads_per_data_dir: int = _setting(2, _whole(1, INT_MAX))
    offset_metadata_max_bytes: int = _setting(4096, _whole(0, INT_MAX))
    offsets_topic_num_partitions: int = _setting(50, _whole(1, INT_MAX))
    offsets_topic_segment_bytes: int = _setting(100 << 20, _whole(14, INT_MAX))
    preallocated_bytes_max: int = _setting(PREALLOCATED_BYTES_MAX, _whole(0, LONG_MAX))
    replica_high_watermark_checkpoint_interval_ms: int = _setting(5_000, _whole(1, LONG_MAX))
    staging_bytes_max: int = _setting(STAGING_BYTES_MAX, _whole(0, LONG_MAX))
    topic_defaults: LogConfig = _setting(_DEFAULTS, _topic_defaults)  # noqa: RUF009  As the others.
    transaction_state_log_num_partitions: int = _setting(50, _whole(1, INT_MAX))
    transaction_state_log_segment_bytes: int = _setting(100 << 20, _whole(14, INT_MAX))
    transactional_id_expiration_ms: int = _setting(604_800_000, _whole(1, INT_MAX))

    def __post_init__(self) -> None:
        problems: list[str] = []
        for setting in dataclasses.fields(self):
            value = _parsed(setting, getattr(self, setting.name), problems)
            object.__setattr__(self, setting.name, value)
        if problems:
            raise ConfigError(problems)

    @classmethod
    def of(cls, config: StoreConfig | LogConfig | Mapping[str, object] | None) -> StoreConfig:
        """
        Return the settings that a caller gave, the rest at their defaults.

        Args:
            config: None, a mapping by Kafka's names or Python's, a ready StoreConfig, or a
                LogConfig: the defaults of the topics.

        Raises:
            ConfigError: Every unknown name, with the nearest known one, and every wrong value.
        """
        if config is None:
            return cls()
        if isinstance(config, StoreConfig):
            return config
        if isinstance(config, LogConfig):
            return cls(topic_defaults=config)
        if not isinstance(config, Mapping):
            raise ConfigError(
                [f"config is a {type(config).__name__}; give a mapping or a StoreConfig"]
            )
        problems: list[str] = []
        own: dict[str, Any] = {}
        defaults: dict[str, object] = {}
        for name, value in config.items():
            field = name.replace(".", "_") if isinstance(name, str) else ""
            if field in _FIELDS and field != "topic_defaults":
                if field in own:
                    problems.append(f"{name} is given twice; give it once")
                own[field] = _parsed(_FIELDS[field], value, problems)
            elif name == "topic_defaults" and isinstance(value, LogConfig):
                own[name] = value
            else:
                defaults[name] = value
        base = own.pop("topic_defaults", None) or LogConfig()
        try:
            own["topic_defaults"] = base._overlaid(_by_topic_names(defaults, problems))
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems)
        return cls(**own)

    def to_properties(self) -> dict[str, str]:
        """Return Kafka's property names and values as text; topics' by the topics' names."""
        own = {
            _property_of(name): _text(getattr(self, name))
            for name in _FIELDS
            if name != "topic_defaults" and getattr(self, name) is not None
        }
        return own | self.topic_defaults.to_properties()


_FIELDS: Final = {setting.name: setting for setting in dataclasses.fields(StoreConfig)}


def _by_topic_names(given: Mapping[str, object], problems: list[str]) -> dict[str, object]:
    """Return defaults of topics by the topics' names for them."""
    dotted = {
        name.replace("_", ".") if isinstance(name, str) else name: (name, value)
        for name, value in given.items()
    }
    found: dict[str, object] = {}
    for broker_name, topic_name, unit_ms in IN_OTHER_UNITS:
        if broker_name not in dotted:
            continue
        name, value = dotted.pop(broker_name)
        try:
            amount = _whole(-LONG_MAX - 1, INT_MAX)(value)
        except ValueError as error:
            problems.append(f"{name}={value} {error}")
            continue
        found.setdefault(topic_name, amount * unit_ms if amount >= 0 else -1)
    is_given: dict[str, str] = {}
    for dotted_name, (name, value) in dotted.items():
        topic_name = TOPIC_PROPERTIES.get(dotted_name, name)
        plain = topic_name.replace("_", ".") if isinstance(topic_name, str) else topic_name
        if plain in is_given:
            problems.append(f"{name} and {is_given[plain]} are the same property; give one")
        is_given[plain] = name
        found.pop(plain, None)
        found[topic_name] = value
    return found
