/*
 * ls_index.c: entries of the offset and the time index: made from batches, searched, checked.
 * Contract: logstore.h. Source: Kafka LogSegment.append, OffsetIndex, TimeIndex; spec 3 and 4.2.
 */
#include "ls_internal.h"

enum { POSITION_AT = 4, TIME_OFFSET_AT = 8 };

static inline bool fits_31_bits(int64_t value) {
    return value >= 0 && value <= INT32_MAX;
}

int64_t ls_index_batches(uintptr_t batches, int64_t count, struct ls_index_state *state,
                         uintptr_t offset_entries, int64_t offset_cap, uintptr_t time_entries,
                         int64_t time_cap, struct ls_index_made *made) {
    assert(count >= 0);
    assert(offset_cap >= 0);
    assert(time_cap >= 0);
    assert(state != NULL);
    assert(made != NULL);

    const struct ls_batch *batch = (const struct ls_batch *)batches;
    uint8_t *offset_entry = (uint8_t *)offset_entries;
    uint8_t *time_entry = (uint8_t *)time_entries;
    *made = (struct ls_index_made){0};
    for (; made->batches < count; ++made->batches, ++batch) {
        /* The base offset is outside the CRC: subtract only what cannot overflow. */
        if (batch->last_offset < state->base_offset) return LS_E_TOO_LARGE;
        uint64_t relative_offset = (uint64_t)batch->last_offset - (uint64_t)state->base_offset;
        if (relative_offset > INT32_MAX || !fits_31_bits(batch->position)) return LS_E_TOO_LARGE;

        bool due = state->bytes_since_last_index_entry > state->index_interval_bytes;
        bool is_max = batch->max_timestamp > state->max_timestamp;
        int64_t max_timestamp = is_max ? batch->max_timestamp : state->max_timestamp;
        int64_t max_offset = is_max ? batch->last_offset : state->offset_of_max_timestamp;
        if (due) {
            bool offset_due = state->offset_entries_room > 0;
            /* An older offset than the last entry's would make the index unsearchable. */
            bool time_due =
                state->time_entries_room > 0 && max_timestamp > state->last_time_entry_timestamp &&
                max_offset >= state->last_time_entry_offset && max_offset >= state->base_offset;
            if (offset_due && made->offset_entries == offset_cap) break;
            if (time_due && made->time_entries == time_cap) break;
            if (offset_due) {
                ls_store_be32(offset_entry, (uint32_t)relative_offset);
                ls_store_be32(offset_entry + POSITION_AT, (uint32_t)batch->position);
                offset_entry += LS_OFFSET_ENTRY_BYTES;
                made->offset_entries += 1;
                state->offset_entries_room -= 1;
            }
            if (time_due) {
                ls_store_be64(time_entry, (uint64_t)max_timestamp);
                ls_store_be32(time_entry + TIME_OFFSET_AT,
                              (uint32_t)(max_offset - state->base_offset));
                time_entry += LS_TIME_ENTRY_BYTES;
                made->time_entries += 1;
                state->time_entries_room -= 1;
                state->last_time_entry_timestamp = max_timestamp;
                state->last_time_entry_offset = max_offset;
            }
            state->bytes_since_last_index_entry = 0;
        }
        state->max_timestamp = max_timestamp;
        state->offset_of_max_timestamp = max_offset;
        state->bytes_since_last_index_entry += batch->size_bytes;
    }
    return made->batches;
}

/* ---- search: branch-free halving; `entry` always is the last candidate known to qualify ----- */
int64_t ls_offset_index_lookup(uintptr_t entries, int64_t count, uint32_t relative_offset) {
    assert(count >= 0);
    const uint8_t *first = (const uint8_t *)entries;
    if (count == 0 || ls_load_be32(first) > relative_offset) return -1;
    const uint8_t *entry = first;
    for (int64_t left = count; left > 1;) {
        int64_t half = left / 2;
        const uint8_t *middle = entry + half * LS_OFFSET_ENTRY_BYTES;
        entry = ls_load_be32(middle) <= relative_offset ? middle : entry;
        left -= half;
    }
    return (entry - first) / LS_OFFSET_ENTRY_BYTES;
}

int64_t ls_offset_index_upper_bound(uintptr_t entries, int64_t count, int64_t position) {
    assert(count >= 0);
    const uint8_t *first = (const uint8_t *)entries;
    if (count == 0) return -1;
    if ((int64_t)ls_load_be32(first + POSITION_AT) >= position) return 0;
    const uint8_t *below = first; /* the last entry known to be below `position` */
    for (int64_t left = count; left > 1;) {
        int64_t half = left / 2;
        const uint8_t *middle = below + half * LS_OFFSET_ENTRY_BYTES;
        below = (int64_t)ls_load_be32(middle + POSITION_AT) < position ? middle : below;
        left -= half;
    }
    int64_t slot = (below - first) / LS_OFFSET_ENTRY_BYTES + 1;
    return slot < count ? slot : -1;
}

int64_t ls_time_index_lookup(uintptr_t entries, int64_t count, int64_t timestamp) {
    assert(count >= 0);
    const uint8_t *first = (const uint8_t *)entries;
    if (count == 0 || (int64_t)ls_load_be64(first) > timestamp) return -1;
    const uint8_t *entry = first;
    for (int64_t left = count; left > 1;) {
        int64_t half = left / 2;
        const uint8_t *middle = entry + half * LS_TIME_ENTRY_BYTES;
        entry = (int64_t)ls_load_be64(middle) <= timestamp ? middle : entry;
        left -= half;
    }
    return (entry - first) / LS_TIME_ENTRY_BYTES;
}

int64_t ls_time_index_lookup_offset(uintptr_t entries, int64_t count, uint32_t relative_offset) {
    assert(count >= 0);
    const uint8_t *first = (const uint8_t *)entries;
    if (count == 0 || ls_load_be32(first + TIME_OFFSET_AT) > relative_offset) return -1;
    const uint8_t *entry = first;
    for (int64_t left = count; left > 1;) {
        int64_t half = left / 2;
        const uint8_t *middle = entry + half * LS_TIME_ENTRY_BYTES;
        entry = ls_load_be32(middle + TIME_OFFSET_AT) <= relative_offset ? middle : entry;
        left -= half;
    }
    return (entry - first) / LS_TIME_ENTRY_BYTES;
}

/* ---- order ---------------------------------------------------------------------------------- */
int64_t ls_offset_index_check(uintptr_t entries, int64_t count) {
    assert(count >= 0);
    const uint8_t *entry = (const uint8_t *)entries;
    int64_t last_offset = -1;
    int64_t last_position = -1;
    for (int64_t slot = 0; slot < count; ++slot, entry += LS_OFFSET_ENTRY_BYTES) {
        int64_t offset = (int32_t)ls_load_be32(entry);
        int64_t position = (int32_t)ls_load_be32(entry + POSITION_AT);
        if (offset <= last_offset || position <= last_position) return slot;
        last_offset = offset;
        last_position = position;
    }
    return -1;
}

int64_t ls_time_index_check(uintptr_t entries, int64_t count) {
    assert(count >= 0);
    const uint8_t *entry = (const uint8_t *)entries;
    int64_t last_timestamp = -1;
    int64_t last_offset = 0;
    for (int64_t slot = 0; slot < count; ++slot, entry += LS_TIME_ENTRY_BYTES) {
        int64_t timestamp = (int64_t)ls_load_be64(entry);
        int64_t offset = (int32_t)ls_load_be32(entry + TIME_OFFSET_AT);
        if (timestamp <= last_timestamp || offset < last_offset) return slot;
        last_timestamp = timestamp;
        last_offset = offset;
    }
    return -1;
}
