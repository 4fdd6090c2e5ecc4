/*
 * ls_encode_internal.h: what the encoder's files share. One loop (ls_encode_loops.h) is compiled
 * for each width of registers, and ls_encode.c chooses at run time.
 */
#ifndef LS_ENCODE_INTERNAL_H
#define LS_ENCODE_INTERNAL_H

#include "ls_encode_inline.h"

/* Item i of a column is bytes[offset(first + i), offset(first + i + 1)). */
struct ls_column {
    const uint8_t *bytes;
    const void *offsets;     /* NULL: every item is null */
    const uint8_t *validity; /* NULL: no item is null */
    int64_t size;            /* no offset may exceed it */
    int64_t wild_end;   /* an item that ends here or before may be read 128 bytes beyond its end */
    int64_t bit_offset; /* of item 0 */
    bool wide;          /* int64 offsets */
};

struct ls_encoding {
    struct ls_column values;
    struct ls_column keys;
    struct ls_column headers;
    const int64_t *timestamps; /* NULL: timestamp for all */
    int64_t timestamp;
    int64_t base_timestamp;
    const int64_t *rows; /* record i is that of row rows[i]; NULL: row i */
    int64_t count_max;
    uint8_t *out_end; /* the first record alone may go up to here, plus slack */
    uint8_t *end;     /* all records together up to here, plus slack */
    /* What the loops change. */
    uint8_t *at;
    int64_t count;
    int64_t max_timestamp;
};

/*
 * Encode records while they fit. Return 0, or an enum ls_error.
 */
int64_t ls_encode_loop_portable(struct ls_encoding *encoding);
void ls_copy_large_portable(uint8_t *to, const uint8_t *from, int64_t size);
#if LS_X86
int64_t ls_encode_loop_avx2(struct ls_encoding *encoding);
void ls_copy_large_avx2(uint8_t *to, const uint8_t *from, int64_t size);
#endif

#endif
