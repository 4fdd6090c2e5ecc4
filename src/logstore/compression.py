"""
The codecs of a record batch: gzip, snappy, lz4 and zstd, framed as Kafka frames them.

======  ======  =====================================================================
id      name    stored form of the records section
======  ======  =====================================================================
0       none    as it is
1       gzip    RFC 1952 members
2       snappy  16-byte xerial header, then (i32 size, raw snappy block) pairs
3       lz4     an LZ4 frame of independent blocks
4       zstd    RFC 8878 frames
======  ======  =====================================================================

The id is the low three bits of a batch's attributes. The CRC of a batch covers the compressed
form, so what arrives here from a log is as a rule what a producer made; it is still untrusted. A
decompressed size beyond ``bytes_max`` is refused before memory of that size is asked for: from
the sizes that blocks and frames declare or can at most have, else by a decoder that stops there.

The codecs themselves come from zlib and cramjam. The framing is here, because Kafka's readers
refuse frames that general-purpose packages write (linked LZ4 blocks, official snappy frames), and
because the packages do not check all that Kafka checks.

Source: Kafka ``Compression``, ``CompressionType``, ``Lz4BlockInputStream``; snappy-java
``SnappyInputStream``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

import cramjam
import numpy as np

from logstore._native import Buffer, view_of
from logstore.errors import CorruptRecordError, UnsupportedCompressionTypeError
from logstore.large_memory import LARGE_BYTES, LargeMemory, room_for

# What a batch may decompress to unless the caller says otherwise: the default of the setting
# decompressed.bytes.max. Kafka has no bound and runs out of memory instead.
DECOMPRESSED_BYTES_MAX: Final = 256 << 20


class CompressionType(IntEnum):
    """
    A codec, by its id in the attributes of a batch.

    Source: Kafka ``CompressionType``.
    """

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def label(self) -> str:
        """Kafka's name of the codec: ``none``, ``gzip``, ``snappy``, ``lz4``, ``zstd``."""
        return self.name.lower()

    @classmethod
    def of(cls, name: str | int | CompressionType) -> CompressionType:
        """
        Return the codec with this name (``uncompressed`` is ``none``) or id.

        Raises:
            UnsupportedCompressionTypeError: There is none.
        """
        if isinstance(name, int):
            return cls.for_id(name)
        found = _BY_NAME.get(name)
        if found is None:
            message = f"unknown compression type {name!r}; use one of {', '.join(_BY_NAME)}"
            raise UnsupportedCompressionTypeError(message)
        return found

    @classmethod
    def for_id(cls, codec_id: int) -> CompressionType:
        """
        Return the codec with this id.

        Raises:
            UnsupportedCompressionTypeError: Ids 5 to 7 are not assigned.
        """
        if not 0 <= codec_id < len(_BY_ID):
            message = f"unknown compression type id {codec_id}; a newer client wrote this batch"
            raise UnsupportedCompressionTypeError(message)
        return _BY_ID[codec_id]


_BY_ID: Final = tuple(CompressionType)
_BY_NAME: Final = {codec.label: codec for codec in CompressionType} | {
    "uncompressed": CompressionType.NONE
}
assert [codec.value for codec in _BY_ID] == list(range(len(_BY_ID)))

# Kafka's ranges and defaults of compression.<codec>.level.
LEVELS: Final[dict[CompressionType, tuple[int, int]]] = {
    CompressionType.GZIP: (1, 9),
    CompressionType.LZ4: (1, 17),
    CompressionType.ZSTD: (-131072, 22),
}
DEFAULT_LEVELS: Final[dict[CompressionType, int]] = {
    CompressionType.GZIP: -1,
    CompressionType.LZ4: 9,
    CompressionType.ZSTD: 3,
}


def compress(codec: CompressionType, data: Buffer, level: int | None = None) -> bytes:
    """
    Return ``data`` in the stored form of ``codec``, which Kafka's clients and brokers read.

    Args:
        codec: The codec; ``NONE`` copies.
        data: A records section.
        level: Kafka's ``compression.<codec>.level``; None is the codec's default.

    Raises:
        ValueError: The level is outside Kafka's range, or the codec has no levels.
    """
    check_level(codec, level)
    view = view_of(data)
    if codec is CompressionType.NONE:
        return view.tobytes()
    if level is None:
        level = DEFAULT_LEVELS.get(codec, 0)
    return _COMPRESS[codec](view, level)


def decompress(
    codec: CompressionType,
    data: Buffer,
    *,
    magic: int = 2,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
    large_memory: LargeMemory | None = None,
) -> bytes | memoryview:
    """
    Return what was compressed, at most ``bytes_max`` bytes.

    Args:
        codec: The codec; ``NONE`` copies.
        data: The stored form.
        magic: Of the batch: LZ4 frames in magic 0 carry a wrong header checksum, by convention.
        bytes_max: Bound of the result.
        large_memory: For a result that is very large, a view then; None: ordinary memory.

    Raises:
        CorruptRecordError: The data is damaged, or decompresses to more than ``bytes_max`` bytes.
    """
    assert 0 <= magic <= 2
    assert bytes_max >= 0
    view = view_of(data)
    if codec is CompressionType.NONE:
        _check_bound(codec, len(view), bytes_max)
        return view.tobytes()
    if codec is CompressionType.LZ4:
        result = _decompress_lz4(view, bytes_max, large_memory, check_header=magic > 0)
    else:
        result = _DECOMPRESS[codec](view, bytes_max, large_memory)

    assert len(result) <= bytes_max
    return result


def check_level(codec: CompressionType, level: int | None) -> None:
    """Raise ValueError unless ``level`` is None or in Kafka's range for ``codec``."""
    if level is None:
        return
    if codec not in LEVELS:
        message = f"{codec.label} has no compression levels; leave the level out"
        raise ValueError(message)
    low, high = LEVELS[codec]
    if not low <= level <= high and level != DEFAULT_LEVELS[codec]:
        message = f"{codec.label} level {level} is outside [{low}, {high}]"
        raise ValueError(message)


def _damaged(codec: CompressionType, what: object) -> CorruptRecordError:
    return CorruptRecordError(
        f"damaged {codec.label} data: {what}; run logstore verify on the directory"
    )


def _check_bound(codec: CompressionType, size_bytes: int, bytes_max: int) -> None:
    if size_bytes > bytes_max:
        raise _too_large(codec, size_bytes, bytes_max)


def _too_large(
    codec: CompressionType, size_bytes: int | None, bytes_max: int
) -> CorruptRecordError:
    size = "" if size_bytes is None else f" of {size_bytes} bytes"
    return CorruptRecordError(
        f"a {codec.label} records section{size} is beyond the bound of {bytes_max} bytes; "
        "raise decompressed_bytes_max to read it"
    )


# ---- gzip ----------------------------------------------------------------------------------------

# No name, no time, no extra flags; operating system 255, unknown, as current JDKs write.
_GZIP_HEADER: Final = bytes.fromhex("1f8b08000000000000ff")
_GZIP_FLAGS_AT: Final = 3
_GZIP_RESERVED_FLAGS: Final = 0xE0
_GZIP_TRAILER: Final = struct.Struct("<II")  # CRC-32 and size modulo 2^32.
_RAW_DEFLATE: Final = -15  # zlib's wbits: no header, 32 KiB window.
_GZIP_MEMBER: Final = 31
_GZIP_PIECE_BYTES: Final = 16 << 10  # Which is 16 MiB at most: zlib makes 1032 bytes of one.


def _compress_gzip(data: memoryview, level: int) -> bytes:
    encoder = zlib.compressobj(level, zlib.DEFLATED, _RAW_DEFLATE)
    trailer = _GZIP_TRAILER.pack(zlib.crc32(data), len(data) & 0xFFFF_FFFF)
    return b"".join((_GZIP_HEADER, encoder.compress(data), encoder.flush(), trailer))


def _decompress_gzip(
    data: memoryview, bytes_max: int, large_memory: LargeMemory | None
) -> bytes | memoryview:
    if large_memory is not None and int.from_bytes(data[-4:], "little") > LARGE_BYTES:
        return _decompress_large_gzip(data, bytes_max, large_memory)
    members: list[bytes] = []
    size_bytes = 0
    rest: memoryview | bytes = data
    while True:
        rest = _without_reserved_flags(rest)
        decoder = zlib.decompressobj(_GZIP_MEMBER)
        try:
            # One byte beyond what is left of the bound shows that it is passed.
            member = decoder.decompress(rest, bytes_max - size_bytes + 1)
        except zlib.error as error:
            raise _damaged(CompressionType.GZIP, error) from None
        size_bytes += len(member)
        if size_bytes > bytes_max:
            raise _too_large(CompressionType.GZIP, None, bytes_max)
        if not decoder.eof:
            raise _damaged(CompressionType.GZIP, "a member ends early")
        members.append(member)
        rest = decoder.unused_data
        # Like java.util.zip.GZIPInputStream: what does not start a member is not looked at.
        if not rest.startswith(_GZIP_HEADER[:3]):
            return members[0] if len(members) == 1 else b"".join(members)


def _without_reserved_flags(data: memoryview | bytes) -> memoryview | bytes:
    """Return a member as zlib takes it."""
    if len(data) <= _GZIP_FLAGS_AT or not data[_GZIP_FLAGS_AT] & _GZIP_RESERVED_FLAGS:
        return data
    # RFC 1952 says to refuse them; java.util.zip, which Kafka uses, does not look.
    unreserved = bytearray(data)
    unreserved[_GZIP_FLAGS_AT] &= ~_GZIP_RESERVED_FLAGS
    return bytes(unreserved)


def _decompress_large_gzip(
    data: memoryview, bytes_max: int, large_memory: LargeMemory
) -> memoryview:
    """Do the same piece by piece: zlib has no way to write into memory that is given."""
    # What the end says of the last member, as a rule of the only one: a guess, to begin with.
    room = min(int.from_bytes(data[-4:], "little"), bytes_max)
    out = large_memory.take(max(room, LARGE_BYTES))
    filled = 0
    decoder: Any = None  # Of the member at hand.
    rest, position = b"", 0
    while True:
        if len(rest) < len(_GZIP_HEADER):
            rest += bytes(data[position : position + _GZIP_PIECE_BYTES])
            position += _GZIP_PIECE_BYTES
        if decoder is None:
            if filled and not rest.startswith(_GZIP_HEADER[:3]):
                return out[:filled]
            rest = bytes(_without_reserved_flags(rest))
            decoder = zlib.decompressobj(_GZIP_MEMBER)
        if not rest:
            raise _damaged(CompressionType.GZIP, "a member ends early")
        try:
            part = decoder.decompress(rest, bytes_max - filled + 1)
        except zlib.error as error:
            raise _damaged(CompressionType.GZIP, error) from None
        if filled + len(part) > bytes_max:
            raise _too_large(CompressionType.GZIP, None, bytes_max)
        if filled + len(part) > len(out):
            larger = large_memory.take(min(2 * (filled + len(part)), bytes_max))
            larger[:filled] = out[:filled]
            out = larger
        out[filled : filled + len(part)] = part
        filled += len(part)
        rest = decoder.unused_data
        if decoder.eof:
            decoder = None


# ---- snappy --------------------------------------------------------------------------------------

_XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER: Final = struct.Struct(">8sii")  # Magic, version, lowest compatible version.
_XERIAL_VERSION: Final = 1
_XERIAL_MAGIC_HEAD: Final = int.from_bytes(_XERIAL_MAGIC[:4], "big")
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_SNAPPY_SIZE_BYTES_MAX: Final = 5  # A varint of 32 bits.


def _compress_snappy(data: memoryview, _level: int) -> bytes:
    parts = [_XERIAL_HEADER.pack(_XERIAL_MAGIC, _XERIAL_VERSION, _XERIAL_VERSION)]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(
    data: memoryview, bytes_max: int, large_memory: LargeMemory | None
) -> bytes | memoryview:
    blocks: list[tuple[memoryview, int]] = []  # Raw block, size that it declares.
    if len(data) >= _XERIAL_HEADER.size and data[:8].tobytes() == _XERIAL_MAGIC:
        size_bytes = _walk_xerial(data, bytes_max, blocks)
    else:
        size_bytes = _declared_snappy_bytes(data)
        blocks.append((data, size_bytes))
    _check_bound(CompressionType.SNAPPY, size_bytes, bytes_max)

    out = room_for(size_bytes, large_memory)
    start = 0
    for block, block_bytes in blocks:
        try:
            written = cramjam.snappy.decompress_raw_into(
                block, out[start : start + block_bytes].data
            )
        except cramjam.DecompressionError as error:
            raise _damaged(CompressionType.SNAPPY, error) from None
        if written != block_bytes:
            raise _damaged(CompressionType.SNAPPY, "a block is shorter than it declares")
        start += block_bytes
    return _result(out, size_bytes, large_memory)


def _walk_xerial(data: memoryview, bytes_max: int, blocks: list[tuple[memoryview, int]]) -> int:
    """Collect the blocks of a xerial stream; returns the sum of the sizes that they declare."""
    position = _XERIAL_HEADER.size  # Like snappy-java: only a later header's version is checked.
    size_bytes = 0
    # Like snappy-java: fewer than four bytes at the end are not looked at.
    while len(data) - position >= 4:
        block_bytes = int.from_bytes(data[position : position + 4], "big")
        if block_bytes == _XERIAL_MAGIC_HEAD:  # Another stream begins.
            if len(data) - position < _XERIAL_HEADER.size:
                raise _damaged(CompressionType.SNAPPY, "a stream header ends early")
            if data[position : position + 8].tobytes() != _XERIAL_MAGIC:
                return size_bytes
            _check_xerial_version(data[position:])
            position += _XERIAL_HEADER.size
            continue
        position += 4
        if block_bytes > len(data) - position:
            raise _damaged(CompressionType.SNAPPY, "a block ends early")
        block = data[position : position + block_bytes]
        declared_bytes = _declared_snappy_bytes(block)
        blocks.append((block, declared_bytes))
        position += block_bytes
        size_bytes += declared_bytes
        _check_bound(CompressionType.SNAPPY, size_bytes, bytes_max)
    return size_bytes


def _check_xerial_version(header: memoryview) -> None:
    _, version, _ = _XERIAL_HEADER.unpack_from(header)
    if version < _XERIAL_VERSION:
        raise _damaged(CompressionType.SNAPPY, f"stream version {version}")


def _declared_snappy_bytes(block: memoryview) -> int:
    """Return the decompressed size that a raw block begins with."""
    size_bytes = 0
    for index, byte in enumerate(block[:_SNAPPY_SIZE_BYTES_MAX]):
        size_bytes |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size_bytes
    raise _damaged(CompressionType.SNAPPY, "a block without a size")


# ---- lz4 -----------------------------------------------------------------------------------------

_LZ4_MAGIC: Final = bytes.fromhex("04224d18")
_LZ4_STORED: Final = 0x8000_0000  # Bit 31 of a block's size: the block is not compressed.
_LZ4_END: Final = bytes(4)
_LZ4_BLOCK_BYTES: Final = 64 * 1024
_LZ4_EXPANSION_MAX: Final = 255  # One more byte of a match length stands for 255 bytes at most.
_LZ4_HEADER_BYTES_MIN: Final = 6  # Kafka wants six bytes before it looks at any.
_LZ4_FAST_LEVEL: Final = 9  # Kafka: the default level is the fast compressor.
_LZ4_HIGH_LEVEL_MIN: Final = 3  # Below, the package's frame encoder is the fast one too.

# FLG: version 01, block independence; the other bits are flags. BD: the block size's code.
_LZ4_FLG: Final = 0x60
_LZ4_FLG_FIXED: Final = 0b1110_0011  # Version, independence, reserved bit, dictionary id.
_LZ4_FLG_BLOCK_CHECKSUM: Final = 0x10
_LZ4_FLG_CONTENT_SIZE: Final = 0x08
_LZ4_FLG_NOT_VERIFIED: Final = _LZ4_FLG_CONTENT_SIZE | 0x04  # 0x04: content checksum.
_LZ4_BD: Final = 0x40
_LZ4_BD_RESERVED: Final = 0b1000_1111
_LZ4_BLOCK_BYTES_OF_CODE: Final = {code: 1 << (2 * code + 8) for code in range(4, 8)}
assert _LZ4_BLOCK_BYTES_OF_CODE[_LZ4_BD >> 4] == _LZ4_BLOCK_BYTES


def _compress_lz4(data: memoryview, level: int) -> bytes:
    descriptor = bytes((_LZ4_FLG, _LZ4_BD))
    parts: list[bytes | memoryview] = [_LZ4_MAGIC, descriptor, _lz4_header_checksum(descriptor)]
    if level == _LZ4_FAST_LEVEL:
        for start in range(0, len(data), _LZ4_BLOCK_BYTES):
            plain = data[start : start + _LZ4_BLOCK_BYTES]
            block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
            if len(block) < len(plain):
                parts += (len(block).to_bytes(4, "little"), block)
            else:
                parts += ((len(plain) | _LZ4_STORED).to_bytes(4, "little"), plain)
    else:
        parts += _compress_lz4_high(data, level)
    parts.append(_LZ4_END)
    return b"".join(parts)


def _compress_lz4_high(data: memoryview, level: int) -> list[memoryview]:
    """
    Return the blocks, each with its size, from the high compressor.

    The package offers it for frames only, and gives independent blocks checksums: those go.
    """
    encoder = cramjam.lz4.Compressor(
        level=max(level, _LZ4_HIGH_LEVEL_MIN), content_checksum=False, block_linked=False
    )
    encoder.compress(bytes(data))
    frame = memoryview(encoder.finish()).cast("B")
    flags, block_bytes_max, position = _read_lz4_header(frame, check_header=True)
    assert flags == _LZ4_FLG | _LZ4_FLG_BLOCK_CHECKSUM
    assert block_bytes_max == _LZ4_BLOCK_BYTES
    blocks: list[memoryview] = []
    while size := int.from_bytes(frame[position : position + 4], "little") & ~_LZ4_STORED:
        blocks.append(frame[position : position + 4 + size])
        position += 4 + size + 4
    return blocks


def _decompress_lz4(
    data: memoryview, bytes_max: int, large_memory: LargeMemory | None, *, check_header: bool
) -> bytes | memoryview:
    flags, block_bytes_max, start = _read_lz4_header(data, check_header=check_header)
    checksum_bytes = 4 if flags & _LZ4_FLG_BLOCK_CHECKSUM else 0
    end, bound = _walk_lz4_blocks(data, start, block_bytes_max, checksum_bytes)
    # What a block decompresses to shows only when it is done, so the buffer is as large as the
    # blocks can get (pages that stay untouched cost nothing), and never larger than allowed.
    out = room_for(min(bound, bytes_max), large_memory)

    # The package gets a frame with the header that Kafka would write: it would verify a content
    # checksum, which Kafka does not. (Its functions for bare blocks guess at a size prefix.)
    descriptor = bytes((flags & ~_LZ4_FLG_NOT_VERIFIED, data[5]))
    checksum = _lz4_header_checksum(descriptor)
    header = b"".join((_LZ4_MAGIC, descriptor, checksum))
    frame = room_for(len(header) + end - start + len(_LZ4_END), large_memory)
    for at, part in ((0, header), (len(header), data[start:end]), (-len(_LZ4_END), _LZ4_END)):
        frame[at : at + len(part) or None] = np.frombuffer(part, np.uint8)
    decode = cramjam.lz4.decompress_into
    return _decompress_into(CompressionType.LZ4, decode, frame, out, bytes_max, large_memory)


def _read_lz4_header(data: memoryview, *, check_header: bool) -> tuple[int, int, int]:
    """Return FLG, the largest block size, and where the blocks start."""
    if len(data) < _LZ4_HEADER_BYTES_MIN:
        raise _damaged(CompressionType.LZ4, "the frame header ends early")
    if data[:4] != _LZ4_MAGIC:
        raise _damaged(CompressionType.LZ4, "wrong magic number")
    flags, block_descriptor = data[4], data[5]
    if flags & _LZ4_FLG_FIXED != _LZ4_FLG:
        raise _damaged(CompressionType.LZ4, f"unsupported frame flags {flags:#04x}")
    block_bytes_max = _LZ4_BLOCK_BYTES_OF_CODE.get(block_descriptor >> 4 & 7)
    if block_bytes_max is None or block_descriptor & _LZ4_BD_RESERVED:
        what = f"unsupported block descriptor {block_descriptor:#04x}"
        raise _damaged(CompressionType.LZ4, what)

    end = 6 + (8 if flags & _LZ4_FLG_CONTENT_SIZE else 0)
    if len(data) <= end:
        raise _damaged(CompressionType.LZ4, "the frame header ends early")
    if check_header and data[end : end + 1] != _lz4_header_checksum(data[4:end]):
        raise _damaged(CompressionType.LZ4, "wrong header checksum")
    return flags, block_bytes_max, end + 1


def _walk_lz4_blocks(
    data: memoryview, start: int, block_bytes_max: int, checksum_bytes: int
) -> tuple[int, int]:
    """Return the end of the last block, and a bound of what all decompress to."""
    bound = 0
    position = start
    while True:
        if len(data) - position < 4:
            raise _damaged(CompressionType.LZ4, "the stream ended prematurely")
        field = int.from_bytes(data[position : position + 4], "little")
        size = field & ~_LZ4_STORED
        if size == 0:  # The end mark.
            return position, bound
        if size > block_bytes_max:
            what = f"a block of {size} bytes, at most {block_bytes_max} are allowed"
            raise _damaged(CompressionType.LZ4, what)
        position += 4
        if size + checksum_bytes > len(data) - position:
            raise _damaged(CompressionType.LZ4, "the stream ended prematurely")
        position += size + checksum_bytes
        bound += size if field & _LZ4_STORED else min(block_bytes_max, size * _LZ4_EXPANSION_MAX)


def _lz4_header_checksum(descriptor: bytes | memoryview) -> bytes:
    return bytes(((_xxhash32(descriptor) >> 8) & 0xFF,))


def _xxhash32(data: bytes | memoryview) -> int:
    """Return xxHash32 with seed 0 of fewer than 16 bytes: a frame descriptor has at most 10."""
    assert len(data) < 16
    mask = 0xFFFF_FFFF
    result = 374_761_393 + len(data)
    tail = len(data) - len(data) % 4
    for index in range(0, tail, 4):
        lane = int.from_bytes(data[index : index + 4], "little")
        result = (result + lane * 3_266_489_917) & mask
        result = ((result << 17 | result >> 15) * 668_265_263) & mask
    for byte in data[tail:]:
        result = (result + byte * 374_761_393) & mask
        result = ((result << 11 | result >> 21) * 2_654_435_761) & mask
    result = ((result ^ result >> 15) * 2_246_822_519) & mask
    result = ((result ^ result >> 13) * 3_266_489_917) & mask
    return result ^ result >> 16


# ---- zstd ----------------------------------------------------------------------------------------

_ZSTD_MAGIC: Final = bytes.fromhex("28b52ffd")
_ZSTD_SKIPPABLE_MAGIC: Final = 0x184D_2A50  # The low four bits are free.
_ZSTD_BLOCK_BYTES_MAX: Final = 128 * 1024
_ZSTD_DICTIONARY_ID_BYTES: Final = (0, 1, 2, 4)
_ZSTD_RLE: Final = 1
_ZSTD_COMPRESSED: Final = 2


def _compress_zstd(data: memoryview, level: int) -> bytes:
    # With the content size in the header, which Kafka's writer leaves out: readers then know how
    # much memory they need.
    return bytes(cramjam.zstd.compress(data, level))


def _decompress_zstd(
    data: memoryview, bytes_max: int, large_memory: LargeMemory | None
) -> bytes | memoryview:
    bound = 0
    position = 0
    while position < len(data):
        position, frame_bound = _walk_zstd_frame(data, position, bytes_max)
        bound += frame_bound
    if position == 0:
        return b""  # As Kafka's reader: no frame at all is an end between two frames.
    out = room_for(min(bound, bytes_max), large_memory)
    decode = cramjam.zstd.decompress_into
    return _decompress_into(CompressionType.ZSTD, decode, data, out, bytes_max, large_memory)


def _walk_zstd_frame(data: memoryview, position: int, bytes_max: int) -> tuple[int, int]:
    """Return the end of the frame at ``position``, and a bound of what it decompresses to."""
    magic = data[position : position + 4]
    position += 4
    if magic != _ZSTD_MAGIC:
        if int.from_bytes(magic, "little") & ~0xF != _ZSTD_SKIPPABLE_MAGIC:
            raise _damaged(CompressionType.ZSTD, "wrong magic number")
        size = _zstd_field(data, position, 4)
        if size > len(data) - position - 4:
            raise _damaged(CompressionType.ZSTD, "a frame ends early")
        return position + 4 + size, 0

    descriptor = _zstd_field(data, position, 1)
    is_single_segment = descriptor >> 5 & 1
    position += 1 + (1 - is_single_segment) + _ZSTD_DICTIONARY_ID_BYTES[descriptor & 3]
    size_bytes = (is_single_segment, 2, 4, 8)[descriptor >> 6]
    declared = None
    if size_bytes:
        declared = _zstd_field(data, position, size_bytes) + (256 if size_bytes == 2 else 0)
        _check_bound(CompressionType.ZSTD, declared, bytes_max)
        position += size_bytes

    bound = 0
    is_last = 0
    while not is_last:
        header = _zstd_field(data, position, 3)
        is_last, block_type, size = header & 1, header >> 1 & 3, header >> 3
        bound += _ZSTD_BLOCK_BYTES_MAX if block_type == _ZSTD_COMPRESSED else size
        position += 3 + (1 if block_type == _ZSTD_RLE else size)
    position += 4 if descriptor & 4 else 0  # Content checksum.
    if position > len(data):
        raise _damaged(CompressionType.ZSTD, "a frame ends early")
    return position, bound if declared is None else min(bound, declared)


def _zstd_field(data: memoryview, position: int, size: int) -> int:
    if size > len(data) - position:
        raise _damaged(CompressionType.ZSTD, "a frame ends early")
    return int.from_bytes(data[position : position + size], "little")


# ---- all -----------------------------------------------------------------------------------------


def _decompress_into(
    codec: CompressionType,
    decode: Callable[[Any, Any], int],
    data: Any,
    out: Any,
    bytes_max: int,
    large_memory: LargeMemory | None,
) -> bytes | memoryview:
    try:
        written = decode(data, out)
    except cramjam.DecompressionError as error:
        if "write whole buffer" in str(error) and len(out) == bytes_max:
            raise _too_large(codec, None, bytes_max) from None
        raise _damaged(codec, error) from None
    return _result(out, written, large_memory)


def _result(out: Any, size_bytes: int, large_memory: LargeMemory | None) -> bytes | memoryview:
    """Return what is in an array; without a copy if it is large."""
    filled = out.data[:size_bytes]
    return bytes(filled) if large_memory is None or len(out) <= LARGE_BYTES else filled


_COMPRESS: Final[dict[CompressionType, Callable[[memoryview, int], bytes]]] = {
    CompressionType.GZIP: _compress_gzip,
    CompressionType.SNAPPY: _compress_snappy,
    CompressionType.LZ4: _compress_lz4,
    CompressionType.ZSTD: _compress_zstd,
}
_DECOMPRESS: Final[
    dict[CompressionType, Callable[[memoryview, int, LargeMemory | None], bytes | memoryview]]
] = {
    CompressionType.GZIP: _decompress_gzip,
    CompressionType.SNAPPY: _decompress_snappy,
    CompressionType.ZSTD: _decompress_zstd,
}
