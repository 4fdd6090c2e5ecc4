"""
Every damage of a partition, found by reading it; nothing is written and no lock is taken.

The batches are the truth: indexes, snapshots, epochs and checkpoints are judged against them. One
cause is named once: an index entry or a gap that damage in the segment explains is not named again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logstore import _native
from logstore.errors import LogStoreError
from logstore.index import AbortedTxn, OffsetIndex, TimeIndex, TransactionIndex
from logstore.index_file import RELATIVE_OFFSET_MAX
from logstore.inspection import (
    OFFSET_MAX,
    Damage,
    Part,
    abort_marker,
    reason_of,
    scan_log_file,
    segment_ranges,
)
from logstore.quarantined_offsets import OffsetRange, quarantined_offsets
from logstore.records_builder import CONTROL_FLAG, TRANSACTIONAL_FLAG
from logstore.state_verification import Contents, offset_of, verify_state, was_compacted

ENTRY_BYTES = {".index": 8, ".timeindex": 12, ".txnindex": 34}
_ENTRY = re.compile(r"^(?:\S+: )?entry (\d+): ")


class _Segment(NamedTuple):
    """What a segment's ``.log`` file holds."""

    base_offset: int
    path: Path
    batches: npt.NDArray[Any]
    lost: list[OffsetRange]
    aborted: list[AbortedTxn]


def verify_partition(
    directory: Path, *, advance: Callable[[int], None] = lambda _: None
) -> Iterator[Damage]:
    """
    Yield every damage of one partition directory: segment by segment, then the other files.

    Args:
        directory: A partition directory.
        advance: Told how many bytes of segments were read, for a progress bar.

    Cost: One pass over all segments with CRC; compressed batches are decompressed.
    """
    # Before the segments: beside a live writer the log only grows.
    before = Contents.checkpoints_of(directory)
    ranges = segment_ranges(directory)
    segments: list[_Segment] = []
    open_transactions: dict[int, int] = {}
    for base_offset, path, end_offset in ranges:
        segment = yield from _verify_segment(path, end_offset, open_transactions, advance)
        segments.append(segment)
        yield from _verify_indexes(segment, is_active=end_offset is None)
        assert segment.base_offset == base_offset
    replaced: list[OffsetRange] = []
    for path in sorted(directory.glob("*.log.swap")):
        segment = yield from _verify_segment(path, None, {}, advance)
        replaced.append(_range_of(segment))
    batches = _concatenate([segment.batches for segment in segments])
    lost = [each for segment in segments for each in segment.lost]
    is_compacted = was_compacted(directory, batches)
    if not is_compacted:
        known = [*lost, *replaced, *quarantined_offsets(directory)]
        yield from _verify_gaps({segment.base_offset: segment.path for segment in segments},
                                batches, known)  # fmt: skip
    contents = Contents(
        directory, batches, before,
        bases=[base_offset for base_offset, _, _ in ranges],
        is_complete=not lost and not replaced,
        is_compacted=is_compacted,
    )  # fmt: skip
    yield from verify_state(contents)


def _concatenate(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate([np.empty(0, _native.BATCH_DTYPE), *parts])


def _range_of(segment: _Segment) -> OffsetRange:
    last = segment.batches["last_offset"]
    return OffsetRange(segment.base_offset, int(last[-1]) if len(last) else segment.base_offset)


def _verify_segment(
    path: Path,
    end_offset: int | None,
    open_transactions: dict[int, int],
    advance: Callable[[int], None],
) -> Generator[Damage, None, _Segment]:
    """Yield damages of one ``.log`` file, and return what it holds."""
    base_offset = offset_of(path.name)
    assert base_offset is not None
    found: list[npt.NDArray[Any]] = []
    lost: list[OffsetRange] = []
    aborted: list[AbortedTxn] = []
    damaged_from: int | None = None
    for part in scan_log_file(path, end_offset=end_offset, decompress=True):
        if isinstance(part, Damage):
            advance(part.size_bytes)
            damaged_from = part.offset if damaged_from is None else damaged_from
            yield part
            continue
        if damaged_from is not None:
            lost.append(OffsetRange(damaged_from, int(part.batches["base_offset"][0]) - 1))
            damaged_from = None
        advance(len(part.data))
        found.append(part.batches)
        aborted += _aborted_transactions(part, open_transactions)
        last_offset = int(part.batches["last_offset"][-1])
        if last_offset - base_offset > RELATIVE_OFFSET_MAX:
            yield Damage(
                path, part.position, len(part.data), last_offset, "order",
                f"offset {last_offset} is more than 2^31 - 1 above the segment's base offset",
            )  # fmt: skip
    if damaged_from is not None:
        end = OFFSET_MAX if end_offset is None else end_offset - 1
        lost.append(OffsetRange(damaged_from, end))
    return _Segment(base_offset, path, _concatenate(found), lost, aborted)


def _aborted_transactions(part: Part, open_transactions: dict[int, int]) -> Iterator[AbortedTxn]:
    """Yield the transactions that a part aborts; ``open_transactions`` goes on with the log."""
    rows = part.batches[(part.batches["attributes"] & TRANSACTIONAL_FLAG) != 0]
    for producer_id, base_offset, attributes, position in zip(
        rows["producer_id"].tolist(),
        rows["base_offset"].tolist(),
        rows["attributes"].tolist(),
        rows["position"].tolist(),
        strict=True,
    ):
        if not attributes & CONTROL_FLAG:
            open_transactions.setdefault(producer_id, base_offset)
            continue
        first_offset = open_transactions.pop(producer_id, None)
        if first_offset is not None and abort_marker(part, position):
            yield AbortedTxn(producer_id, first_offset, base_offset, 0)


# ---- indexes -------------------------------------------------------------------------------------
def _verify_indexes(segment: _Segment, *, is_active: bool) -> Iterator[Damage]:
    for kind in (OffsetIndex, TimeIndex):
        path = segment.path.with_suffix(".index" if kind is OffsetIndex else ".timeindex")
        if not path.exists():
            if len(segment.batches):
                yield Damage(path, 0, 0, segment.base_offset, "index", "the file is missing")
            continue
        index = kind(path, segment.base_offset, writable=False)
        try:
            problems = list(index.check(segment.batches, allow_padding=is_active))
            if segment.lost and problems:
                column = 0 if kind is OffsetIndex else 1
                offsets = index.entries()[:, column].tolist()
                problems = [each for each in problems if not _is_lost(each, offsets, segment.lost)]
        except LogStoreError as error:
            problems = [reason_of(error, path)]
        finally:
            index.close_handler()
        yield from _index_damage(path, problems, segment.base_offset)
    yield from _verify_transaction_index(segment)


def _verify_transaction_index(segment: _Segment) -> Iterator[Damage]:
    path = segment.path.with_suffix(".txnindex")
    index = TransactionIndex(path, segment.base_offset)
    problems: list[str] = []
    entries: list[AbortedTxn] = []
    try:
        if path.exists():
            problems += index.check()
            entries = index.all_aborted_txns()
            index.sanity_check()
    except LogStoreError as error:
        problems.append(reason_of(error, path))
    finally:
        index.close()
    flags = segment.batches["attributes"]
    markers = set(segment.batches["last_offset"][(flags & CONTROL_FLAG) != 0].tolist())
    offsets = [entry.last_offset for entry in entries]
    problems += [
        f"entry {number}: offset {offset} is no marker's"
        for number, offset in enumerate(offsets)
        if offset not in markers
    ]
    problems = [each for each in problems if not _is_lost(each, offsets, segment.lost)]
    if not problems:
        missing = [each for each in segment.aborted if each.last_offset not in offsets]
        if missing:
            reason = (
                f"the transaction of producer {missing[0].producer_id} aborted at offset"
                f" {missing[0].last_offset} is not in it"
            )
            problems = [reason if path.exists() else f"the file is missing: {reason}"]
    yield from _index_damage(path, problems, segment.base_offset)


def _is_lost(problem: str, offsets: list[int], lost: list[OffsetRange]) -> bool:
    """Return whether an entry is about offsets that damage in the segment has taken."""
    entry = _ENTRY.match(problem)
    if entry is None or int(entry[1]) >= len(offsets):
        return False
    offset = offsets[int(entry[1])]
    return any(each.first <= offset <= each.last for each in lost)


def _index_damage(path: Path, problems: list[str], base_offset: int) -> Iterator[Damage]:
    """Yield one damage for a file: its first problem, and how many more there are."""
    if not problems:
        return
    entries = [int(found[1]) for found in map(_ENTRY.match, problems) if found is not None]
    entry_bytes = ENTRY_BYTES[path.suffix]
    first = min(entries, default=0)
    size = (max(entries) - first + 1) * entry_bytes if entries else 0
    if not entries and path.exists():
        first, size = divmod(path.stat().st_size, entry_bytes)  # Ends inside an entry.
    reason = next(
        (each for each in problems if (found := _ENTRY.match(each)) and int(found[1]) == first),
        problems[0],
    ).removeprefix(f"{path.name}: ")
    if len(problems) > 1:
        reason += f" (and {len(problems) - 1} more)"
    yield Damage(path, first * entry_bytes, size, base_offset, "index", reason)


# ---- gaps ----------------------------------------------------------------------------------------
def _verify_gaps(
    paths: dict[int, Path], batches: npt.NDArray[Any], known: list[OffsetRange]
) -> Iterator[Damage]:
    """Yield offset gaps before v2 batches; a legacy entry does not tell its first offset."""
    expected = batches["last_offset"][:-1] + 1
    gaps = np.flatnonzero((batches["base_offset"][1:] > expected) & (batches["magic"][1:] == 2))
    bases = sorted(paths)
    for slot in gaps.tolist():
        row = batches[slot + 1]
        first, last = int(expected[slot]), int(row["base_offset"]) - 1
        if any(each.first <= first and last <= each.last for each in known):
            continue
        base = bases[int(np.searchsorted(bases, int(row["base_offset"]), "right")) - 1]
        yield Damage(
            paths[base], int(row["position"]), 0, first, "gap",
            f"offsets {first} to {last} are missing, and the log shows no sign of compaction",
        )  # fmt: skip
