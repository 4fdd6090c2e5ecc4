"""The offset map: Kafka's semantics, in bounded memory, with a keyed hash."""

from __future__ import annotations

import pytest

from logstore._native import CLEAN_END, CLEAN_FULL, CLEAN_INVALID, siphash128
from logstore.offset_map import BYTES_PER_ENTRY, OffsetMap
from logstore.record import encode_batch

SECRET = bytes(range(16))


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
