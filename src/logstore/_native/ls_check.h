/*
 * ls_check.h: look at the records of a batch as a leader must, a part of the section after the
 * other, so that the bytes are still in the cache from the CRC pass. Nothing here is visible to
 * Python.
 */
#ifndef LS_CHECK_H
#define LS_CHECK_H

#include "ls_internal.h"

/* A walk through one plain records section. */
struct ls_record_walk {
    const uint8_t *at; /* the next record */
    const uint8_t *end;
    int64_t base_timestamp;
    int64_t lowest_timestamp; /* bounds outside of which a timestamp other than -1 is counted */
    int64_t highest_timestamp;
    int32_t record_count;
    int32_t index;                /* records passed */
    struct ls_record_check check; /* of these */
};

/* Begin at the first record. record_count may be anything that a header says. */
void ls_walk_begin(struct ls_record_walk *walk, const uint8_t *section, int64_t size,
                   int32_t record_count, int64_t base_timestamp, int64_t lowest_timestamp,
                   int64_t highest_timestamp);
/* Pass the records that begin before `limit`; false: one breaks a rule of the format. */
bool ls_walk_to(struct ls_record_walk *walk, const uint8_t *limit);
/* Whether exactly record_count records were passed, and no byte is left. */
bool ls_walk_is_whole(const struct ls_record_walk *walk);

#endif
