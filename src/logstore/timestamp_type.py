"""
The timestamp type: what the timestamps of a batch's records mean.

Source: Kafka ``TimestampType``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from logstore.errors import ConfigError

NO_TIMESTAMP: Final = -1


class TimestampType(IntEnum):
    """
    Who set the timestamps: the producer, or the log when it appended; magic 0 has none.

    Source: Kafka ``TimestampType``.
    """

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1

    @property
    def label(self) -> str:
        """Kafka's name: ``NoTimestampType``, ``CreateTime``, ``LogAppendTime``."""
        return _LABELS[self]

    @classmethod
    def of(cls, name: str | int | TimestampType) -> TimestampType:
        """
        Return the type with this label or number.

        Raises:
            ConfigError: There is none.
        """
        found = _BY_NAME.get(name)
        if found is None:
            problem = f"unknown timestamp type {name!r}; use CreateTime or LogAppendTime"
            raise ConfigError([problem])
        return found


_LABELS: Final = {
    TimestampType.NO_TIMESTAMP_TYPE: "NoTimestampType",
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}
_BY_NAME: Final[dict[str | int, TimestampType]] = {kind.label: kind for kind in TimestampType} | {
    kind.value: kind for kind in TimestampType
}
