/*
 * ls_clean.c: what a cleaning round retains of batches. Contract: logstore.h.
 * Source: Kafka Cleaner.cleanInto and shouldRetainRecord, MemoryRecords.filterTo; spec 7.4.
 */
#include "ls_offset_map.h"
#include "ls_open_batch.h"

/* What a record may grow by: a timestamp delta of 10 bytes for 1, a size of 5 for 1. */
enum { RECORD_GROWTH_MAX = 14 };

/* One batch between its reading and its writing. */
struct filtering {
    const struct ls_offset_map *map;
    const struct ls_cleaning *cleaning;
    struct ls_open_batch batch;
    struct ls_run *runs; /* of records that stay, ascending */
    int32_t run_count;
    int32_t retained_count;
    int32_t invalid_count;
    bool has_tombstones;     /* among those that stay */
    int64_t first_timestamp; /* of those that stay */
    int64_t max_timestamp;
    int64_t base_timestamp; /* of the new batch */
    bool has_horizon;       /* which that is */
};

static int64_t timestamp_of(const struct ls_open_batch *batch, int64_t delta) {
    if (batch->timestamp_type == 1) return batch->max_timestamp;
    return ls_wrapping_add(batch->base_timestamp, delta);
}

/* Whether tombstones stay, as far as their batch says so. */
static bool retains_tombstones(const struct filtering *filtering) {
    return !(filtering->batch.attributes & LS_DELETE_HORIZON_BIT) ||
           filtering->cleaning->now_ms < filtering->batch.base_timestamp;
}

/* Count the record at [begin, end) among those that stay. */
LS_INLINE void retain(struct filtering *filtering, const uint8_t *begin, const uint8_t *end,
                      int64_t timestamp_delta, bool has_value) {
    int64_t timestamp = timestamp_of(&filtering->batch, timestamp_delta);
    if (filtering->retained_count == 0) filtering->first_timestamp = timestamp;
    if (timestamp > filtering->max_timestamp) filtering->max_timestamp = timestamp;
    if (!has_value) filtering->has_tombstones = true;
    filtering->retained_count += 1;

    const uint8_t *records = filtering->batch.records;
    int32_t begin_at = (int32_t)(begin - records);
    struct ls_run *last = filtering->runs + filtering->run_count - 1;
    if (filtering->run_count > 0 && last->end == begin_at) {
        last->end = (int32_t)(end - records);
    } else {
        filtering->runs[filtering->run_count++] =
            (struct ls_run){.begin = begin_at, .end = (int32_t)(end - records)};
    }
}

static void begin_choice(struct filtering *filtering) {
    filtering->run_count = 0;
    filtering->retained_count = 0;
    filtering->invalid_count = 0;
    filtering->has_tombstones = false;
    filtering->max_timestamp = -1;
}

/* Source: Kafka Cleaner.shouldRetainRecord. */
LS_INLINE bool retains(struct filtering *filtering, const struct ls_ahead *ahead, int32_t index,
                       bool keeps_tombstones) {
    const struct ls_offset_map *map = filtering->map;
    int64_t offset = ls_wrapping_add(filtering->batch.base_offset, ahead->offset_deltas[index]);
    if (offset > map->latest_offset) return true;
    if (ahead->keys.sizes[index] < 0) {
        filtering->invalid_count += 1;
        return false;
    }
    if (!ahead->have_value[index] && !keeps_tombstones) return false;
    return offset >= ls_map_get(map, ahead->keys.hash0[index], ahead->keys.hash1[index]);
}

/* Decide about each record by its key. False: one breaks the format. */
static bool choose_by_key(struct filtering *filtering) {
    const struct ls_open_batch *batch = &filtering->batch;
    bool keeps_tombstones = retains_tombstones(filtering);
    struct ls_ahead blocks[2];
    struct ls_ahead *block = &blocks[0];
    struct ls_ahead *next = &blocks[1];
    const uint8_t *at = batch->records;
    int32_t remaining = batch->record_count;
    bool is_sound = ls_look_ahead(filtering->map, at, batch->end, remaining, block);
    ls_ask_for_slots(filtering->map, block);
    while (is_sound && block->count > 0) {
        at = block->begins[block->count];
        remaining -= block->count;
        is_sound = ls_look_ahead(filtering->map, at, batch->end, remaining, next);
        for (int32_t index = 0; index < block->count; ++index) {
            ls_ask_for_slot(filtering->map, next, index);
            if (retains(filtering, block, index, keeps_tombstones))
                retain(filtering, block->begins[index], block->begins[index + 1],
                       block->timestamp_deltas[index], block->have_value[index]);
        }
        struct ls_ahead *done = block;
        block = next;
        next = done;
    }
    return is_sound && at == batch->end;
}

/*
 * Whether the map has noted which of the batch's offsets are superseded. Those of a transaction were
 * not put if it was taken for aborted, as Kafka takes one whose producer's aborted one before it
 * ended just below the dirty part.
 */
static bool is_noted(const struct ls_offset_map *map, const struct ls_open_batch *batch) {
    return !(batch->attributes & LS_TRANSACTIONAL_BIT) && batch->base_offset >= map->base_offset &&
           batch->base_offset - map->base_offset < map->superseded_count - batch->last_offset_delta;
}

/*
 * Decide about each record by what the map noted of its offset: all of them were looked at when it
 * was built, or are above its end. False: it cannot be said of one.
 *
 * Offsets ascend, or nothing is noted. So where the next offset is superseded, the next record has
 * it, and nothing more of it needs a look.
 */
static bool choose_by_offset(struct filtering *filtering) {
    const struct ls_offset_map *map = filtering->map;
    const struct ls_open_batch *batch = &filtering->batch;
    bool keeps_tombstones = retains_tombstones(filtering);
    int64_t first = batch->base_offset - map->base_offset;
    int64_t tombstones_from = map->latest_offset - batch->base_offset;
    const uint8_t *at = batch->records;
    int64_t next_delta = 0;
    for (int32_t index = 0; index < batch->record_count; ++index) {
        const uint8_t *begin = at;
        if (next_delta <= batch->last_offset_delta && ls_is_superseded(map, first + next_delta)) {
            const uint8_t *body;
            at = ls_record_end(begin, batch->end, &body);
            if (at == NULL) return false;
            next_delta += 1;
            continue;
        }
        struct ls_record record;
        at = ls_parse_record(begin, batch->end, &record);
        if (at == NULL) return false;
        int32_t delta = record.offset_delta;
        if (delta < next_delta || delta > batch->last_offset_delta) return false;
        next_delta = (int64_t)delta + 1;
        if (ls_is_superseded(map, first + delta)) continue;
        bool has_value = record.value_size >= 0;
        if (!has_value && !keeps_tombstones && delta <= tombstones_from) continue;
        retain(filtering, begin, at, record.timestamp_delta, has_value);
    }
    return at == batch->end;
}

/* Decide about each record. False: one breaks the format. */
static bool choose_records(struct filtering *filtering, struct ls_run *runs) {
    filtering->runs = runs;
    begin_choice(filtering);
    bool is_chosen = is_noted(filtering->map, &filtering->batch) && choose_by_offset(filtering);
    if (!is_chosen) {
        begin_choice(filtering);
        if (!choose_by_key(filtering)) return false;
    }
    if (filtering->batch.timestamp_type == 1)
        filtering->max_timestamp = filtering->batch.max_timestamp;
    return true;
}

/* Which timestamp the new deltas count from. Returns whether every byte may stay as it is. */
static bool choose_base(struct filtering *filtering) {
    const struct ls_open_batch *batch = &filtering->batch;
    bool had_horizon = (batch->attributes & LS_DELETE_HORIZON_BIT) != 0;
    bool sets_horizon = filtering->has_tombstones && !had_horizon;
    filtering->has_horizon = had_horizon || sets_horizon;
    if (sets_horizon) {
        filtering->base_timestamp = filtering->cleaning->delete_horizon;
    } else {
        filtering->base_timestamp =
            had_horizon ? batch->base_timestamp : filtering->first_timestamp;
    }
    return filtering->retained_count == batch->record_count && !sets_horizon;
}

static uint8_t *put_varlong(uint8_t *out, uint64_t bits) {
    while (bits >= 128) {
        *out++ = (uint8_t)(bits | 128);
        bits >>= 7;
    }
    *out++ = (uint8_t)bits;
    return out;
}

/* Where a record, which was parsed before, has its timestamp delta, and where it ends. */
struct place {
    const uint8_t *delta;
    const uint8_t *rest; /* behind the delta */
    const uint8_t *end;
    int64_t timestamp_delta;
};

static struct place place_of(const uint8_t *at, const uint8_t *end) {
    uint32_t size_bits = 0;
    uint64_t delta_bits = 0;
    struct place place;
    at = ls_get_varint(at, end, &size_bits);
    assert(at != NULL);
    place.end = at + ls_unzigzag32(size_bits);
    place.delta = at + 1;
    place.rest = ls_get_varlong(place.delta, place.end, &delta_bits);
    place.timestamp_delta = ls_unzigzag64(delta_bits);
    return place;
}

/* Copy [from, to), which may be nothing. */
static uint8_t *put_bytes(uint8_t *out, const uint8_t *from, const uint8_t *to) {
    if (to > from) memcpy(out, from, (size_t)(to - from));
    return out + (to - from);
}

/* Write the records of [at, end) with other timestamp deltas; those of equal bytes as one. */
static uint8_t *put_shifted(const struct filtering *filtering, const uint8_t *at,
                            const uint8_t *end, uint8_t *out) {
    const struct ls_open_batch *batch = &filtering->batch;
    const uint8_t *equal = at; /* Up to here everything is written. */
    while (at < end) {
        struct place place = place_of(at, end);
        int64_t timestamp = timestamp_of(batch, place.timestamp_delta);
        int64_t delta = ls_wrapping_sub(timestamp, filtering->base_timestamp);
        if (delta != place.timestamp_delta) {
            out = put_bytes(out, equal, at);
            uint64_t bits = ls_zigzag64(delta);
            int64_t body_size = 1 + ls_varlong_bytes(bits) + (place.end - place.rest);
            out = put_varlong(out, ls_zigzag32((int32_t)body_size));
            *out++ = 0; /* attributes */
            out = put_varlong(out, bits);
            out = put_bytes(out, place.rest, place.end);
            equal = place.end;
        }
        at = place.end;
    }
    return put_bytes(out, equal, end);
}

/* Write the records that stay. Returns the bytes written; `out` has room. */
static int64_t put_records(const struct filtering *filtering, uint8_t *out) {
    const struct ls_open_batch *batch = &filtering->batch;
    bool is_shifted =
        batch->timestamp_type == 1 || filtering->base_timestamp != batch->base_timestamp;
    uint8_t *begin = out;
    for (int32_t index = 0; index < filtering->run_count; ++index) {
        const uint8_t *from = batch->records + filtering->runs[index].begin;
        const uint8_t *to = batch->records + filtering->runs[index].end;
        out = is_shifted ? put_shifted(filtering, from, to, out) : put_bytes(out, from, to);
    }
    return out - begin;
}

/* The header of the batch at `source` for other records behind it, which are at out + 61. */
static void put_header(const uint8_t *source, int64_t section_size, int16_t attributes,
                       int64_t base_timestamp, int64_t max_timestamp, int32_t record_count,
                       uint8_t *out) {
    memcpy(out, source, LS_BATCH_OVERHEAD);
    int64_t length = LS_BATCH_OVERHEAD - LS_LOG_OVERHEAD + section_size;
    ls_store_be32(out + LS_LENGTH_AT, (uint32_t)length);
    ls_store_be16(out + LS_ATTRIBUTES_AT, (uint16_t)attributes);
    ls_store_be64(out + LS_BASE_TIMESTAMP_AT, (uint64_t)base_timestamp);
    ls_store_be64(out + LS_MAX_TIMESTAMP_AT, (uint64_t)max_timestamp);
    ls_store_be32(out + LS_RECORD_COUNT_AT, (uint32_t)record_count);
    ls_store_be32(out + LS_CRC_AT, ls_crc32c(0, (uintptr_t)(out + LS_ATTRIBUTES_AT),
                                             LS_BATCH_OVERHEAD - LS_ATTRIBUTES_AT + section_size));
}

static int16_t flags_of(int16_t attributes, bool has_horizon) {
    int32_t kept = attributes & (LS_LOG_APPEND_TIME_BIT | LS_TRANSACTIONAL_BIT | LS_CONTROL_BIT);
    return (int16_t)(kept | (has_horizon ? LS_DELETE_HORIZON_BIT : 0));
}

/* Write what stays of one batch that was marked; returns the bytes written. */
static int64_t put_batch(struct filtering *filtering, const uint8_t *at, uint8_t *out) {
    const struct ls_open_batch *batch = &filtering->batch;
    int64_t size = batch->end - at;
    if (filtering->retained_count == 0) {
        int64_t last_offset = batch->base_offset + batch->last_offset_delta;
        if (!ls_has_kept_end(filtering->cleaning, last_offset, last_offset)) return 0;
        put_header(at, 0, flags_of(batch->attributes, false), -1, batch->max_timestamp, 0, out);
        return LS_BATCH_OVERHEAD;
    }
    if (choose_base(filtering)) {
        memcpy(out, at, (size_t)size);
        return size;
    }
    int64_t section_size = put_records(filtering, out + LS_BATCH_OVERHEAD);
    put_header(at, section_size, flags_of(batch->attributes, filtering->has_horizon),
               filtering->base_timestamp, filtering->max_timestamp, filtering->retained_count, out);
    return LS_BATCH_OVERHEAD + section_size;
}

static enum ls_clean_stop clean_batch(const struct ls_offset_map *map,
                                      const struct ls_cleaning *cleaning, const uint8_t *at,
                                      int64_t size, int32_t flags, uint8_t *out, int64_t out_size,
                                      struct ls_run *runs, int64_t runs_max,
                                      struct ls_cleaned *cleaned) {
    struct filtering filtering = {.map = map, .cleaning = cleaning};
    struct ls_open_batch *batch = &filtering.batch;
    enum ls_block_stop opened = ls_open_batch_at(at, size, batch);
    if (opened == LS_BLOCK_TORN) return LS_CLEAN_TORN;
    if (opened == LS_BLOCK_LEGACY) return LS_CLEAN_LEGACY;
    if (opened != LS_BLOCK_END) return LS_CLEAN_INVALID;
    int32_t special = LS_CODEC_MASK | LS_CONTROL_BIT;
    if (!(flags & LS_CLEAN_TRANSACTIONAL)) special |= LS_TRANSACTIONAL_BIT;
    if (batch->attributes & special) return LS_CLEAN_SPECIAL;
    int64_t batch_size = batch->end - at;
    if (batch->record_count > batch_size / LS_RECORD_BYTES_MIN) return LS_CLEAN_INVALID;
    if (batch->record_count / 2 >= runs_max) return LS_CLEAN_FULL;
    if (out_size < batch_size + (int64_t)RECORD_GROWTH_MAX * batch->record_count)
        return LS_CLEAN_FULL;
    if (!ls_has_right_crc(at, batch)) return LS_CLEAN_INVALID;

    if (!choose_records(&filtering, runs)) return LS_CLEAN_INVALID;
    cleaned->bytes_written += put_batch(&filtering, at, out);
    cleaned->bytes_read += batch_size;
    cleaned->records_read += batch->record_count;
    cleaned->records_retained += filtering.retained_count;
    cleaned->records_invalid += filtering.invalid_count;
    return LS_CLEAN_END;
}

void ls_clean_batches(const struct ls_offset_map *map, const struct ls_cleaning *cleaning,
                      uintptr_t bytes, int64_t size, int32_t flags, int64_t batches_max,
                      uintptr_t out, int64_t out_size, uintptr_t runs, int64_t runs_max,
                      struct ls_cleaned *cleaned) {
    assert(map->slot_count > 0);
    assert(size >= 0);
    assert(out_size >= 0);

    const uint8_t *at = (const uint8_t *)bytes;
    *cleaned = (struct ls_cleaned){.stop = LS_CLEAN_END};
    for (int64_t taken = 0; cleaned->bytes_read < size; ++taken) {
        if (taken == batches_max) {
            cleaned->stop = LS_CLEAN_TAKEN;
            return;
        }
        cleaned->stop = (int32_t)clean_batch(
            map, cleaning, at + cleaned->bytes_read, size - cleaned->bytes_read, flags,
            (uint8_t *)out + cleaned->bytes_written, out_size - cleaned->bytes_written,
            (struct ls_run *)runs, runs_max, cleaned);
        if (cleaned->stop != LS_CLEAN_END) return;
    }
}

void ls_clean_section(const struct ls_offset_map *map, const struct ls_cleaning *cleaning,
                      uintptr_t header, uintptr_t section, int64_t size, uintptr_t out,
                      int64_t out_size, uintptr_t runs, int64_t runs_max,
                      struct ls_cleaned *cleaned) {
    assert(map->slot_count > 0);
    assert(size >= 0);

    struct filtering filtering = {.map = map, .cleaning = cleaning};
    struct ls_open_batch *batch = &filtering.batch;
    *cleaned = (struct ls_cleaned){.stop = LS_CLEAN_INVALID};
    /* The header as it is; its length says nothing of a section that was decompressed. */
    const uint8_t *at = (const uint8_t *)header;
    int64_t stored_size = LS_LOG_OVERHEAD + (int64_t)(int32_t)ls_load_be32(at + LS_LENGTH_AT);
    if (ls_open_batch_at(at, stored_size, batch) != LS_BLOCK_END) return;
    batch->records = (const uint8_t *)section;
    batch->end = batch->records + size;
    if (batch->record_count > size / LS_RECORD_BYTES_MIN) return;
    if (batch->record_count / 2 >= runs_max ||
        out_size < size + (int64_t)RECORD_GROWTH_MAX * batch->record_count) {
        cleaned->stop = LS_CLEAN_FULL;
        return;
    }
    if (!choose_records(&filtering, (struct ls_run *)runs)) return;
    cleaned->stop = LS_CLEAN_END;
    cleaned->bytes_read = size;
    cleaned->records_read = batch->record_count;
    cleaned->records_retained = filtering.retained_count;
    cleaned->records_invalid = filtering.invalid_count;
    if (filtering.retained_count == 0) return;
    cleaned->is_unchanged = choose_base(&filtering);
    cleaned->base_timestamp = filtering.base_timestamp;
    cleaned->max_timestamp = filtering.max_timestamp;
    cleaned->has_horizon = filtering.has_horizon;
    if (!cleaned->is_unchanged) {
        cleaned->bytes_written = put_records(&filtering, (uint8_t *)out);
    }
}
