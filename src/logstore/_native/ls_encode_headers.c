/*
 * ls_encode_headers.c: lists of names and values to the headers of records.
 * Contract: logstore.h.
 */
#include "ls_encode_inline.h"
#include "ls_internal.h"

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
    const void *names = (const void *)headers->key_offsets;
    const void *values = (const void *)headers->value_offsets;
    const bool are_names_wide = headers->key_offset_width == 8;
    const bool are_values_wide = headers->value_offset_width == 8;
    uint8_t *at = (uint8_t *)out;
    int64_t index = 0;
    offsets[0] = 0;
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t count = end_of[row] - index;
        if (count < 0 || count > INT32_MAX || end_of[row] > headers->count) return LS_E_CORRUPT;
        if (count > 0) at = ls_put_varint(at, (uint32_t)count << 1);
        for (; index < end_of[row]; ++index) {
            int64_t begin = ls_offset_at(names, index, are_names_wide);
            int64_t end = ls_offset_at(names, index + 1, are_names_wide);
            if (!is_item(begin, end, headers->keys_size)) return LS_E_CORRUPT;
            at = put_sized(at, headers->keys, begin, end - begin);

            begin = ls_offset_at(values, index, are_values_wide);
            end = ls_offset_at(values, index + 1, are_values_wide);
            if (!is_item(begin, end, headers->values_size)) return LS_E_CORRUPT;
            if (!ls_is_valid(validity, headers->bit_offset + index)) {
                *at++ = 1; /* -1, zig-zag */
            } else {
                at = put_sized(at, headers->values, begin, end - begin);
            }
        }
        offsets[row + 1] = at - (uint8_t *)out;
    }
    return at - (uint8_t *)out;
}
