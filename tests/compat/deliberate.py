"""
The differences between Kafka's validator and ours that are wanted, each by its name.

Most are rows of ``docs/decisions/0010-refuse-batches-nobody-could-read.md``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from logstore.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    UnsupportedCompressionTypeError,
)
from logstore.record import iterate_batches, logical_sha256

NOTHING = logical_sha256(b"")

# Errors of Kafka that say of a whole batch that it is damaged.
OF_A_BATCH = ("KafkaException", "InvalidRecordException", "CorruptRecordException")

# What Java raises for a size beyond the end of a buffer.
NO_ROOM = ("IllegalArgumentException", "IndexOutOfBoundsException")

# What Kafka's builder refuses of a batch that it encodes again.
BUILDER_REFUSES = (
    "Invalid negative timestamp",
    "Invalid negative producer epoch",
    "Invalid negative sequence number",
    "Cannot write transactional messages",
)


class Case(NamedTuple):
    """One append to both validators."""

    theirs: dict[str, Any]
    their_error: dict[str, Any] | None
    ours: dict[str, Any]
    our_error: Exception | None
    data: bytes  #: what was to be appended

    @property
    def their_class(self):
        return None if self.their_error is None else self.their_error["class"]

    @property
    def their_message(self):
        return "" if self.their_error is None else str(self.their_error["message"])

    @property
    def magic(self):
        return self.data[16]

    @property
    def is_compressed(self):
        return bool(self.data[22 if self.magic == 2 else 17] & 7)

    @property
    def is_empty(self):
        """A first batch without records, as the cleaner leaves it."""
        return self.magic == 2 and self.data[57:61] == bytes(4)

    def we_say(self, kind, *texts):
        return isinstance(self.our_error, kind) and any(
            text in str(self.our_error) for text in texts
        )


def damaged_compressed_data(case):
    """Kafka has no error of its own for it, or finds the record first that is broken by it."""
    return (
        case.is_compressed
        and case.we_say(CorruptRecordError, "damaged", "is beyond the bound")
        and case.their_class in (*OF_A_BATCH, "RecordValidationException")
        and (case.their_class not in OF_A_BATCH or case.theirs["indices"] == [])
    )


def records_that_do_not_fill_their_sizes(case):
    """Kafka keeps a compressed batch, or judges its records' fields first; readers fail on it."""
    return (
        case.is_compressed
        and case.we_say(InvalidRecordError, "well-formed", "break the format")
        and case.their_class in (None, "RecordValidationException", "UnsupportedOperationException")
    )


def offsets_inside_that_go_back(case):
    """Kafka appends them, or judges the records' fields first."""
    known = (None, "RecordValidationException", "UnsupportedOperationException")
    return case.we_say(InvalidRecordError, "offsets inside a batch") and (
        case.their_class in known or builder_refuses(case)
    )


def negative_base_offset(case):
    """Kafka appends fewer records than offsets below offset 0."""
    return case.we_say(InvalidRecordError, "does not fit log end offset") and (
        case.their_error is None or empty_batch_is_kept(case)
    )


def builder_refuses(case):
    """What cannot be encoded again is an error of Java's, not of Kafka's protocol."""
    return case.their_class == "IllegalArgumentException" and case.their_message.startswith(
        BUILDER_REFUSES
    )


def not_to_be_encoded_again(case):
    """The builder's refusals have typed errors here."""
    return builder_refuses(case) and case.we_say(
        (InvalidTimestampError, InvalidRecordError), "encoded again"
    )


def control_batch_is_kept(case):
    """Encoded again, a control batch is refused by Kafka's builder, or is none any more."""
    return (
        case.our_error is None
        and next(iterate_batches(case.data)).is_control
        and (builder_refuses(case) or (case.their_error is None and case.is_compressed))
    )


def skipped_values(case):
    """Kafka has not read what it has to encode again; we encode it, or say what is wrong."""
    return case.their_class == "UnsupportedOperationException" and (
        case.our_error is None
        or case.we_say((InvalidTimestampError, InvalidRecordError), "encoded again")
    )


def empty_batch_is_kept(case):
    """Encoded again, an empty batch is nothing in Kafka, or a NullPointerException."""
    return case.is_empty and (
        case.their_class == "NullPointerException"
        or case.theirs.get("logical") == NOTHING
        or (builder_refuses(case) and case.our_error is None)
    )


def unknown_codec(case):
    """Kafka has no error of its own for it; in an old format it may be damage to us."""
    return (
        case.their_message.startswith("Unknown compression type id")
        and case.their_class == "IllegalArgumentException"
        and isinstance(case.our_error, (UnsupportedCompressionTypeError, CorruptRecordError))
    )


def old_message_that_ends_early(case):
    """Damage in a message of magic 0 or 1 is told as such, before its fields are judged."""
    if case.we_say(CorruptRecordError, "ends behind it"):
        return case.their_class in (*NO_ROOM, "RecordValidationException")
    # Another message, or the append as a whole, is refused first.
    refused = case.we_say(
        (InvalidRecordError, InvalidTimestampError), "more than one batch", "are refused"
    )
    return case.their_class in NO_ROOM and refused


def headers_keep_their_bytes(case):
    """
    Encoded again by Java, a header is not what it was.

    A key that is not UTF-8 gets U+FFFD, and any negative size of a value becomes -1.
    """
    if case.our_error is not None or case.their_error is not None:
        return False
    free = {"bytes", "logical", "data"}
    return {name: value for name, value in case.theirs.items() if name not in free} == {
        name: value for name, value in case.ours.items() if name not in free
    } and records_as_java_reads_them(case.theirs["data"]) == records_as_java_reads_them(
        case.ours["data"]
    )


def records_as_java_reads_them(data):
    return [
        (
            record.offset,
            record.timestamp,
            record.key,
            record.value,
            [(as_java(name), value) for name, value in record.headers],
        )
        for batch in iterate_batches(data)
        for record in batch.records()
    ]


def as_java(name):
    """A header key whose bytes are not UTF-8: we keep them, Java replaces them."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


CAUSES = (
    damaged_compressed_data,
    records_that_do_not_fill_their_sizes,
    offsets_inside_that_go_back,
    negative_base_offset,
    not_to_be_encoded_again,
    control_batch_is_kept,
    skipped_values,
    empty_batch_is_kept,
    unknown_codec,
    old_message_that_ends_early,
    headers_keep_their_bytes,
)


def deliberate_cause(case):
    """Return the name of the cause of a difference, None if it is not wanted."""
    return next((cause.__name__ for cause in CAUSES if cause(case)), None)
