/*
 * ls_columns_items.h: one item put behind those of a column, copied or as a view. Small values are
 * copied in whole blocks: a branch by size class costs less than an exact copy.
 * Nothing here is visible to Python.
 */
#ifndef LS_COLUMNS_ITEMS_H
#define LS_COLUMNS_ITEMS_H

#include "ls_columns.h"

enum { WILD_BYTES = 256 };

/*
 * 32 bytes in one register, or in two where the loop is compiled without wide ones. Not for the
 * encoder, which has its own: gcc takes these through the stack where it has no register to spare.
 */
typedef uint8_t block_32 __attribute__((vector_size(32), aligned(1), may_alias));

LS_INLINE void copy_64(uint8_t *to, const uint8_t *from) {
    block_32 first = *(const block_32 *)from;
    block_32 second = *(const block_32 *)(from + 32);
    *(block_32 *)to = first;
    *(block_32 *)(to + 32) = second;
}

/* Copy by size class. Unless `exact`, up to WILD_BYTES are read, and WILD_BYTES written in any case. */
LS_INLINE void copy_bytes(uint8_t *to, const uint8_t *from, int64_t size, bool exact) {
    if (LS_UNLIKELY(size > WILD_BYTES || exact)) {
        ls_copy(to, from, size);
        return;
    }
    copy_64(to, from);
    if (size > 64) {
        copy_64(to + 64, from + 64);
        if (size > 128) {
            copy_64(to + 128, from + 128);
            copy_64(to + 192, from + 192);
        }
    }
}

enum { INLINE_VIEW_BYTES = 12 };

/* A view of bytes that are not null, in the buffer whose number is the low half of `where`. */
LS_INLINE void put_view(uint8_t *view, const uint8_t *bytes, int32_t size, uint64_t where) {
    if (LS_LIKELY(size > INLINE_VIEW_BYTES)) {
        uint32_t prefix;
        memcpy(&prefix, bytes, sizeof prefix);
        ls_store_le64(view, (uint32_t)size | (uint64_t)prefix << 32);
        ls_store_le64(view + 8, where);
        return;
    }
    ls_store_le64(view, (uint32_t)size);
    ls_store_le64(view + 8, 0);
    if (size > 0) memcpy(view + 4, bytes, (size_t)size);
}

/* Set the bits of `count` rows from `row` on. */
LS_INLINE void set_bits(uintptr_t bitmap, int64_t row, int64_t count) {
    uint8_t *bits = (uint8_t *)bitmap;
    int64_t end = row + count;
    if (row % 8 != 0) bits[row / 8] = (uint8_t)(bits[row / 8] | 0xff << row % 8);
    int64_t first = (row + 7) / 8;
    int64_t last = (end + 7) / 8;
    if (last > first) memset(bits + first, 0xff, (size_t)(last - first));
}

LS_INLINE void clear_bit(uintptr_t bitmap, int64_t row) {
    uint8_t *byte = (uint8_t *)bitmap + row / 8;
    *byte = (uint8_t)(*byte & ~(1 << row % 8));
}

/* The next item of a column of which all bits are set; there is room for it. */
LS_INLINE void put_next(struct ls_gather_bytes *column, int64_t row, const uint8_t *bytes,
                        int32_t size, bool exact) {
    if (LS_LIKELY(size >= 0)) {
        copy_bytes((uint8_t *)column->bytes + column->size, bytes, size, exact);
        column->size += size;
    } else {
        clear_bit(column->validity, row);
        column->null_count += 1;
    }
    ((int32_t *)column->offsets)[row + 1] = (int32_t)column->size;
}

/* The same, of views. `base` and `buffer` are the gather's. */
LS_INLINE void put_next_view(struct ls_gather_bytes *column, int64_t row, const uint8_t *bytes,
                             int32_t size, uintptr_t base, int32_t buffer) {
    uint8_t *view = (uint8_t *)column->offsets + LS_GATHER_VIEW_BYTES * row;
    if (LS_LIKELY(size >= 0)) {
        put_view(view, bytes, size, (uint32_t)buffer | (uint64_t)((uintptr_t)bytes - base) << 32);
        return;
    }
    memset(view, 0, LS_GATHER_VIEW_BYTES);
    clear_bit(column->validity, row);
    column->null_count += 1;
}

#endif
