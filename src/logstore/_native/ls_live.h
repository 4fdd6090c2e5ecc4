/*
 * ls_live.h: the page that a log's writer and its readers in other processes share. Only ls_live.c,
 * the writer and what reads beside one in C (ls_py_*.c) include this. Format and rules: live_offsets.py; contract: logstore.h.
 *
 * A fixed place for each field: readers may be of another build of the same version.
 */
#ifndef LS_LIVE_H
#define LS_LIVE_H

#include <stdatomic.h>

#include "ls_internal.h"

struct ls_live {
    uint8_t header[LS_LIVE_HEADER_BYTES]; /* magic, version, boot id, host: Python's */

    /* Moved by every append. */
    _Atomic int64_t log_end_offset;
    _Atomic int64_t size_bytes;
    _Atomic int64_t offset_entry_count;
    _Atomic int64_t time_entry_count;
    _Atomic uint32_t has_waiters; /* somebody sleeps, or is about to: bump the word and wake */
    _Atomic uint32_t word;        /* what they sleep on */
    int64_t reserved[3];

    /* Moved together: odd while that is under way. */
    _Atomic int64_t change_count;
    _Atomic int64_t writer_epoch;
    _Atomic int64_t is_open;
    _Atomic int64_t active_base_offset;
    _Atomic int64_t log_start_offset;
    _Atomic int64_t high_watermark;
    _Atomic int64_t first_unstable_offset;
    _Atomic int64_t recovery_point;
    _Atomic int64_t truncation_count;
    _Atomic int64_t writer_pid;
    _Atomic int64_t pid_namespace;
    int64_t more[5];

    _Atomic int64_t truncated_to[LS_LIVE_TRUNCATIONS];
};

_Static_assert(offsetof(struct ls_live, log_end_offset) == LS_LIVE_END_AT, "fixed places");
_Static_assert(offsetof(struct ls_live, change_count) == LS_LIVE_CHANGE_AT, "fixed places");
_Static_assert(offsetof(struct ls_live, truncation_count) == LS_LIVE_TRUNCATIONS_AT,
               "fixed places");
_Static_assert(offsetof(struct ls_live, truncated_to) == 320, "fixed places");
_Static_assert(sizeof(struct ls_live) <= LS_LIVE_BYTES, "one page");

/* Wake who sleeps; `live` has waiters. */
void ls_live_wake(struct ls_live *live);

LS_INLINE void ls_live_end(struct ls_live *live, int64_t log_end_offset) {
    /*
     * Sequentially consistent: a waiter announces itself, then looks at the end; this stores the end,
     * then looks for waiters. One of the two sees the other.
     */
    atomic_store(&live->log_end_offset, log_end_offset);
    if (LS_UNLIKELY(atomic_load(&live->has_waiters) != 0)) ls_live_wake(live);
}

/* The bytes of a single append are written. */
LS_INLINE void ls_live_advance(struct ls_live *live, int64_t size_bytes, int64_t log_end_offset) {
    atomic_store_explicit(&live->size_bytes, size_bytes, memory_order_release);
    ls_live_end(live, log_end_offset);
}

/* Everything below an offset is on the device: alone, beside what changes the others. */
LS_INLINE void ls_live_flushed(struct ls_live *live, int64_t recovery_point) {
    atomic_store(&live->recovery_point, recovery_point);
    atomic_fetch_add(&live->change_count, 2);
    if (LS_UNLIKELY(atomic_load(&live->has_waiters) != 0)) ls_live_wake(live);
}

/* Another segment is active: everything about it changes at once. `published`: as ls_writer_published states. */
void ls_live_attach(struct ls_live *live, int64_t base_offset, const _Atomic int64_t *published);

#endif
