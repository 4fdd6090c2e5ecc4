"""The offset map: Kafka's semantics, in bounded memory, with a keyed hash."""

from __future__ import annotations

import os
from random import Random

import numpy as np
import pytest

from logstore._native import (
    CLEAN_END,
    CLEAN_FULL,
    CLEAN_INVALID,
    OFFSET_MAP_ENTRY_BYTES,
    Pieces,
    RecordFilter,
    crc32c,
    siphash128,
)
from logstore.files import REAL_FILES
from logstore.offset_map import BYTES_PER_ENTRY, OffsetMap
from logstore.record import encode_batch
from logstore.timestamp_type import TimestampType

SECRET = bytes(range(16))
REACH = 2**40 - 1


class TestHash:
    @pytest.mark.parametrize(
        ("size", "expected"),
        [
            (0, "a3817f04ba25a8e66df67214c7550293"),
            (1, "da87c1d86b99af44347659119b22fc45"),
            (2, "8177228da4a45dc7fca38bdef60affe4"),
            (3, "9c70b60c5267a94e5f33b6b02985ed51"),
        ],
    )
    def test_vectors_of_the_reference(self, size, expected):
        """SipHash-2-4-128 of 0, 1, 2, … under the key 0..15: the authors' test vectors."""
        assert expected == siphash128(SECRET, bytes(range(size))).hex()

    def test_every_size_reads_its_own_bytes(self):
        """A byte behind the key changes nothing, and each byte of it does."""
        for size in range(1, 40):
            data = bytes(range(size))
            expected = siphash128(SECRET, data)
            assert expected == siphash128(SECRET, memoryview(data + b"\xff" * 9)[:size])
            for at in range(size):
                changed = bytearray(data)
                changed[at] ^= 1
                assert expected != siphash128(SECRET, changed)


class TestOffsetMap:
    def test_last_offset_of_each_key(self):
        """A later offset takes the place of the one before; a key that is not there is -1."""
        offset_map = OffsetMap(100 * BYTES_PER_ENTRY)
        offset_map.put(b"a", 0)
        offset_map.put(b"", 1)
        offset_map.put(b"a", 7)

        assert (7, 1, -1) == tuple(offset_map.get(key) for key in (b"a", b"", b"b"))
        assert (2, 7) == (len(offset_map), offset_map.latest_offset)
        assert 0.02 == offset_map.utilization

    @pytest.mark.parametrize("memory", [24_000, 24_023, 48])
    def test_slots_and_load_factor_are_kafkas(self, memory):
        """24 bytes a slot, rounded down, and of them the load factor, rounded down."""
        offset_map = OffsetMap(memory, 0.9)

        assert memory // 24 == offset_map.slots
        assert int(memory // 24 * 0.9) == offset_map.entries_max

    def test_every_slot_can_be_taken(self):
        """Nothing is lost on the way to a full map, and then nothing new fits."""
        offset_map = OffsetMap(1000 * BYTES_PER_ENTRY)
        for number in range(1000):
            offset_map.put(b"key %d" % number, number)

        assert list(range(1000)) == [offset_map.get(b"key %d" % number) for number in range(1000)]
        offset_map.put(b"key 1", 1001)  # It is there.
        assert -1 == offset_map.get(b"another")
        with pytest.raises(ValueError, match="no slot left"):
            offset_map.put(b"another", 1002)

    def test_clear(self):
        """A map is empty again, and as large as before."""
        offset_map = OffsetMap(100 * BYTES_PER_ENTRY)
        offset_map.put(b"a", 5)
        offset_map.clear()

        assert (0, -1, -1) == (len(offset_map), offset_map.latest_offset, offset_map.get(b"a"))

    @pytest.mark.parametrize(("memory", "load_factor"), [(0, 0.9), (24, 0.9), (1000, 1.1)])
    def test_impossible_sizes(self, memory, load_factor):
        """Room for two keys at least, and no more than all slots."""
        with pytest.raises(ValueError):
            OffsetMap(memory, load_factor)


class TestBatches:
    def batch(self, keys, base_offset=0, **fields):
        rows = [(None, 0, key, b"v", ()) for key in keys]
        return encode_batch(rows, base_offset=base_offset, **fields)

    def test_records_of_batches(self):
        """Keys and offsets are the records', from the first dirty one on; null keys have none."""
        data = self.batch([b"a", b"b", None]) + self.batch([b"a", b"c"], 10, last_offset=19)
        offset_map = OffsetMap(2400)
        mapped = offset_map.map_batches(data, 1)

        assert (len(data), 5, 1, CLEAN_END) == mapped
        assert [10, 1, 11] == [offset_map.get(key) for key in (b"a", b"b", b"c")]
        assert 19 == offset_map.latest_offset

    def test_a_full_map_stops_inside_a_batch(self):
        """What was put is what the map says: records behind it are in the next round."""
        data = self.batch([b"%d" % number for number in range(100)])
        offset_map = OffsetMap(11 * 24, 0.9)
        mapped = offset_map.map_batches(data, 0)

        assert (0, 9, 0, CLEAN_FULL) == mapped
        assert (9, 8) == (len(offset_map), offset_map.latest_offset)

    def test_damage_is_not_believed(self):
        """A flipped bit in a key would make another key's record go."""
        data = bytearray(self.batch([b"a"]))
        data[-3] ^= 1

        assert CLEAN_INVALID == OffsetMap(2400).map_batches(data, 0).stop

    @pytest.mark.parametrize("count", [1, 7, 8, 9, 31, 33, 200])
    def test_many_keys_are_hashed_as_one(self, count):
        """Keys of any sizes side by side, some missing, are found again one by one."""
        random = Random(count)
        sizes = [random.choice([0, 1, 7, 8, 9, 15, 16, 17, 40, 300, None]) for _ in range(count)]
        keys = [None if size is None else random.randbytes(size) for size in sizes]
        offset_map = OffsetMap(10_000)
        offset_map.map_batches(self.batch(keys), 0)

        last = {key: offset for offset, key in enumerate(keys)}
        for key, offset in last.items():
            if key is not None:
                assert offset == offset_map.get(key)
        assert len(last) - (None in last) == len(offset_map)

    @pytest.mark.parametrize("count", [1, 2, 8])
    def test_short_keys_are_themselves(self, count):
        """Keys of up to 8 bytes that differ in their size or in one bit are never one."""
        keys = [b"\0" * size for size in range(11)]
        keys += [
            (1 << bit).to_bytes(size, "little") for size in range(1, 10) for bit in range(8 * size)
        ]
        offset_map = OffsetMap(24_000)
        for first in range(0, len(keys), count):
            offset_map.map_batches(self.batch(keys[first : first + count], first), 0)

        assert list(range(len(keys))) == [offset_map.get(key) for key in keys]
        assert -1 == offset_map.get(b"\0" * 12)

    @pytest.mark.parametrize("step", [1, 256, 2**32, 2**56])
    def test_numbers_spread_over_slots(self, step):
        """Keys that are numbers, one after the other, are found as fast as others."""
        offset_map = OffsetMap(24 * 2000)
        count = min(1000, 2**64 // step)
        keys = [(number * step).to_bytes(8, "big") for number in range(count)]
        offset_map.map_batches(self.batch(keys), 0)

        taken = np.flatnonzero(offset_map._entries.reshape(-1, 2)[:, 1])
        runs = np.split(taken, np.flatnonzero(np.diff(taken) > 1) + 1)
        assert count == len(taken)
        assert max(len(run) for run in runs) < 60

    def test_memory(self):
        """Slots, and what is noted of offsets, take what Kafka's slots of 24 bytes do."""
        offset_map = OffsetMap(24_000)
        offset_map.clear(0, 2**62)

        assert 1000 == offset_map.slots
        assert 24_000 == offset_map.slots * OFFSET_MAP_ENTRY_BYTES + offset_map.noted_offsets // 8
        for noted in (0, 1000, 63_000):
            offset_map.clear(0, noted)
            arrays = (offset_map._entries, offset_map._superseded, offset_map._stretches)
            assert 24_000 >= sum(array.nbytes for array in arrays) > 23_900

    def test_few_offsets_take_few_slots(self):
        """A short round touches little memory; each of its offsets may be another key's."""
        offset_map = OffsetMap(24_000)
        offset_map.clear(70, 170)
        assert 200 * OFFSET_MAP_ENTRY_BYTES == offset_map._entries.nbytes

        mapped = offset_map.map_batches(self.batch([b"%d" % n for n in range(100)], 70), 70)
        assert (100, CLEAN_END) == (mapped.records_read, mapped.stop)
        assert (1000, 900, 100, 169) == (
            offset_map.slots,
            offset_map.entries_max,
            offset_map.size,
            offset_map.get(b"99"),
        )

    def test_offsets_out_of_reach(self):
        """One that is 2^40 above the base is for the next round, if there was anything in this."""
        far = REACH + 5
        offset_map = OffsetMap(2400)
        data = self.batch([b"a", b"b"], 5) + self.batch([b"c"], far)
        mapped = offset_map.map_batches(data, 0)
        assert (CLEAN_FULL, 6) == (mapped.stop, offset_map.latest_offset)

        offset_map.clear(7)
        assert CLEAN_END == offset_map.map_batches(self.batch([b"c", b"a"], 2 * far), 7).stop
        assert (2 * far, 2 * far + 1) == (offset_map.get(b"c"), offset_map.get(b"a"))
        assert not offset_map.has_room(2 * far + REACH)
        assert offset_map.has_room(2 * far + REACH - 1)


class TestSuperseded:
    """What the map notes of offsets says the same as a second look at the keys."""

    def clean(self, data, *, noted, start_offset=0, memory=24_000, now_ms=0):
        """Return what was cleaned, and the bytes that stay."""
        offset_map = OffsetMap(memory)
        offset_map.clear(start_offset, start_offset + 1000)
        offset_map._struct.superseded_count = min(offset_map.noted_offsets, noted)
        offset_map.map_batches(data, start_offset)
        keep = RecordFilter(offset_map, now_ms=now_ms, delete_horizon=99, kept_ends=[])
        out = bytearray(2 * len(data) + 1000)
        cleaned = keep.clean_batches(data, out)
        return cleaned, bytes(out[: cleaned.bytes_written])

    def log(self, random, *, nulls=False):
        """Batches of all kinds, with gaps, of which some were cleaned before."""
        data, offset = b"", 0
        keys = [b"a", b"bb", b"c" * 20, b"d" * 8, *([None] if nulls else [])]
        for _ in range(12):
            rows = []
            for delta in sorted(random.sample(range(20), random.randint(1, 8))):
                value = random.choice([b"v", b"v" * 200, None])
                timestamp = random.randint(1, 9)
                rows.append((offset + delta, timestamp, random.choice(keys), value, ()))
            data += encode_batch(
                rows,
                base_offset=offset,
                last_offset=random.randint(rows[-1][0], offset + 25),
                timestamp_type=random.choice(
                    [TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME]
                ),
                log_append_time=7,
                delete_horizon=random.choice([-1, 5]),
            )
            offset += random.randint(26, 40)
        return data

    @pytest.mark.parametrize("seed", range(20))
    def test_says_what_the_keys_say(self, seed):
        """Whether all of the log was noted, the first of it, or nothing; all of it dirty or not."""
        random = Random(seed)
        data = self.log(random)
        for start_offset in (0, random.randrange(400)):
            for memory in (24_000, 96):  # And where the map is full soon.
                arguments = {"start_offset": start_offset, "memory": memory, "now_ms": seed % 10}
                expected = self.clean(data, noted=0, **arguments)
                if (start_offset, memory) == (0, 24_000):
                    assert expected[0].records_retained < expected[0].records_read
                for noted in (1000, random.randrange(400)):
                    assert expected == self.clean(data, noted=noted, **arguments)

    def test_records_without_a_key_are_counted(self):
        """They go, and nothing that was noted would say that they had none."""
        data = self.log(Random(1), nulls=True)
        cleaned, kept = self.clean(data, noted=1000)

        assert cleaned.records_invalid > 0
        assert (cleaned, kept) == self.clean(data, noted=0)

    @staticmethod
    def sealed(batch):
        """Return a batch that was changed, with the CRC of what it is now."""
        return bytes(batch[:17]) + crc32c(batch[21:]).to_bytes(4, "big") + bytes(batch[21:])

    def test_an_offset_beyond_its_batch_is_not_noted(self):
        """It is another batch's record, too, whose key does not come again."""
        stray = bytearray(encode_batch([(0, 0, b"x", b"v", ()), (5, 0, b"a", b"v", ())]))
        stray[23:27] = bytes(4)  # The last offset delta.
        data = self.sealed(stray) + encode_batch([(5, 0, b"b", b"v", ())], base_offset=1)
        data += encode_batch([(9, 0, b"a", b"v", ())], base_offset=9)
        cleaned, kept = self.clean(data, noted=100)

        assert 3 == cleaned.records_retained
        assert (cleaned, kept) == self.clean(data, noted=0)

    def test_an_offset_below_its_batch_is_not_noted(self):
        """The record behind it has the batch's first offset, and its key comes again."""
        stray = bytearray(
            encode_batch([(5, 0, b"b", b"v", ()), (6, 0, b"a", b"v", ())], base_offset=5)
        )
        first, second = 61 + 3, 61 + 1 + stray[61] // 2 + 3
        assert (0, 2) == (stray[first], stray[second])  # The offset deltas 0 and 1.
        stray[first], stray[second] = 1, 0  # And now -1 and 0.
        data = self.sealed(stray) + encode_batch([(9, 0, b"a", b"v", ())], base_offset=9)
        cleaned, kept = self.clean(data, noted=100)

        assert 2 == cleaned.records_retained
        assert (cleaned, kept) == self.clean(data, noted=0)

    def test_offsets_that_do_not_ascend_are_not_noted(self):
        """A record is superseded by a greater offset, not by one that is read later."""
        data = b"".join(
            encode_batch([(offset, 0, b"a", b"v", ())], base_offset=offset) for offset in (7, 3, 8)
        )
        offset_map = OffsetMap(2400)
        offset_map.clear(0, 100)
        offset_map.map_batches(data, 0)

        assert 0 == offset_map.noted_offsets
        assert self.clean(data, noted=0) == self.clean(data, noted=100)


class TestPieces:
    """What C reads of a file by itself, piece by piece."""

    @staticmethod
    def noting():
        """Return a map that knows small stretches of a file."""
        offset_map = OffsetMap(24_000)
        offset_map.clear(0, 1000)
        offset_map._struct.stretch_bytes = 200
        return offset_map

    @staticmethod
    def mapped(path, offset_map, *, size=1000, segment=0, start_offset=0):
        """Put the batches of a file into a map, and return its pieces."""
        fd = REAL_FILES.open(path, os.O_RDONLY)
        try:
            end = path.stat().st_size
            pieces = Pieces(REAL_FILES, fd, 0, end, memoryview(bytearray(size)), 1000, segment)
            offset_map.map_file(pieces, start_offset)
        finally:
            REAL_FILES.close(fd)
        return pieces

    @staticmethod
    def cleaned(path, offset_map, *, kept_ends=(), size=1000, segment=0):
        """Return what was cleaned of a file, the bytes that stay, and the pieces."""
        keep = RecordFilter(offset_map, now_ms=0, delete_horizon=99, kept_ends=[*kept_ends])
        out = bytearray(2 * path.stat().st_size + 10_000)
        fd = REAL_FILES.open(path, os.O_RDONLY)
        try:
            end = path.stat().st_size
            pieces = Pieces(REAL_FILES, fd, 0, end, memoryview(bytearray(size)), 1000, segment)
            found = keep.clean_file(pieces, out)
        finally:
            REAL_FILES.close(fd)
        return found, bytes(out[: found.bytes_written]), pieces

    def whole(self, data, **arguments):
        """Return what is cleaned of bytes in memory, and what stays of them."""
        offset_map = OffsetMap(24_000)
        offset_map.clear(0, 1000)
        offset_map.map_batches(data, 0)
        keep = RecordFilter(offset_map, now_ms=0, delete_horizon=99, **arguments)
        out = bytearray(2 * len(data))
        found = keep.clean_batches(data, out)
        return found, bytes(out[: found.bytes_written])

    def test_batches_that_go_as_a_whole_are_not_read_again(self, tmp_path):
        """They are counted; damage in them, since they were checked, does no harm any more."""
        data = b"".join(self.BATCHES)
        path = tmp_path / "log"
        path.write_bytes(data)
        offset_map = self.noting()
        pieces = self.mapped(path, offset_map)
        assert len(data) <= pieces.bytes_read

        damaged = bytearray(data)
        damaged[len(self.BATCHES[0]) - 1] ^= 1
        path.write_bytes(damaged)
        found, kept, pieces = self.cleaned(path, offset_map)
        assert (found, kept) == self.whole(data, kept_ends=[])
        assert (len(data), 100) == (found.bytes_read, found.records_read)
        assert len(b"".join(self.BATCHES[-2:])) == pieces.bytes_read  # Keys are 0 to 6.

    def test_batches_that_stay_without_records_are_read(self, tmp_path):
        """The last one of a producer, and what is in a stretch with it."""
        data = b"".join(self.BATCHES)
        path = tmp_path / "log"
        path.write_bytes(data)
        for kept_ends in ([4], [49, 64], [94], [99]):
            offset_map = self.noting()
            self.mapped(path, offset_map)
            found, kept, _ = self.cleaned(path, offset_map, kept_ends=kept_ends)

            assert (found, kept) == self.whole(data, kept_ends=kept_ends)

    @pytest.mark.parametrize("size", [260, 1000])
    @pytest.mark.parametrize("memory", [240, 480, 24_000])
    @pytest.mark.parametrize("seed", range(6))
    def test_whatever_is_passed(self, tmp_path, seed, memory, size):
        """Several files, gaps, and little memory for stretches: what stays is the same."""
        random = Random(seed)
        paths, contents, offset = [], [], 0
        for number in range(3):
            data = b""
            for _ in range(30):
                offset += random.choice([0, 0, 0, 3])
                count = random.randint(1, 9)
                rows = [
                    (offset + delta, 0, b"%d" % random.randrange(3 + 5 * number), b"v" * 9, ())
                    for delta in range(count)
                ]
                data += encode_batch(rows, base_offset=offset)
                offset += count
            contents.append(data)
            paths.append(tmp_path / str(number))
            paths[-1].write_bytes(data)

        expected, passing = OffsetMap(24_000), self.noting()
        passing._struct.stretches_max = min(memory // 40, passing._struct.stretches_max)
        for number, (path, data) in enumerate(zip(paths, contents, strict=True)):
            expected.map_batches(data, 0)
            self.mapped(path, passing, size=size, segment=number)
        ends = [random.randrange(offset) for _ in range(3)]
        keep = RecordFilter(expected, now_ms=0, delete_horizon=99, kept_ends=ends)
        read = 0
        for number, (path, data) in enumerate(zip(paths, contents, strict=True)):
            out = bytearray(2 * len(data))
            found = keep.clean_batches(data, out)
            mine = self.cleaned(path, passing, kept_ends=ends, size=size, segment=number)
            assert (found, bytes(out[: found.bytes_written])) == mine[:2]
            read += mine[2].bytes_read
        assert passing._struct.stretch_count <= passing._struct.stretches_max
        if memory == 24_000 and size == 1000:
            assert read < sum(map(len, contents))

    BATCHES = tuple(
        encode_batch(
            [(offset + n, 0, b"%d" % ((offset + n) % 7), b"v" * 20, ()) for n in range(5)],
            base_offset=offset,
        )
        for offset in range(0, 100, 5)
    )

    def walked(self, path, size, end=None):
        """Return the map of a file's batches, what stays of them, and where the walks stopped."""
        files = REAL_FILES
        offset_map = OffsetMap(24_000)
        offset_map.clear(0, 1000)
        keep = RecordFilter(offset_map, now_ms=0, delete_horizon=99, kept_ends=[])
        out = bytearray(10_000)
        fd = files.open(path, os.O_RDONLY)
        try:
            end = path.stat().st_size if end is None else end
            mapped = Pieces(files, fd, 0, end, memoryview(bytearray(size)), 1000)
            offset_map.map_file(mapped, 0)
            cleaned = Pieces(files, fd, 0, end, memoryview(bytearray(size)), 1000)
            found = keep.clean_file(cleaned, out)
        finally:
            files.close(fd)
        assert (mapped.position, mapped.held) == (cleaned.position, cleaned.held)
        return offset_map, bytes(out[: found.bytes_written]), found, mapped

    @pytest.mark.parametrize("size", [260, 261, 300, 1000, 100_000])
    def test_wherever_a_piece_ends(self, tmp_path, size):
        """Inside a batch as well: what is in the map, and what stays, is the same."""
        data = b"".join(self.BATCHES)
        (tmp_path / "log").write_bytes(data)
        offset_map, kept, found, pieces = self.walked(tmp_path / "log", size)

        expected = OffsetMap(24_000)
        expected.clear(0, 1000)
        expected.map_batches(data, 0)
        keep = RecordFilter(expected, now_ms=0, delete_horizon=99, kept_ends=[])
        out = bytearray(10_000)
        assert found == keep.clean_batches(data, out)
        assert kept == bytes(out[: found.bytes_written])
        assert (7, 99) == (len(offset_map), offset_map.latest_offset)
        assert (len(data), b"") == (pieces.position, pieces.held)

    def test_what_is_left_is_in_memory(self, tmp_path):
        """A batch that C cannot judge, and what was read behind it."""
        special = encode_batch([(50, 0, b"a", b"v", ())], base_offset=50, is_control=True)
        data = b"".join(self.BATCHES[:3]) + special + self.BATCHES[11]
        (tmp_path / "log").write_bytes(data)
        *_, pieces = self.walked(tmp_path / "log", 100_000)

        assert len(b"".join(self.BATCHES[:3])) == pieces.position
        assert special + self.BATCHES[11] == pieces.held

    def test_a_cut_file(self, tmp_path):
        """The batch that is cut is held; of a piece that is not whole, nothing is."""
        data = b"".join(self.BATCHES)[:-1]
        (tmp_path / "log").write_bytes(data)
        *_, pieces = self.walked(tmp_path / "log", 1000)
        assert data[pieces.position :] == pieces.held
        assert len(self.BATCHES[-1]) - 1 == len(pieces.held)

        *_, pieces = self.walked(tmp_path / "log", 100_000, end=len(data) + 1)
        assert (0, b"") == (pieces.position, pieces.held)
