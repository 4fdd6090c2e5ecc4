/*
 * ls_record_shape.h: what records that are alike have in common, inline: for loops that look at
 * every record of a section.
 */
#ifndef LS_RECORD_SHAPE_H
#define LS_RECORD_SHAPE_H

#include "ls_record.h"

/*
 * Records without headers whose keys and values are as large differ in timestamp, offset, key and
 * value alone: what else their bytes are is compared at once, and where the next one begins is known
 * before this one is looked at.
 */
enum { SHAPE_BYTES = 8, ONE_BYTE_BITS_MAX = 126, TWO_BYTE_BITS_MAX = 16382 };

struct record_shape {
    uint64_t first; /* bytes up to the key, without timestamp and offset */
    uint64_t first_mask;
    uint64_t second; /* bytes between key and value */
    uint64_t second_mask;
    int64_t record_size;
    int32_t key_at;
    int32_t key_size;  /* -1 null */
    int32_t second_at; /* behind the key */
    int32_t value_at;
    int32_t value_size;
    int32_t timestamp_shift; /* in `first`, in bits: of one byte */
    int32_t offset_shift;    /* of one or two */
    uint64_t offset_bits;    /* of the last record, as the format has them: twice the delta */
    uint64_t offset_bits_max;
};

/* Bits that cover the first `count` bytes of a word. */
LS_INLINE uint64_t mask_of(int32_t count) {
    return count <= 0 ? 0 : count >= 8 ? ~(uint64_t)0 : ~(uint64_t)0 >> (64 - 8 * count);
}

/* Learn the shape of a record, [at, next) of a section; false: it is not of this kind. */
LS_INLINE bool learn_shape(const uint8_t *at, const uint8_t *next, const uint8_t *end,
                           const struct ls_record *record, struct record_shape *shape) {
    if (record->value_size < 0 || end - next < SHAPE_BYTES) return false;
    int32_t size_bytes = at[0] < 128 ? 1 : at[1] < 128 ? 2 : 3;
    const uint8_t *offset = at + size_bytes + 2; /* behind attributes and timestamp */
    int32_t offset_bytes = offset[0] < 128 ? 1 : 2;
    shape->offset_bits = (uint64_t)record->offset_delta * 2;
    shape->offset_bits_max = offset_bytes == 1 ? ONE_BYTE_BITS_MAX : TWO_BYTE_BITS_MAX;
    shape->record_size = next - at;
    shape->key_at = (int32_t)(record->key - at);
    shape->key_size = record->key_size;
    shape->second_at = shape->key_at + (record->key_size > 0 ? record->key_size : 0);
    shape->value_at = (int32_t)(record->value - at);
    shape->value_size = record->value_size;
    if (at[size_bytes - 1] >= 128 || offset[-1] >= 128 || offset[offset_bytes - 1] >= 128 ||
        shape->key_at > SHAPE_BYTES ||
        shape->record_size != shape->value_at + (int64_t)shape->value_size + 1) {
        return false;
    }
    shape->timestamp_shift = 8 * (size_bytes + 1);
    shape->offset_shift = 8 * (size_bytes + 2);
    uint64_t varying = (uint64_t)0x7f << shape->timestamp_shift;
    shape->first_mask = mask_of(shape->key_at) & ~varying;
    varying |= mask_of(offset_bytes) << shape->offset_shift;
    shape->first = ls_load_le64(at) & ~varying;
    shape->second_mask = mask_of(shape->value_at - shape->second_at);
    shape->second = ls_load_le64(at + shape->second_at);
    return true;
}

/*
 * Whether the record at `at`, with SHAPE_BYTES readable behind it, is of the shape, and has the next
 * offset; its timestamp's delta.
 */
LS_INLINE bool has_shape(struct record_shape *shape, const uint8_t *at, int64_t *timestamp_delta) {
    uint64_t bits = shape->offset_bits + 2;
    if (LS_UNLIKELY(bits > shape->offset_bits_max)) return false;
    uint64_t coded =
        shape->offset_bits_max == ONE_BYTE_BITS_MAX ? bits : (bits & 0x7f) | 0x80 | bits >> 7 << 8;
    uint64_t first = ls_load_le64(at);
    uint64_t second = ls_load_le64(at + shape->second_at);
    uint64_t expected = shape->first | coded << shape->offset_shift;
    if (((first ^ expected) & shape->first_mask) | ((second ^ shape->second) & shape->second_mask) |
        at[shape->record_size - 1]) {
        return false;
    }
    shape->offset_bits = bits;
    *timestamp_delta = ls_unzigzag64(first >> shape->timestamp_shift & 0x7f);
    return true;
}

#endif
