/*
 * ls_encode_headers.c: lists of names and values to the headers of records.
 * Contract: logstore.h.
 */
#include "ls_encode_inline.h"
#include "ls_internal.h"

static int64_t offset_at(uintptr_t offsets, int64_t index, int32_t width) {
    return width == 8 ? ((const int64_t *)offsets)[index] : ((const int32_t *)offsets)[index];
}

/* Put an item's size, zig-zag, and its bytes. */
static uint8_t *put_sized(uint8_t *at, uintptr_t bytes, int64_t begin, int64_t size) {
    at = ls_put_varint(at, (uint32_t)size << 1);
    if (size > 0) memcpy(at, (const uint8_t *)bytes + begin, (size_t)size);
    return at + size;
}

/* Whether the bytes of an item lie in their buffer, and its size is one of the format. */
static bool is_item(int64_t begin, int64_t end, int64_t size) {
    return begin >= 0 && begin <= end && end <= size && end - begin <= INT32_MAX;
}

int64_t ls_encode_headers(const struct ls_columns *headers, uintptr_t row_ends, int64_t rows,
                          uintptr_t out, uintptr_t out_offsets) {
    assert(headers != NULL && rows >= 0);
    const int64_t *end_of = (const int64_t *)row_ends;
    int64_t *offsets = (int64_t *)out_offsets;
    const uint8_t *validity = (const uint8_t *)headers->value_validity;
    uint8_t *at = (uint8_t *)out;
    int64_t index = 0;
    offsets[0] = 0;
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t count = end_of[row] - index;
        if (count < 0 || count > INT32_MAX || end_of[row] > headers->count) return LS_E_CORRUPT;
        if (count > 0) at = ls_put_varint(at, (uint32_t)count << 1);
        for (; index < end_of[row]; ++index) {
            int64_t begin = offset_at(headers->key_offsets, index, headers->key_offset_width);
            int64_t end = offset_at(headers->key_offsets, index + 1, headers->key_offset_width);
            if (!is_item(begin, end, headers->keys_size)) return LS_E_CORRUPT;
            at = put_sized(at, headers->keys, begin, end - begin);

            begin = offset_at(headers->value_offsets, index, headers->value_offset_width);
            end = offset_at(headers->value_offsets, index + 1, headers->value_offset_width);
            if (!is_item(begin, end, headers->values_size)) return LS_E_CORRUPT;
            const int64_t bit = headers->bit_offset + index;
            if (validity != NULL && !(validity[bit >> 3] >> (bit & 7) & 1)) {
                *at++ = 1; /* -1, zig-zag */
            } else {
                at = put_sized(at, headers->values, begin, end - begin);
            }
        }
        offsets[row + 1] = at - (uint8_t *)out;
    }
    return at - (uint8_t *)out;
}
