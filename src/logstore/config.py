"""
The settings of one log: Kafka's topic properties in, typed fields out, validated once.

A field is Kafka's property name with ``.`` written as ``_``. Both spellings and strings as values
are accepted by :meth:`LogConfig.of`, as they come from ``kafka-configs.sh`` or a properties file.

Properties (bounds are inclusive; *int* is 32 bits, *long* 64)::

    property                                   type   default    valid
    batch.bytes                                int    65536      >= 128
    cleanup.policy                             list   delete     compact, delete
    compression.gzip.level                     int    -1         -1, 1..9
    compression.lz4.level                      int    9          1..17
    compression.type                           string producer   producer, gzip, lz4, snappy,
                                                                 zstd, uncompressed
    compression.zstd.level                     int    3          -131072..22
    decompressed.bytes.max                     long   268435456  >= 1024
    delete.retention.ms                        long   86400000   >= 0
    file.delete.delay.ms                       long   60000      >= 0
    flush.messages                             long   2^63-1     >= 1
    flush.ms                                   long   2^63-1     >= 0
    follower.replication.throttled.replicas    list   (empty)    any
    index.interval.bytes                       int    4096       >= 0
    leader.replication.throttled.replicas      list   (empty)    any
    local.retention.bytes                      long   -2         >= -2
    local.retention.ms                         long   -2         >= -2
    logstore.retention.timestamp.type          string CreateTime CreateTime, LogAppendTime
    mapped.segments.max                        int    64         0..65536
    max.compaction.lag.ms                      long   2^63-1     >= 1
    max.message.bytes                          int    1048588    >= 0
    message.timestamp.after.max.ms             long   3600000    >= 0
    message.timestamp.before.max.ms            long   2^63-1     >= 0
    message.timestamp.type                     string CreateTime CreateTime, LogAppendTime
    min.cleanable.dirty.ratio                  double 0.5        0.0..1.0
    min.compaction.lag.ms                      long   0          >= 0
    min.insync.replicas                        int    1          >= 1
    preallocate                                bool   false      any
    producer.id.expiration.check.interval.ms   int    600000     >= 1
    producer.id.expiration.ms                  int    86400000   >= 1
    remote.log.copy.disable                    bool   false      any
    remote.log.delete.on.disable               bool   false      any
    remote.storage.enable                      bool   false      false
    retention.bytes                            long   -1         any
    retention.ms                               long   -1         >= -1
    segment.bytes                              int    1073741824 >= 14
    segment.index.bytes                        int    10485760   >= 12
    segment.jitter.ms                          long   0          >= 0
    segment.ms                                 long   604800000  >= 1
    transaction.max.timeout.ms                 int    900000     >= 1
    transaction.partition.verification.enable  bool   true       any
    unclean.leader.election.enable             bool   false      any

Where this is not Kafka 4.1.0:

* ``retention.ms`` is -1, not seven days: nothing is deleted that nobody asked to delete.
  :meth:`LogConfig.kafka_defaults` gives Kafka's value.
* ``segment.bytes`` may be small: Kafka 4 refuses less than 1 MiB, and has
  ``internal.segment.bytes`` for tests, which is accepted here as another name.
* ``segment.index.bytes`` under 12 holds no time index entry; Kafka accepts 4 and then fails to
  create the segment.
* ``batch.bytes`` (target size of a batch that ``extend`` makes), ``decompressed.bytes.max`` (bound
  of a decompressed batch) and ``mapped.segments.max`` (sealed segments that ``log[offset]`` keeps
  mapped; 0: it reads instead) are ours. So is ``logstore.retention.timestamp.type``: with
  LogAppendTime ``retention.ms`` counts from the append, whatever timestamps the records have.
  ``producer.id.…`` and ``transaction.…`` are settings of a Kafka broker; an embedded log has none.
* Names that releases before 4.0 had are accepted. ``message.timestamp.difference.max.ms`` sets the
  two bounds that replaced it unless they are given; the others have no effect any more.

Source: Kafka ``LogConfig``, ``TopicConfig``; spec section 9.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from logstore.errors import ConfigError

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

# An encoded header of 61 bytes and one small record; anything less would be a batch per record.
_BATCH_BYTES_MIN: Final = 128

# Space is allocated ahead of the writer (DESIGN.md D12): a quarter of a segment, within these.
PREALLOCATED_SEGMENT_BYTES_MIN: Final = 1 << 20
PREALLOCATION_BYTES_MAX: Final = 16 << 20

COMPRESSION_TYPES: Final = ("producer", "gzip", "lz4", "snappy", "zstd", "uncompressed")
TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")
CLEANUP_POLICIES: Final = ("compact", "delete")

# A parser returns the typed value, or raises ValueError with the end of "<property>=<value> …".
_Parser: TypeAlias = Callable[[object], Any]


def _whole(low: int, high: int, *, extra: int | None = None) -> _Parser:
    """Parse an integer within [low, high], or equal to ``extra``."""

    def parse(value: object) -> int:
        number: int
        if isinstance(value, bool):
            raise ValueError("must be a whole number")  # noqa: TRY004  One kind for all problems.
        if isinstance(value, int):
            number = value
        elif isinstance(value, str):
            try:
                number = int(value.strip().replace("_", "x"), 10)  # Python's 1_000 is not Kafka's.
            except ValueError:
                raise ValueError("must be a whole number") from None
        else:
            raise ValueError("must be a whole number")  # noqa: TRY004
        if low <= number <= high or number == extra:
            return number
        or_extra = "" if extra is None else f" or {extra}"
        if high in (INT_MAX, LONG_MAX) and number <= high:
            raise ValueError(f"must be at least {low}{or_extra}")
        raise ValueError(f"must be between {low} and {high}{or_extra}")

    return parse


def _ratio(value: object) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError  # noqa: TRY301, TRY004
        number = float(value)
    except ValueError:
        raise ValueError("must be a number") from None
    if not 0.0 <= number <= 1.0:
        raise ValueError("must be between 0.0 and 1.0")
    return number


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else None
    if word not in ("true", "false"):
        raise ValueError("must be true or false")
    return word == "true"


def _unsupported(value: object) -> bool:
    if _truth(value):
        raise ValueError("is not supported: there is no tiered storage here; remove it")
    return False


def _one_of(*choices: str) -> _Parser:
    def parse(value: object) -> str:
        word = value.strip() if isinstance(value, str) else value
        if word not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        assert isinstance(word, str)
        return word

    return parse


def _items(value: object) -> list[str]:
    if isinstance(value, str):
        parts: list[object] = list(value.split(","))
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = list(value)
    else:
        raise ValueError("must be a list, or a string of items with commas between")  # noqa: TRY004
    if not all(isinstance(part, str) for part in parts):
        raise ValueError("must be a list of strings")
    return [part.strip() for part in parts if isinstance(part, str) and part.strip()]


def _policies(value: object) -> frozenset[str]:
    policies = frozenset(item.lower() for item in _items(value))
    if not policies <= set(CLEANUP_POLICIES):
        raise ValueError("must be a list out of compact, delete")
    return policies


def _replicas(value: object) -> tuple[str, ...]:
    return tuple(_items(value))


def _setting(default: Any, parse: _Parser) -> Any:
    return field(default=default, metadata={"parse": parse})


@dataclass(frozen=True, kw_only=True, slots=True)
class LogConfig:
    """
    The settings of one log; immutable, so that a call sees one state of them.

    Raises:
        ConfigError: Lists every wrong value, not only the first one.

    Source: Kafka ``LogConfig``. The table is in the module's docstring.
    """

    batch_bytes: int = _setting(65536, _whole(_BATCH_BYTES_MIN, INT_MAX))
    cleanup_policy: frozenset[str] = _setting(frozenset({"delete"}), _policies)
    compression_gzip_level: int = _setting(-1, _whole(1, 9, extra=-1))
    compression_lz4_level: int = _setting(9, _whole(1, 17))
    compression_type: str = _setting("producer", _one_of(*COMPRESSION_TYPES))
    compression_zstd_level: int = _setting(3, _whole(-131072, 22))
    decompressed_bytes_max: int = _setting(256 << 20, _whole(1024, LONG_MAX))
    delete_retention_ms: int = _setting(86_400_000, _whole(0, LONG_MAX))
    file_delete_delay_ms: int = _setting(60_000, _whole(0, LONG_MAX))
    flush_messages: int = _setting(LONG_MAX, _whole(1, LONG_MAX))
    flush_ms: int = _setting(LONG_MAX, _whole(0, LONG_MAX))
    follower_replication_throttled_replicas: tuple[str, ...] = _setting((), _replicas)
    index_interval_bytes: int = _setting(4096, _whole(0, INT_MAX))
    leader_replication_throttled_replicas: tuple[str, ...] = _setting((), _replicas)
    local_retention_bytes: int = _setting(-2, _whole(-2, LONG_MAX))
    local_retention_ms: int = _setting(-2, _whole(-2, LONG_MAX))
    logstore_retention_timestamp_type: str = _setting("CreateTime", _one_of(*TIMESTAMP_TYPES))
    mapped_segments_max: int = _setting(64, _whole(0, 65_536))
    max_compaction_lag_ms: int = _setting(LONG_MAX, _whole(1, LONG_MAX))
    max_message_bytes: int = _setting(1_048_588, _whole(0, INT_MAX))
    message_timestamp_after_max_ms: int = _setting(3_600_000, _whole(0, LONG_MAX))
    message_timestamp_before_max_ms: int = _setting(LONG_MAX, _whole(0, LONG_MAX))
    message_timestamp_type: str = _setting("CreateTime", _one_of(*TIMESTAMP_TYPES))
    min_cleanable_dirty_ratio: float = _setting(0.5, _ratio)
    min_compaction_lag_ms: int = _setting(0, _whole(0, LONG_MAX))
    min_insync_replicas: int = _setting(1, _whole(1, INT_MAX))
    preallocate: bool = _setting(False, _truth)
    producer_id_expiration_check_interval_ms: int = _setting(600_000, _whole(1, INT_MAX))
    producer_id_expiration_ms: int = _setting(86_400_000, _whole(1, INT_MAX))
    remote_log_copy_disable: bool = _setting(False, _truth)
    remote_log_delete_on_disable: bool = _setting(False, _truth)
    remote_storage_enable: bool = _setting(False, _unsupported)
    retention_bytes: int = _setting(-1, _whole(-LONG_MAX - 1, LONG_MAX))
    retention_ms: int = _setting(-1, _whole(-1, LONG_MAX))
    segment_bytes: int = _setting(1 << 30, _whole(14, INT_MAX))
    segment_index_bytes: int = _setting(10 << 20, _whole(12, INT_MAX))
    segment_jitter_ms: int = _setting(0, _whole(0, LONG_MAX))
    segment_ms: int = _setting(604_800_000, _whole(1, LONG_MAX))
    transaction_max_timeout_ms: int = _setting(900_000, _whole(1, INT_MAX))
    transaction_partition_verification_enable: bool = _setting(True, _truth)
    unclean_leader_election_enable: bool = _setting(False, _truth)

    def __post_init__(self) -> None:
        problems: list[str] = []
        for setting in dataclasses.fields(self):
            value = _parsed(setting, getattr(self, setting.name), problems)
            object.__setattr__(self, setting.name, value)
        problems += _cross_checks(self)
        if problems:
            raise ConfigError(problems)

    @classmethod
    def of(cls, config: LogConfig | Mapping[str, object] | None) -> LogConfig:
        """
        Return the settings that a caller gave, the rest at their defaults.

        Args:
            config: None, a mapping by Kafka's names or Python's, or a ready LogConfig.

        Raises:
            ConfigError: Every unknown name, with the nearest known one, and every wrong value.
        """
        if config is None:
            return _DEFAULTS
        if isinstance(config, LogConfig):
            return config
        return _DEFAULTS._overlaid(config)

    @classmethod
    def kafka_defaults(cls) -> LogConfig:
        """Return the defaults of Kafka 4.1.0, which delete what is older than seven days."""
        return cls(retention_ms=604_800_000)

    def replace(self, **changes: object) -> LogConfig:
        """Return a copy with some settings changed; names and values as in :meth:`of`."""
        return self._overlaid(changes)

    def to_properties(self) -> dict[str, str]:
        """Return Kafka's property names and values as text, as in a properties file."""
        return {
            _property_of(setting.name): _text(getattr(self, setting.name))
            for setting in dataclasses.fields(self)
        }

    @property
    def compact(self) -> bool:
        """Whether ``cleanup.policy`` has compact."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether ``cleanup.policy`` has delete."""
        return "delete" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """The age at which a segment rolls: a compacted log also keeps its compaction lag."""
        if self.compact:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @property
    def batch_bytes_max(self) -> int:
        """``batch.bytes`` within what one batch of this log may have."""
        return min(self.batch_bytes, self.max_message_bytes, self.segment_bytes)

    @property
    def preallocation_bytes(self) -> int:
        """Space to allocate ahead of the writer; 0 with Kafka's own ``preallocate``."""
        if self.preallocate or self.segment_bytes < PREALLOCATED_SEGMENT_BYTES_MIN:
            return 0
        return min(self.segment_bytes // 4, PREALLOCATION_BYTES_MAX)

    def _overlaid(self, changes: Mapping[str, object]) -> LogConfig:
        """Return a copy with ``changes``; all problems of names, values and pairs at once."""
        if not isinstance(changes, Mapping):
            raise ConfigError(
                [f"config is a {type(changes).__name__}; give a mapping or a LogConfig"]
            )
        problems: list[str] = []
        values = {setting.name: getattr(self, setting.name) for setting in dataclasses.fields(self)}
        given: dict[str, str] = {}
        for name, value in _without_retired(changes, problems).items():
            known = _field_of(name)
            if known is None:
                problems.append(_unknown(name))
            elif known in given:
                problems.append(f"{name} and {given[known]} are the same property; give one")
            else:
                given[known] = name
                values[known] = _parsed(_FIELDS[known], value, problems)
        if problems:
            raise ConfigError(problems)
        return LogConfig(**values)


_FIELDS: Final = {setting.name: setting for setting in dataclasses.fields(LogConfig)}

# Other names of a property: of Kafka's own tests, and of the broker-level default.
_ALIASES: Final = {"internal.segment.bytes": "segment.bytes"}

_RETIRED: Final = frozenset(
    {
        "file.delete.delay.ms.jitter",
        "message.downconversion.enable",
        "message.format.version",
    }
)
_DIFFERENCE: Final = "message.timestamp.difference.max.ms"

# A broker's settings whose topic level name is another, for the hint.
_BROKER_NAMES: Final = {
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.flush.interval.messages": "flush.messages",
    "log.flush.interval.ms": "flush.ms",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.retention.hours": "retention.ms",
    "log.retention.minutes": "retention.ms",
    "log.roll.hours": "segment.ms",
    "log.roll.jitter.ms": "segment.jitter.ms",
    "log.roll.ms": "segment.ms",
    "log.segment.delete.delay.ms": "file.delete.delay.ms",
    "message.max.bytes": "max.message.bytes",
}


def _property_of(field_name: str) -> str:
    return field_name.replace("_", ".")


def _field_of(name: object) -> str | None:
    """Return the field that a property is, in either spelling; None if there is none."""
    if not isinstance(name, str):
        return None
    name = _ALIASES.get(name.replace("_", "."), name)
    name = name.replace(".", "_")
    return name if name in _FIELDS else None


def _without_retired(changes: Mapping[str, object], problems: list[str]) -> dict[str, object]:
    """Return ``changes`` without the names that Kafka dropped, in today's terms."""
    kept: dict[str, object] = {}
    difference: object = None
    for name, value in changes.items():
        dotted = name.replace("_", ".") if isinstance(name, str) else ""
        if dotted == _DIFFERENCE:
            difference = value
        elif dotted not in _RETIRED:
            kept[name] = value
    if difference is None:
        return kept

    try:
        bound = _whole(0, LONG_MAX)(difference)
    except ValueError as error:
        problems.append(f"{_DIFFERENCE}={difference} {error}")
        return kept
    given = {_field_of(name) for name in kept}
    for replacement in ("message_timestamp_before_max_ms", "message_timestamp_after_max_ms"):
        if replacement not in given:
            kept[replacement] = bound
    return kept


def _parsed(setting: dataclasses.Field[Any], value: object, problems: list[str]) -> Any:
    try:
        return setting.metadata["parse"](value)
    except ValueError as error:
        problems.append(f"{_property_of(setting.name)}={_text(value)} {error}")
        return setting.default


def _unknown(name: object) -> str:
    if not isinstance(name, str):
        return f"{name!r} is not a property name; use a string"
    dotted = name.replace("_", ".")
    nearest = _BROKER_NAMES.get(dotted)
    if nearest is None:
        known = [_property_of(field_name) for field_name in _FIELDS]
        close = difflib.get_close_matches(dotted.removeprefix("log."), known, n=1, cutoff=0.6)
        nearest = close[0] if close else None
    if nearest is None:
        return f"{name} is not a known property; remove it"
    if "_" in name and "." not in name:
        nearest = nearest.replace(".", "_")
    return f"{name} is not a known property; did you mean {nearest}?"


def _cross_checks(config: LogConfig) -> list[str]:
    """Return what is wrong between settings that are each right."""
    problems = []
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        problems.append(
            f"min.compaction.lag.ms={config.min_compaction_lag_ms} must not exceed"
            f" max.compaction.lag.ms={config.max_compaction_lag_ms}"
        )
    return problems


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (frozenset, set)):
        return ",".join(sorted(str(item) for item in value))
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    return str(value)


_DEFAULTS: Final = LogConfig()
