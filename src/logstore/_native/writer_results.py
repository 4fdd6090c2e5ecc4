"""What the native writer answers."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from logstore._native._core import lib


class WriterState(NamedTuple):
    """
    What appends have made of the attached segment.

    Attributes:
        log_end_offset: Next offset; with ``publish=False`` it may be ahead of the published one.
        size_bytes: End of the last complete batch.
        offset_entry_count: Entries of the offset index.
        time_entry_count: Entries of the time index.
        last_time_entry_timestamp: Of the last time index entry, -1 when there is none.
        last_time_entry_offset: Of the same.
        bytes_since_last_index_entry: See spec 4.2.
        max_timestamp: Largest so far, -1 when there is none.
        offset_of_max_timestamp: Last offset of the batch that has it.
        rolling_based_timestamp: Max timestamp of the first batch, or
            ``ROLLING_BASED_TIMESTAMP_UNKNOWN`` before it.
    """

    log_end_offset: int
    size_bytes: int
    offset_entry_count: int
    time_entry_count: int
    last_time_entry_timestamp: int
    last_time_entry_offset: int
    bytes_since_last_index_entry: int
    max_timestamp: int
    offset_of_max_timestamp: int
    rolling_based_timestamp: int


class RollStage:
    """How far a roll has come: see ``enum ls_roll_stage``. An enum's would take longer to get."""

    NOTHING: Final = int(lib.LS_ROLL_NOTHING)
    DETACHED: Final = int(lib.LS_ROLL_DETACHED)
    SEALED: Final = int(lib.LS_ROLL_SEALED)
    REFUSED: Final = int(lib.LS_ROLL_REFUSED)
    MADE: Final = int(lib.LS_ROLL_MADE)
    ATTACHED: Final = int(lib.LS_ROLL_ATTACHED)


# What Writer.roll did: the stage; the native result that kept it from going on, not below 0 if none
# did; descriptors of the new .log file, offset index and time index, which are the caller's from
# their stage on; from DETACHED on, the fields of the old segment's WriterState.
Rolled: TypeAlias = tuple[int, int, int, int, int, tuple[int, ...]]


class Appended(NamedTuple):
    """
    What an append wrote.

    Attributes:
        first_offset: Of its first record.
        record_count: Fewer than asked for: the segment must roll first, then append the rest.
        position: Of its first byte in the segment.
        size_bytes: Bytes written.
        max_timestamp: Largest of its timestamps, -1 without records.
        offset_of_max_timestamp: Last offset of the batch that has it.
    """

    first_offset: int
    record_count: int
    position: int
    size_bytes: int
    max_timestamp: int
    offset_of_max_timestamp: int


class Ready(NamedTuple):
    """
    What ready batches were, and where they are now.

    Attributes:
        first_offset: Of the first batch, as written.
        last_offset: Of the last one.
        last_offset_of_first_batch: As it came: a leader has changed it.
        max_timestamp: Of all batches; -1 for none.
        offset_of_max_timestamp: Last offset of the first batch that has it; -1 for none.
        last_leader_epoch: Of the last batch, as it came.
        last_codec: Of the last compressed batch; 0 without one.
    """

    first_offset: int
    last_offset: int
    last_offset_of_first_batch: int
    max_timestamp: int
    offset_of_max_timestamp: int
    last_leader_epoch: int
    last_codec: int
