/* ls_columns.h: what the files of the gather kernel share; nothing here is visible to Python. */
#ifndef LS_COLUMNS_H
#define LS_COLUMNS_H

#include "ls_encode_inline.h"
#include "ls_open_batch.h"
#include "ls_record.h"

/*
 * Append a batch's records from gather->record_position (relative to `bytes`) on, as far as they are
 * wanted and there is room. `readable` is the end of the memory that may be read, at or behind the
 * batch's. LS_BLOCK_END: the batch is done; BOUND; FULL; INVALID: nothing of it was appended.
 */
enum ls_block_stop ls_put_batch(struct ls_gather *gather, const struct ls_open_batch *batch,
                                const uint8_t *bytes, const uint8_t *readable);

/*
 * Whether the rows of a batch follow from its header: its offsets have no gap, and nothing else is
 * wanted that its records do not share. The CRC then has to stand for the records, which nobody
 * looks at, compressed or not; where it is not checked they are decoded.
 */
bool ls_header_says_all(const struct ls_gather *gather, const struct ls_open_batch *batch);

/*
 * Append the headers of a record as item `row` of the lists. They begin with their count at `at`, end
 * at `next`, and ls_parse_record has checked them. False: there is no room, and the wanted_ fields
 * say for what.
 */
bool ls_put_headers(struct ls_gather_headers *headers, int64_t row, const uint8_t *at,
                    const uint8_t *next);

#endif
