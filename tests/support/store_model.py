"""
What a store holds, as dictionaries and lists: the model of ``property/test_store_machine.py``.

Topics with their settings, and for each partition every record that was appended, with the fate of
its transaction.
"""

from __future__ import annotations

MARKER = None


class Fate:
    """A transaction, and how it ended."""

    def __init__(self, handle):
        self.handle = handle
        self.state = "open"
        self.waiting = []  # (topic, partition, key, value): not written yet.
        self.moves = []  # (group, place, offset): the same.
        self.wrote_ms = None  # When it first wrote: its time-out begins then.
        self.has_moves = False  # Positions were written.
        self.ended_ms = None


class Partition:
    """
    Every record of a partition, by offset.

    Attributes:
        entries: Key, value and fate (None: no transaction) of each; MARKER for a control record.
        durable: How many of them no power loss may take.
        start: The log start offset.
        floor: How far the cleaner has come.
        gone: Offsets that a cleaning has removed.
        lost: Offsets that a power loss has taken, or that had been cleaned away and are the newest
            of their keys since newer ones were taken back.
        commits: The transaction of each commit marker, by its offset.
        sequences: Of each idempotent batch: producer, end, the producer's next sequence.
    """

    def __init__(self):
        self.entries = []
        self.durable = self.start = self.floor = 0
        self.gone = set()
        self.lost = set()
        self.commits = {}
        self.is_compacted = False
        self.sequences = []

    def append(self, records, fate=None):
        self.entries += [(key, value, fate) for key, value in records]

    def committed(self, *, open_is_aborted=False):
        """Return what a reader of committed records may see, by offset."""
        found = {}
        for offset, entry in enumerate(self.entries):
            if entry is MARKER:
                continue
            key, value, fate = entry
            if fate is not None and fate.state == "open" and not open_is_aborted:
                break
            if offset >= self.start and (fate is None or fate.state == "committed"):
                found[offset] = (key, value)
        return found

    def check(self, log):
        """Compare with what is read."""
        expected = self.committed()
        found = {record.offset: (record.key, record.value) for record in log}
        self.floor = max(self.floor, log.cleaner_offset or 0)
        if not self.is_compacted:
            assert found == expected, (log, log.config.cleanup_policy)
            return
        assert found.items() <= expected.items()
        assert not found.keys() & self.gone
        newest = {key: offset for offset, (key, _) in expected.items() if offset not in self.lost}
        for offset, (key, value) in expected.items():
            must_be_there = offset not in self.lost and (
                offset >= self.floor
                or (key is not None and newest[key] == offset and value is not None)
            )
            assert offset in found or not must_be_there, offset
        self.gone |= expected.keys() - found.keys()

    def commit_of(self, fate, raw):
        """Return where a transaction's records, of which any is there, were committed, or None."""
        if any(
            offset in raw and entry is not MARKER and entry[2] is fate
            for offset, entry in enumerate(self.entries)
        ):
            return next((at for at, committed in self.commits.items() if committed is fate), None)
        return None

    def cut_to(self, cut, log, raw):
        """Take back what is behind an offset; what is newest now may have been cleaned away."""
        if cut is not None:
            del self.entries[cut:]
        # Offsets before the cut that had been cleaned away may be given out again.
        assert not any(offset in raw for offset in range(log.log_end_offset, len(self.entries)))
        del self.entries[log.log_end_offset :]
        end = len(self.entries)
        self.durable, self.floor = min(self.durable, end), min(self.floor, end)
        self.start = min(self.start, end)
        self.sequences = [each for each in self.sequences if each[1] <= end]
        self.gone = {offset for offset in self.gone if offset < end}
        self.lost = {offset for offset in self.lost if offset < end}
        self.commits = {offset: fate for offset, fate in self.commits.items() if offset < end}
        if self.is_compacted:
            self.lost |= self.committed().keys() - {record.offset for record in log}

    def restart(self, log, *, is_loss):
        """Find what is left; the coordinator may have ended transactions already."""
        raw = {offset: rest for offset, *rest in raw_records(log, log.log_start_offset)}

        def is_kept(offset):
            entry = self.entries[offset]
            if offset not in raw or entry is MARKER or raw[offset][0]:
                return offset in raw and entry is MARKER and raw[offset][0]
            return entry[:2] == tuple(raw[offset][2:4])

        kept = len(self.entries)
        if is_loss:
            assert log.log_start_offset <= self.start
            self.start = log.log_start_offset
            there = [is_kept(offset) for offset in range(self.start, kept)]
            if self.is_compacted:  # What the cleaner took is not there either.
                last = max((n for n, is_there in enumerate(there, 1) if is_there), default=0)
                kept = max(self.durable, self.start + last)
                # Of two segments that were not flushed the later one may be all that is left.
                self.lost |= {offset for offset in range(self.durable, kept) if offset not in raw}
            elif not all(there):
                kept = self.start + there.index(False)
            assert kept >= self.durable
            self.sequences = [each for each in self.sequences if each[1] <= kept]
        assert all(is_kept(offset) for offset in raw if offset < kept)
        assert all(is_control for offset, (is_control, *_) in raw.items() if offset >= kept)
        # Offsets of what was lost are not given out again, if a later segment was there.
        self.entries[kept:] = [MARKER] * (log.log_end_offset - kept)


class Topic:
    """A topic's id, settings and partitions."""

    def __init__(self, topic_id, config, count):
        self.topic_id = topic_id
        self.partitions = [Partition() for _ in range(count)]
        self.configure(config)

    def configure(self, config):
        self.config = config
        self.policy = config.get("cleanup.policy", "delete")
        for partition in self.partitions:
            partition.is_compacted |= "compact" in self.policy

    def grow(self, count):
        self.partitions += [Partition() for _ in range(count - len(self.partitions))]
        self.configure(self.config)


def times_of(log):
    """Yield (offset, timestamp) of every record and marker, whoever may see them."""
    for offset, *_, timestamp in raw_records(log, log.log_start_offset):
        yield offset, timestamp


def raw_records(log, start):
    """Yield (offset, whether it is control, producer id, key, value, timestamp) of each record."""
    end = -1
    while end < start < log.log_end_offset:
        end = start
        found = log.fetch(start, max_bytes=1 << 20, isolation="log_end")
        for batch in found.records.batches():
            for record in batch.records():
                if record.offset >= start:
                    yield (
                        record.offset,
                        batch.is_control,
                        batch.producer_id,
                        record.key,
                        record.value,
                        record.timestamp,
                    )
            start = max(start, batch.last_offset + 1)
