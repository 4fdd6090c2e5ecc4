from __future__ import annotations

import gzip
import random
import struct
import tracemalloc

import cramjam
import pytest

from logstore.compression import (
    DEFAULT_LEVELS,
    LEVELS,
    CompressionType,
    compress,
    decompress,
)
from logstore.errors import CorruptRecordError, UnsupportedCompressionTypeError

NONE, GZIP, SNAPPY, LZ4, ZSTD = CompressionType
CODECS = [GZIP, SNAPPY, LZ4, ZSTD]

# The records section of golden vectors G2 and G3, and what Kafka's encoders made of it.
SECTION = bytes.fromhex(
    "14000000046b310476310010000a0201047632001e000604046b33010402680278026e010c000806000000"
)
GOLDEN = {
    GZIP: "1f8b08000000000000ff1361606060c936642933641060e06262642933629063606361c936666461ca60aa6"
    "0ca63e461e060032a0300b8fad20e2b000000",
    SNAPPY: "82534e415050590000000001000000010000002d2ba8" + SECTION.hex(),
    LZ4: "04224d186040822b000080" + SECTION.hex() + "00000000",
    ZSTD: "28b52ffd0058580100" + SECTION.hex() + "010000",
}

BLOCK = bytes(100) + b"text " * 50
RANDOM = random.Random(3).randbytes(100_000)


def lz4_frame(*parts: bytes, descriptor: str = "604082", end: bytes = bytes(4)) -> bytes:
    return bytes.fromhex("04224d18" + descriptor) + b"".join(parts) + end


def lz4_block(plain: bytes) -> bytes:
    block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
    return struct.pack("<I", len(block)) + block


def zstd_without_size(plain: bytes) -> bytes:
    """A frame as Kafka's streaming writer makes it: no content size."""
    encoder = cramjam.zstd.Compressor(3)
    encoder.compress(plain)
    return bytes(encoder.finish())


class TestCompressionType:
    def test_ids_and_labels_are_kafkas(self):
        """The id is what the attributes of a batch hold."""
        expected = [(0, "none"), (1, "gzip"), (2, "snappy"), (3, "lz4"), (4, "zstd")]
        assert expected == [(codec.value, codec.label) for codec in CompressionType]

    @pytest.mark.parametrize("codec", CompressionType)
    def test_of_takes_labels_ids_and_members(self, codec):
        """All three spellings give the same codec."""
        assert codec is CompressionType.of(codec.label)
        assert codec is CompressionType.of(int(codec))
        assert codec is CompressionType.of(codec)

    def test_uncompressed_is_none(self):
        """The value of compression.type for no codec."""
        assert NONE is CompressionType.of("uncompressed")

    @pytest.mark.parametrize("name", ["brotli", "GZIP", "", 5, 7, -1])
    def test_unknown_codecs_are_refused(self, name):
        """Ids 5 to 7 fit the attribute bits but mean nothing."""
        with pytest.raises(UnsupportedCompressionTypeError, match="unknown compression type"):
            CompressionType.of(name)


class TestRoundTrip:
    @pytest.mark.parametrize("codec", CompressionType)
    @pytest.mark.parametrize(
        "plain",
        [b"", b"a", SECTION, bytes(300_000), RANDOM, b"ab" * 32768, b"ab" * 32769, RANDOM[:65537]],
        ids=["empty", "one", "section", "zeros", "random", "64KiB", "64KiB+2", "random64KiB+1"],
    )
    def test_decompress_undoes_compress(self, codec, plain):
        """At and around the block sizes of snappy and lz4, and for what does not shrink."""
        assert plain == decompress(codec, compress(codec, plain), bytes_max=len(plain))

    @pytest.mark.parametrize("codec", CODECS)
    def test_decompress_reads_what_kafka_wrote(self, codec):
        """Golden vector G3."""
        assert SECTION == decompress(codec, bytes.fromhex(GOLDEN[codec]))

    @pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
    def test_compress_writes_what_kafka_writes(self, codec):
        """Golden vector G3; only zstd differs, as it states the content size."""
        assert GOLDEN[codec] == compress(codec, SECTION).hex()

    @pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
    def test_any_buffer_is_taken(self, wrap):
        """No copy to bytes is needed before."""
        assert b"abc" == decompress(LZ4, wrap(compress(LZ4, wrap(b"abc"))))


class TestLevels:
    @pytest.mark.parametrize(
        ("codec", "level"),
        [(codec, level) for codec in LEVELS for level in (*LEVELS[codec], DEFAULT_LEVELS[codec])],
    )
    def test_bounds_and_defaults_work(self, codec, level):
        """Kafka's ranges of compression.<codec>.level."""
        assert BLOCK == decompress(codec, compress(codec, BLOCK, level))

    @pytest.mark.parametrize(
        ("codec", "level"), [(GZIP, 0), (GZIP, 10), (LZ4, 0), (LZ4, 18), (ZSTD, 23), (SNAPPY, 1)]
    )
    def test_other_levels_are_refused(self, codec, level):
        """Kafka refuses them in the configuration; snappy has no levels."""
        with pytest.raises(ValueError, match="level"):
            compress(codec, BLOCK, level)

    def test_a_higher_level_compresses_better(self):
        """The level reaches the codec."""
        plain = b"".join(b"%d:%d;" % (i % 97, i * i % 89) for i in range(20_000))
        for codec, worst in ((GZIP, 1), (LZ4, DEFAULT_LEVELS[LZ4]), (ZSTD, 1)):
            best = LEVELS[codec][1]
            assert len(compress(codec, plain, best)) < len(compress(codec, plain, worst))


class TestBound:
    @pytest.mark.parametrize("codec", CompressionType)
    @pytest.mark.parametrize("plain", [b"ab" * 100_000, RANDOM], ids=["shrinks", "random"])
    def test_one_byte_too_many_is_refused(self, codec, plain):
        """The bound is exact, and the error names the setting to raise."""
        stored = compress(codec, plain)
        assert plain == decompress(codec, stored, bytes_max=len(plain))
        with pytest.raises(CorruptRecordError, match="decompressed_bytes_max"):
            decompress(codec, stored, bytes_max=len(plain) - 1)

    @pytest.mark.parametrize(
        "stored",
        [
            pytest.param((GZIP, gzip.compress(bytes(50_000_000))), id="gzip"),
            pytest.param((SNAPPY, b"\xff\xff\xff\xff\x0f\0"), id="snappy-raw"),
            pytest.param((SNAPPY, compress(SNAPPY, bytes(20_000_000))), id="snappy"),
            pytest.param((LZ4, compress(LZ4, bytes(50_000_000))), id="lz4"),
            pytest.param((ZSTD, compress(ZSTD, bytes(50_000_000))), id="zstd"),
            pytest.param((ZSTD, zstd_without_size(bytes(50_000_000))), id="zstd-without-size"),
        ],
    )
    def test_a_bomb_is_refused_before_it_is_allocated(self, stored):
        """Peak memory stays near the bound, not near the size."""
        codec, data = stored
        bytes_max = 100_000
        tracemalloc.start()
        try:
            with pytest.raises(CorruptRecordError, match="beyond the bound of 100000 bytes"):
                decompress(codec, data, bytes_max=bytes_max)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 10 * bytes_max

    def test_a_false_zstd_content_size_is_damage(self):
        """A header that declares less than its blocks hold must not pass."""
        stored = bytearray(compress(ZSTD, bytes(300)))
        assert bytes.fromhex("602c00") == stored[4:7]  # Single segment; 300 - 256, little-endian.
        stored[5] -= 1
        with pytest.raises(CorruptRecordError):
            decompress(ZSTD, stored)


class TestGzip:
    def test_members_are_concatenated(self):
        """As RFC 1952 says; each with its own checksum."""
        assert b"ab" == decompress(GZIP, gzip.compress(b"a") + gzip.compress(b"b"))

    def test_bytes_that_start_no_member_are_ignored(self):
        """As in java.util.zip.GZIPInputStream."""
        assert b"a" == decompress(GZIP, gzip.compress(b"a") + b"\0\0\0")

    def test_reserved_flags_are_not_looked_at(self):
        """As in java.util.zip, in every member."""
        member = bytearray(gzip.compress(b"a"))
        member[3] |= 0xE0
        assert b"aa" == decompress(GZIP, member + member)

    @pytest.mark.parametrize("at", [0, 2, 10, -8, -1])
    def test_damage_is_found(self, at):
        """Magic, method, data, CRC-32 and size."""
        stored = bytearray(gzip.compress(BLOCK))
        stored[at] ^= 0xE0
        with pytest.raises(CorruptRecordError, match="damaged gzip data"):
            decompress(GZIP, stored)

    @pytest.mark.parametrize("size", [0, 5, 10, 20, -1])
    def test_an_unfinished_member_is_damage(self, size):
        """Wherever it ends, also in the second member."""
        with pytest.raises(CorruptRecordError, match="ends early"):
            decompress(GZIP, gzip.compress(BLOCK)[:size])
        if size > 3:
            with pytest.raises(CorruptRecordError, match="ends early"):
                decompress(GZIP, gzip.compress(b"a") + gzip.compress(BLOCK)[:size])


class TestSnappy:
    HEADER = bytes.fromhex("82534e41505059000000000100000001")

    @staticmethod
    def chunk(plain: bytes) -> bytes:
        block = bytes(cramjam.snappy.compress_raw(plain))
        return struct.pack(">i", len(block)) + block

    def test_blocks_hold_32_kib(self):
        """40,010 bytes become two chunks, the second with 7,242 bytes (spec 11, G3)."""
        stored = compress(SNAPPY, RANDOM[:40_010])
        first = int.from_bytes(stored[16:20], "big")
        second = stored[16 + 4 + first + 4 :]
        assert 32_768 == cramjam.snappy.decompress_raw_len(stored[20 : 20 + first])
        assert 7_242 == cramjam.snappy.decompress_raw_len(second)

    def test_the_raw_form_is_read(self):
        """Some producers wrote one bare block without the xerial header."""
        assert BLOCK == decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(BLOCK)))

    def test_a_raw_block_that_begins_like_the_header_is_raw(self):
        """Fewer than sixteen bytes cannot be a stream."""
        with pytest.raises(CorruptRecordError, match="damaged snappy"):
            decompress(SNAPPY, self.HEADER[:15])

    def test_other_chunk_sizes_are_read(self):
        """The reader must not assume 32 KiB."""
        stored = self.HEADER + self.chunk(RANDOM) + self.chunk(b"x")
        assert RANDOM + b"x" == decompress(SNAPPY, stored)

    def test_concatenated_streams_are_read(self):
        """A header where a chunk size is expected starts another stream."""
        stored = compress(SNAPPY, b"a") + compress(SNAPPY, b"") + compress(SNAPPY, b"b")
        assert b"ab" == decompress(SNAPPY, stored)

    def test_fewer_than_four_bytes_at_the_end_are_ignored(self):
        """As in snappy-java."""
        assert b"a" == decompress(SNAPPY, compress(SNAPPY, b"a") + b"\0\0\0")

    @pytest.mark.parametrize(
        ("tail", "what"),
        [
            (struct.pack(">i", -1), "a block ends early"),
            (struct.pack(">i", 10) + b"\x05\x10", "a block ends early"),
            (struct.pack(">i", 0), "a block without a size"),
            (struct.pack(">i", 6) + b"\xff" * 6, "a block without a size"),
            (struct.pack(">i", 2) + b"\x05\x00", "corrupt"),
            (HEADER[:12], "a stream header ends early"),
            (HEADER[:8] + bytes(8), "stream version 0"),
        ],
    )
    def test_damage_is_found(self, tail, what):
        """In chunk sizes, blocks and headers further on."""
        with pytest.raises(CorruptRecordError, match=f"damaged snappy data: .*{what}"):
            decompress(SNAPPY, self.HEADER + self.chunk(b"a") + tail)

    def test_the_first_version_is_not_looked_at(self):
        """As in snappy-java, which checks it in later headers only."""
        assert b"a" == decompress(SNAPPY, self.HEADER[:8] + bytes(8) + self.chunk(b"a"))

    def test_nothing_is_damage(self):
        """Even an empty section has a header."""
        with pytest.raises(CorruptRecordError, match="a block without a size"):
            decompress(SNAPPY, b"")


class TestLz4:
    def test_frames_are_what_kafkas_reader_accepts(self):
        """Independent 64 KiB blocks, no checksums, no content size, end mark; one stored raw."""
        stored = compress(LZ4, RANDOM[:65_536] + b"a")
        assert bytes.fromhex("04224d18604082") == stored[:7]
        assert 65_536 | 1 << 31 == int.from_bytes(stored[7:11], "little")
        assert struct.pack("<I", 1 | 1 << 31) + b"a" + bytes(4) == stored[11 + 65_536 :]

    def test_magic_0_has_a_wrong_header_checksum(self):
        """Old clients hashed the magic number too: the check is off for magic 0 only."""
        stored = lz4_frame(lz4_block(b"abc"), descriptor="60401a")
        assert b"abc" == decompress(LZ4, stored, magic=0)
        with pytest.raises(CorruptRecordError, match="wrong header checksum"):
            decompress(LZ4, stored, magic=1)

    def test_short_blocks_are_read(self):
        """One literal; and a block that looks like one with its size before it."""
        assert b"a" == decompress(LZ4, lz4_frame(struct.pack("<I", 2), b"\x10a"))
        assert bytes(4) == decompress(LZ4, lz4_frame(struct.pack("<I", 5), b"\x40" + bytes(4)))
        with pytest.raises(CorruptRecordError, match="decompressionFailed"):
            decompress(LZ4, lz4_frame(struct.pack("<I", 6), b"\x02\0\0\0\x10a"))

    def test_larger_blocks_are_read(self):
        """Block size codes 4 to 7, here 4 MiB."""
        plain = b"0123456789" * 300_000
        encoder = cramjam.lz4.Compressor(level=1, content_checksum=True, block_linked=False)
        encoder.compress(plain)
        assert plain == decompress(LZ4, bytes(encoder.finish()))
        descriptor = b"\x60\x70\x73"
        assert plain == decompress(LZ4, lz4_frame(lz4_block(plain), descriptor=descriptor.hex()))

    def test_block_checksums_are_verified(self):
        """Kafka does not write them, other clients may."""
        encoder = cramjam.lz4.Compressor(level=1, content_checksum=False, block_linked=False)
        encoder.compress(RANDOM)
        stored = bytearray(bytes(encoder.finish()))
        assert 0x70 == stored[4]
        assert RANDOM == decompress(LZ4, stored)
        stored[500] ^= 1
        with pytest.raises(CorruptRecordError, match="blockChecksum"):
            decompress(LZ4, stored)

    def test_content_size_and_content_checksum_are_not_verified(self):
        """As in Kafka: the size is skipped, bytes behind the end mark are not looked at."""
        with_size = lz4_frame(lz4_block(b"abc"), descriptor="6840" + "ff" * 8 + "a7")
        assert b"abc" == decompress(LZ4, with_size)
        with_checksum = lz4_frame(lz4_block(b"abc"), descriptor="6440a7", end=bytes(4) + b"wron")
        assert b"abc" == decompress(LZ4, with_checksum)

    @pytest.mark.parametrize(
        ("stored", "what"),
        [
            (b"", "the frame header ends early"),
            (lz4_frame()[:6], "the frame header ends early"),
            (b"x" + lz4_frame()[1:], "wrong magic number"),
            (lz4_frame(descriptor="604083"), "wrong header checksum"),
            (lz4_frame(descriptor="404082"), "unsupported frame flags 0x40"),
            (lz4_frame(descriptor="614082"), "unsupported frame flags 0x61"),
            (lz4_frame(descriptor="624082"), "unsupported frame flags 0x62"),
            (lz4_frame(descriptor="a04082"), "unsupported frame flags 0xa0"),
            (lz4_frame(descriptor="603082"), "unsupported block descriptor 0x30"),
            (lz4_frame(descriptor="604182"), "unsupported block descriptor 0x41"),
            (lz4_frame(descriptor="60c082"), "unsupported block descriptor 0xc0"),
            (lz4_frame(end=b""), "ended prematurely"),
            (lz4_frame(lz4_block(b"abc"), end=b"\0\0"), "ended prematurely"),
            (lz4_frame(struct.pack("<I", 100), b"x"), "ended prematurely"),
            (lz4_frame(struct.pack("<I", 65_537), bytes(65_537)), "a block of 65537 bytes"),
            (lz4_frame(struct.pack("<I", 3), b"\xf0\xff\xff"), "decompressionFailed"),
        ],
    )
    def test_damage_is_found(self, stored, what):
        """Each field that Kafka's reader checks."""
        with pytest.raises(CorruptRecordError, match=f"damaged lz4 data: .*{what}"):
            decompress(LZ4, stored)

    def test_a_linked_frame_is_refused(self):
        """What general-purpose packages write by default, and Kafka cannot read."""
        with pytest.raises(CorruptRecordError, match="unsupported frame flags"):
            decompress(LZ4, bytes(cramjam.lz4.compress(BLOCK * 1000)))

    def test_a_block_larger_than_its_frame_allows_is_damage(self):
        """The block size is a promise about the decompressed size too."""
        with pytest.raises(CorruptRecordError, match="damaged lz4"):
            decompress(LZ4, lz4_frame(lz4_block(bytes(65_537))))


class TestZstd:
    def test_frames_are_concatenated_and_skippable_ones_skipped(self):
        """As RFC 8878 says."""
        skippable = bytes.fromhex("5f2a4d18") + struct.pack("<I", 3) + b"xyz"
        stored = compress(ZSTD, b"a") + skippable + zstd_without_size(b"b" * 200_000)
        assert b"a" + b"b" * 200_000 == decompress(ZSTD, stored)

    @pytest.mark.parametrize("make", [lambda plain: compress(ZSTD, plain), zstd_without_size])
    def test_unfinished_frames_are_damage(self, make):
        """Wherever they end."""
        stored = make(BLOCK)
        assert b"" == decompress(ZSTD, b"")  # As Kafka: no frame is no damage.
        for size in range(1, len(stored)):
            with pytest.raises(CorruptRecordError, match="damaged zstd data"):
                decompress(ZSTD, stored[:size])

    @pytest.mark.parametrize("tail", [b"x", b"xxxx", bytes(8), bytes.fromhex("502a4d1801000000")])
    def test_bytes_that_are_no_frame_are_damage(self, tail):
        """Kafka's reader fails on them too."""
        with pytest.raises(CorruptRecordError, match="damaged zstd data"):
            decompress(ZSTD, compress(ZSTD, BLOCK) + tail)
