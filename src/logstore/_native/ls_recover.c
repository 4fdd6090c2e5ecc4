/*
 * ls_recover.c: whether a segment is what its recovery would make of it. Contract: logstore.h.
 * Source: Kafka LogSegment.recover; spec 4.7.
 */
#include <fcntl.h>

#include "ls_internal.h"

enum { BATCHES_AT_ONCE = 64, NO_PRODUCER_ID = -1 };

/* Entries made so far, in memory of the caller's. */
struct entries {
    uint8_t *offset_entries;
    uint8_t *time_entries;
    int64_t offset_count;
    int64_t time_count;
    int64_t cap; /* of each */
};

static bool is_plain(const struct ls_batch *batch, const struct ls_plain_segment *segment) {
    return batch->base_offset >= segment->next_offset && batch->producer_id == NO_PRODUCER_ID &&
           batch->leader_epoch <= segment->leader_epoch;
}

static bool add_entries(const struct ls_batch *batches, int64_t count,
                        struct ls_plain_segment *segment, struct entries *entries) {
    struct ls_index_made made;
    uint8_t *offset_entry = entries->offset_entries + entries->offset_count * LS_OFFSET_ENTRY_BYTES;
    uint8_t *time_entry = entries->time_entries + entries->time_count * LS_TIME_ENTRY_BYTES;
    int64_t done =
        ls_index_batches((uintptr_t)batches, count, &segment->index, (uintptr_t)offset_entry,
                         entries->cap - entries->offset_count, (uintptr_t)time_entry,
                         entries->cap - entries->time_count, &made);
    entries->offset_count += made.offset_entries;
    entries->time_count += made.time_entries;
    return done == count;
}

/* All bytes are plain batches; their entries are made. */
static bool walk(const uint8_t *bytes, struct ls_plain_segment *segment, struct entries *entries) {
    struct ls_batch batches[BATCHES_AT_ONCE];
    int64_t position = 0;
    segment->next_offset = segment->index.base_offset;
    while (position < segment->size_bytes) {
        struct ls_scan scan;
        ls_scan_batches((uintptr_t)(bytes + position), segment->size_bytes - position, position,
                        segment->next_offset, LS_SCAN_CRC, (uintptr_t)batches, BATCHES_AT_ONCE,
                        &scan);
        if (scan.stop != LS_STOP_END && scan.stop != LS_STOP_FULL) return false;
        for (int64_t at = 0; at < scan.batch_count; ++at) {
            if (!is_plain(&batches[at], segment)) return false;
            segment->next_offset = batches[at].last_offset + 1;
        }
        if (!add_entries(batches, scan.batch_count, segment, entries)) return false;
        position += scan.valid_bytes;
    }
    return true;
}

/* The entry that a segment gets when it is sealed. */
static bool add_last_time_entry(const struct ls_index_state *index, struct entries *entries) {
    if (index->max_timestamp <= index->last_time_entry_timestamp ||
        index->offset_of_max_timestamp < index->last_time_entry_offset)
        return true;
    if (entries->time_count == entries->cap) return false;
    uint8_t *entry = entries->time_entries + entries->time_count * LS_TIME_ENTRY_BYTES;
    ls_store_be64(entry, (uint64_t)index->max_timestamp);
    ls_store_be32(entry + 8, (uint32_t)(index->offset_of_max_timestamp - index->base_offset));
    entries->time_count += 1;
    return true;
}

static bool read_file(ls_io *io, const char *path, uint8_t *bytes, int64_t size) {
    int64_t fd = ls_io_open(io, path, O_RDONLY, 0);
    if (fd < 0) return false;
    int64_t got = ls_io_read_all(io, (int32_t)fd, bytes, size, 0);
    return ls_io_close(io, (int32_t)fd) >= 0 && got == size;
}

bool ls_is_plain_segment(ls_io *io, const char *log, const char *offset_index,
                         const char *time_index, uintptr_t buffer, uintptr_t offset_entries,
                         uintptr_t time_entries, int64_t entries_cap,
                         struct ls_plain_segment *segment) {
    assert(segment != NULL);
    assert(segment->size_bytes >= 0);
    assert(entries_cap >= 0);

    struct entries entries = {(uint8_t *)offset_entries, (uint8_t *)time_entries, 0, 0,
                              entries_cap};
    return read_file(io, log, (uint8_t *)buffer, segment->size_bytes) &&
           walk((const uint8_t *)buffer, segment, &entries) &&
           add_last_time_entry(&segment->index, &entries) &&
           ls_io_file_equals(io, offset_index, entries.offset_entries,
                             entries.offset_count * LS_OFFSET_ENTRY_BYTES) == 1 &&
           ls_io_file_equals(io, time_index, entries.time_entries,
                             entries.time_count * LS_TIME_ENTRY_BYTES) == 1;
}
