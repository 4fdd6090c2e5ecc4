/*
 * ls_encode_inline.h: put v2 records straight into a buffer. For code that walks records itself (a
 * list, a single append); columns go through ls_encode_batch.
 *
 *     uint8_t *end = batch + batch_bytes;                     // end + LS_ENCODE_SLACK is ours, too
 *     int64_t size = ls_record_size(delta, ts, key_size, value_size, headers_size);
 *     if (size > end - at) ...                                // does not fit: next batch
 *     at = ls_put_record(at, delta, ts, key, key_size, value, value_size, headers, headers_size);
 *     ...
 *     ls_seal_batch((uintptr_t)batch, at - batch, &fields, base_timestamp, max_timestamp,
 *                   last_delta, count);
 *
 * Records of a value alone (null key, no headers, timestamp delta 0) are faster with a shape, which
 * keeps what depends on the value's size while that repeats:
 *
 *     struct ls_value_shape shape = LS_VALUE_SHAPE_NONE;      // once for a run of records
 *     if (ls_fits_value_shape(delta, value_size)) {
 *         int64_t size = ls_shape_value(&shape, delta, value_size);
 *         if (size > end - at) ...
 *         at = ls_put_value(&shape, at, delta, value);
 *     }
 *
 * Sources are read exactly; LS_ENCODE_SLACK bytes behind a record may be overwritten.
 */
#ifndef LS_ENCODE_INLINE_H
#define LS_ENCODE_INLINE_H

#include "ls_internal.h"

enum {
    /* Most that a record takes beside key, value and headers: 5 + 1 + 10 + 5 + 5 + 5 + 1. */
    LS_RECORD_OVERHEAD_MAX = 32,
    LS_COPY_INLINE_MAX = 512
};

/* ---- varints -------------------------------------------------------------------------------- */
/* The `bytes` bytes of an unsigned varint as a little-endian word. */
LS_INLINE uint64_t ls_varint_word(uint32_t bits, int32_t bytes) {
    uint64_t word = (bits & 0x7f) | (uint64_t)(bits & 0x3f80) << 1 |
                    (uint64_t)(bits & 0x1fc000) << 2 | (uint64_t)(bits & 0xfe00000) << 3 |
                    (uint64_t)(bits & 0xf0000000) << 4;
    return word | (UINT64_C(0x80808080) & ((UINT64_C(1) << 8 * (bytes - 1)) - 1));
}

/* The same for one to three bytes, with branches: for loops in which the length hardly changes. */
LS_INLINE uint64_t ls_short_varint_word(uint32_t bits, int32_t bytes) {
    if (bytes == 1) return bits;
    if (bytes == 2) return (bits & 127) | 128 | bits >> 7 << 8;
    return (bits & 127) | 128 | (bits >> 7 & 127) << 8 | 128 << 8 | bits >> 14 << 16;
}

/* Put an unsigned varint and return the byte after it; 8 bytes may be written. */
LS_INLINE uint8_t *ls_put_varint(uint8_t *at, uint32_t bits) {
    if (LS_LIKELY(bits < 1u << 7)) {
        *at = (uint8_t)bits;
        return at + 1;
    }
    if (LS_LIKELY(bits < 1u << 14)) {
        uint16_t word = (uint16_t)((bits & 127) | 128 | bits >> 7 << 8);
        memcpy(at, &word, sizeof word);
        return at + 2;
    }
    int32_t bytes = ls_varint_bytes(bits);
    ls_store_le64(at, ls_varint_word(bits, bytes));
    return at + bytes;
}

LS_INLINE uint8_t *ls_put_varlong(uint8_t *at, uint64_t bits) {
    if (LS_LIKELY(bits < 1u << 28)) return ls_put_varint(at, (uint32_t)bits);
    while (bits >= 128) {
        *at++ = (uint8_t)(bits | 128);
        bits >>= 7;
    }
    *at++ = (uint8_t)bits;
    return at;
}

/* ---- copies --------------------------------------------------------------------------------- */
/*
 * For more than LS_COPY_INLINE_MAX bytes, with the widest registers the processor has. Not memcpy:
 * above 2 KiB that runs `rep movsb`, which some processors execute at a quarter of the speed when
 * the destination is 1 to 31 bytes past the source modulo 4096, as staged records often are.
 */
void ls_copy_large(uint8_t *to, const uint8_t *from, int64_t size);

LS_INLINE void ls_copy_16(uint8_t *to, const uint8_t *from) {
    unsigned char block[16];
    memcpy(block, from, sizeof block);
    memcpy(to, block, sizeof block);
}

/* Copy exactly `size` bytes; neither side is touched beyond. Blocks overlap at the end. */
LS_INLINE void ls_copy(uint8_t *to, const uint8_t *from, int64_t size) {
    if (size > 16) {
        if (LS_UNLIKELY(size > LS_COPY_INLINE_MAX)) {
            ls_copy_large(to, from, size);
            return;
        }
        uint8_t *last = to + size - 16;
        const uint8_t *from_last = from + size - 16;
        for (; to < last; to += 16, from += 16)
            ls_copy_16(to, from);
        ls_copy_16(last, from_last);
    } else if (size >= 8) {
        uint64_t first = ls_load_le64(from);
        uint64_t last = ls_load_le64(from + size - 8);
        ls_store_le64(to, first);
        ls_store_le64(to + size - 8, last);
    } else if (size >= 4) {
        uint32_t first;
        uint32_t last;
        memcpy(&first, from, sizeof first);
        memcpy(&last, from + size - 4, sizeof last);
        memcpy(to, &first, sizeof first);
        memcpy(to + size - 4, &last, sizeof last);
    } else if (size > 0) {
        to[0] = from[0];
        to[size / 2] = from[size / 2];
        to[size - 1] = from[size - 1];
    }
}

/* ---- any record ----------------------------------------------------------------------------- */
/*
 * Size of a record's body, which its first varint states. key_size and value_size: -1 null.
 * headers_size: bytes of headersCount + headers; 0 or less stands for no headers (one byte).
 * Sizes are at most 2^31 - 1 each; the result may exceed that: LS_E_TOO_LARGE is the caller's.
 */
LS_INLINE int64_t ls_record_body_size(int32_t offset_delta, int64_t timestamp_delta,
                                      int64_t key_size, int64_t value_size, int64_t headers_size) {
    uint64_t timestamp_bits = ls_zigzag64(timestamp_delta);
    int64_t size = 1 + (LS_LIKELY(timestamp_bits < 128) ? 1 : ls_varlong_bytes(timestamp_bits));
    size += ls_varint_bytes(ls_zigzag32(offset_delta));
    size += key_size < 0 ? 1 : ls_varint_bytes((uint32_t)key_size << 1) + key_size;
    size += value_size < 0 ? 1 : ls_varint_bytes((uint32_t)value_size << 1) + value_size;
    return size + (headers_size > 0 ? headers_size : 1);
}

/* Size of a record whose body has `body` bytes. */
LS_INLINE int64_t ls_record_size_of(int64_t body) {
    return body + (body < 1 << 27 ? ls_varint_bytes((uint32_t)body << 1) : LS_VARINT_BYTES_MAX);
}

/* Size of a whole record, with its length varint. */
LS_INLINE int64_t ls_record_size(int32_t offset_delta, int64_t timestamp_delta, int64_t key_size,
                                 int64_t value_size, int64_t headers_size) {
    return ls_record_size_of(
        ls_record_body_size(offset_delta, timestamp_delta, key_size, value_size, headers_size));
}

/*
 * Put one record at `at` and return the byte after it: exactly ls_record_size bytes further.
 * The room, and a body of at most 2^31 - 1 bytes, are the caller's to check. `headers` are
 * headersCount and headers as the format has them.
 */
LS_INLINE uint8_t *ls_put_record(uint8_t *at, int32_t offset_delta, int64_t timestamp_delta,
                                 const uint8_t *key, int64_t key_size, const uint8_t *value,
                                 int64_t value_size, const uint8_t *headers, int64_t headers_size) {
    int64_t body =
        ls_record_body_size(offset_delta, timestamp_delta, key_size, value_size, headers_size);
    assert(body <= INT32_MAX);
    uint64_t timestamp_bits = ls_zigzag64(timestamp_delta);
    uint32_t offset_bits = ls_zigzag32(offset_delta);
    uint32_t key_bits = key_size < 0 ? 1 : (uint32_t)key_size << 1;
    if (LS_LIKELY(body < 1 << 13 && timestamp_bits < 1 << 14 && offset_bits < 1 << 14 &&
                  key_bits < 1 << 7)) {
        /* Nearly every record: what precedes the key is one word. */
        int32_t bytes = body < 1 << 6 ? 1 : 2;
        uint64_t word = ls_short_varint_word((uint32_t)body << 1, bytes);
        int32_t shift = 8 * bytes + 8;
        bytes = timestamp_bits < 1 << 7 ? 1 : 2;
        word |= ls_short_varint_word((uint32_t)timestamp_bits, bytes) << shift;
        shift += 8 * bytes;
        bytes = offset_bits < 1 << 7 ? 1 : 2;
        word |= ls_short_varint_word(offset_bits, bytes) << shift;
        shift += 8 * bytes;
        ls_store_le64(at, word | (uint64_t)key_bits << shift);
        at += shift / 8 + 1;
    } else {
        at = ls_put_varint(at, (uint32_t)body << 1);
        *at++ = 0;
        at = ls_put_varlong(at, timestamp_bits);
        at = ls_put_varint(at, offset_bits);
        at = ls_put_varint(at, key_bits);
    }
    if (key_size > 0) {
        ls_copy(at, key, key_size);
        at += key_size;
    }
    if (value_size < 0) {
        *at++ = 1;
    } else {
        at = ls_put_varint(at, (uint32_t)value_size << 1);
        ls_copy(at, value, value_size);
        at += value_size;
    }
    if (headers_size <= 0) {
        *at++ = 0;
    } else {
        ls_copy(at, headers, headers_size);
        at += headers_size;
    }
    return at;
}

/* ---- records of a value alone --------------------------------------------------------------- */
/*
 * What precedes a value, for one value size and one length of the offset delta's varint. The record
 * begins with `prefix`, into which the offset delta goes at delta_shift; `suffix` (null key, value
 * size) follows behind the delta.
 */
struct ls_value_shape {
    int64_t value_size;
    int64_t record_size;
    uint64_t prefix;
    uint64_t suffix;
    int32_t delta_bytes;
    int32_t delta_shift;
    int32_t suffix_at;
    int32_t value_at;
};

#define LS_VALUE_SHAPE_NONE ((struct ls_value_shape){.value_size = -1})

/* Larger ones would not fit the words above: they are records like any other. */
LS_INLINE bool ls_fits_value_shape(int64_t offset_delta, int64_t value_size) {
    return offset_delta < 1 << 20 && value_size >= 0 && value_size < (1 << 20) - 32;
}

LS_INLINE int32_t ls_delta_bytes(int64_t offset_delta) {
    return LS_LIKELY(offset_delta < 1 << 6) ? 1 : LS_LIKELY(offset_delta < 1 << 13) ? 2 : 3;
}

LS_INLINE void ls_make_value_shape(struct ls_value_shape *shape, int32_t delta_bytes,
                                   int64_t value_size) {
    int32_t size_bytes = ls_varint_bytes((uint32_t)value_size << 1);
    uint32_t body = (uint32_t)(4 + delta_bytes + size_bytes + value_size);
    int32_t body_bytes = ls_varint_bytes(body << 1);
    *shape = (struct ls_value_shape){
        .value_size = value_size,
        .record_size = (int64_t)body + body_bytes,
        .prefix = ls_varint_word(body << 1, body_bytes),
        .suffix = 1 | ls_varint_word((uint32_t)value_size << 1, size_bytes) << 8,
        .delta_bytes = delta_bytes,
        .delta_shift = 8 * (body_bytes + 2),
        .suffix_at = body_bytes + 2 + delta_bytes,
        .value_at = body_bytes + 2 + delta_bytes + 1 + size_bytes,
    };
}

/* Size of the record; makes the shape anew when it is not the last one's. */
LS_INLINE int64_t ls_shape_value(struct ls_value_shape *shape, int64_t offset_delta,
                                 int64_t value_size) {
    assert(ls_fits_value_shape(offset_delta, value_size));
    int32_t delta_bytes = ls_delta_bytes(offset_delta);
    if (LS_UNLIKELY(shape->value_size != value_size || shape->delta_bytes != delta_bytes)) {
        ls_make_value_shape(shape, delta_bytes, value_size);
    }
    return shape->record_size;
}

/* Put what precedes the value and what follows it; return where the value goes. */
LS_INLINE uint8_t *ls_put_around_value(const struct ls_value_shape *shape, uint8_t *at,
                                       int64_t offset_delta, int32_t delta_bytes) {
    uint64_t delta = ls_short_varint_word((uint32_t)offset_delta << 1, delta_bytes);
    ls_store_le64(at, shape->prefix | delta << shape->delta_shift);
    ls_store_le64(at + shape->suffix_at, shape->suffix);
    return at + shape->value_at;
}

/* Put one record of the shape that ls_shape_value has just made; return the byte after it. */
LS_INLINE uint8_t *ls_put_value(const struct ls_value_shape *shape, uint8_t *at,
                                int64_t offset_delta, const uint8_t *value) {
    uint8_t *value_at = ls_put_around_value(shape, at, offset_delta, shape->delta_bytes);
    ls_copy(value_at, value, shape->value_size);
    value_at[shape->value_size] = 0; /* no headers */
    return at + shape->record_size;
}

#endif
