/*
 * ls_offset_map.c: the last offset of each key of a log's dirty part. Contract: logstore.h.
 * Source: Kafka SkimpyOffsetMap, Cleaner.buildOffsetMapForSegment; spec 7.2.
 */
#include "ls_offset_map.h"

#include "ls_open_batch.h"

_Static_assert(sizeof(struct ls_map_entry) == LS_OFFSET_MAP_ENTRY_BYTES, "bytes of a slot");

int64_t ls_offset_map_has_room(struct ls_offset_map *map, int64_t offset) {
    /* Nothing is relative to the base yet: where few offsets are left, it may be far below. */
    if (map->entry_count == 0 && offset - map->base_offset >= LS_MAP_REACH)
        map->base_offset = offset;
    return map->entry_count < map->entries_max && offset - map->base_offset < LS_MAP_REACH;
}

/* Offsets, counted from the base, of records whose key has come again; still to be noted. */
struct superseded {
    uint64_t offsets[LS_KEYS_MAX];
    int32_t count;
};

/* They are anywhere in memory: each is on its way into the cache before the first is noted. */
LS_INLINE void note_superseded(struct ls_offset_map *map, const struct superseded *superseded) {
    uint64_t *words = (uint64_t *)map->superseded;
    for (int32_t index = 0; index < superseded->count; ++index) {
        uint64_t offset = superseded->offsets[index];
        if (offset < (uint64_t)map->superseded_count)
            words[offset >> 6] |= (uint64_t)1 << (offset & 63);
    }
}

LS_INLINE int64_t put(struct ls_offset_map *map, uint64_t hash0, uint64_t hash1, int64_t offset,
                      struct superseded *superseded) {
    uint64_t end = (uint64_t)(offset - map->base_offset) + 1;
    if (LS_UNLIKELY(offset < map->base_offset || end > LS_MAP_END_MASK)) return LS_E_NO_ROOM;
    struct ls_map_entry *entry = ls_map_find(map, hash0, hash1);
    if (entry == NULL) return LS_E_NO_ROOM;
    /* Who comes later says who is superseded only while offsets ascend. */
    if (LS_UNLIKELY(offset <= map->latest_offset)) map->superseded_count = 0;
    if (ls_map_is_free(entry)) {
        entry->hash = hash0;
        map->entry_count += 1;
    } else {
        uint64_t before = (entry->tagged_end & LS_MAP_END_MASK) - 1;
        superseded->offsets[superseded->count++] = before;
        if (before < (uint64_t)map->superseded_count)
            __builtin_prefetch((const uint64_t *)map->superseded + (before >> 6), 1);
    }
    entry->tagged_end = hash1 << LS_MAP_END_BITS | end;
    map->latest_offset = offset;
    return 0;
}

int64_t ls_offset_map_put(struct ls_offset_map *map, uintptr_t key, int64_t size, int64_t offset) {
    assert(map->slot_count > 0);
    assert(size >= 0);
    assert(offset >= 0 && offset < INT64_MAX);

    uint64_t hash[2];
    ls_hash_key(map->secret, (const uint8_t *)key, size, hash);
    struct superseded superseded = {.count = 0};
    int64_t status = put(map, hash[0], hash[1], offset, &superseded);
    note_superseded(map, &superseded);
    return status;
}

int64_t ls_offset_map_get(const struct ls_offset_map *map, uintptr_t key, int64_t size) {
    assert(map->slot_count > 0);
    assert(size >= 0);

    uint64_t hash[2];
    ls_hash_key(map->secret, (const uint8_t *)key, size, hash);
    return ls_map_get(map, hash[0], hash[1]);
}

/* A plain records section, and from which offset on its records are put. */
struct section {
    const uint8_t *records;
    const uint8_t *end;
    int64_t base_offset;
    int64_t start_offset;
    int32_t last_offset_delta;
    int32_t record_count;
};

/*
 * Put the records of one block, and ask for the slots of the next; LS_CLEAN_END, LS_CLEAN_INVALID or
 * LS_CLEAN_FULL.
 */
LS_INLINE enum ls_clean_stop put_records(struct ls_offset_map *map, const struct section *section,
                                         const struct ls_ahead *ahead, const struct ls_ahead *next,
                                         struct ls_mapped *mapped, struct superseded *superseded) {
    for (int32_t index = 0; index < ahead->count; ++index) {
        ls_ask_for_slot(map, next, index);
        int32_t delta = ahead->offset_deltas[index];
        int64_t offset = ls_wrapping_add(section->base_offset, delta);
        bool has_key = ahead->keys.sizes[index] >= 0;
        /* An offset outside of the batch may be another record's, too. */
        if (LS_UNLIKELY(delta < 0 || delta > section->last_offset_delta)) map->superseded_count = 0;
        if (offset >= section->start_offset && !has_key) {
            mapped->null_keys += 1;
            map->superseded_count = 0; /* They go, too, and are counted then. */
        }
        if (offset >= section->start_offset && has_key) {
            if (offset < 0) return LS_CLEAN_INVALID;
            if (!ls_offset_map_has_room(map, offset)) return LS_CLEAN_FULL;
            if (put(map, ahead->keys.hash0[index], ahead->keys.hash1[index], offset, superseded) !=
                0)
                return LS_CLEAN_INVALID;
        }
        mapped->records_read += 1;
    }
    return LS_CLEAN_END;
}

static enum ls_clean_stop put_block(struct ls_offset_map *map, const struct section *section,
                                    const struct ls_ahead *ahead, const struct ls_ahead *next,
                                    struct ls_mapped *mapped) {
    struct superseded superseded;
    superseded.count = 0;
    enum ls_clean_stop stop = put_records(map, section, ahead, next, mapped, &superseded);
    note_superseded(map, &superseded);
    return stop;
}

/* The records of one section; LS_CLEAN_END, LS_CLEAN_INVALID or LS_CLEAN_FULL. */
static enum ls_clean_stop map_section(struct ls_offset_map *map, const struct section *section,
                                      struct ls_mapped *mapped) {
    struct ls_ahead blocks[2];
    struct ls_ahead *block = &blocks[0];
    struct ls_ahead *next = &blocks[1];
    const uint8_t *at = section->records;
    int32_t remaining = section->record_count;
    bool is_sound = ls_look_ahead(map, at, section->end, remaining, block);
    ls_ask_for_slots(map, block);
    while (block->count > 0) {
        at = block->begins[block->count];
        remaining -= block->count;
        next->count = 0;
        bool is_next_sound = is_sound && ls_look_ahead(map, at, section->end, remaining, next);
        enum ls_clean_stop stop = put_block(map, section, block, next, mapped);
        if (stop != LS_CLEAN_END) return stop;
        if (!is_sound) return LS_CLEAN_INVALID;
        struct ls_ahead *done = block;
        block = next;
        next = done;
        is_sound = is_next_sound;
    }
    return is_sound && at == section->end ? LS_CLEAN_END : LS_CLEAN_INVALID;
}

void ls_map_section(struct ls_offset_map *map, uintptr_t bytes, int64_t size, int32_t record_count,
                    int64_t base_offset, int32_t last_offset_delta, int64_t start_offset,
                    struct ls_mapped *mapped) {
    assert(map->entries_max <= map->slot_count);
    assert(start_offset >= 0);

    const struct section section = {
        .records = (const uint8_t *)bytes,
        .end = (const uint8_t *)bytes + size,
        .base_offset = base_offset,
        .start_offset = start_offset,
        .last_offset_delta = last_offset_delta,
        .record_count = record_count,
    };
    *mapped = (struct ls_mapped){.stop = LS_CLEAN_INVALID};
    if (record_count < 0) return;
    mapped->stop = (int32_t)map_section(map, &section, mapped);
    if (mapped->stop == LS_CLEAN_END) mapped->bytes_read = size;
}

static enum ls_clean_stop map_batch(struct ls_offset_map *map, const uint8_t *at, int64_t size,
                                    int64_t start_offset, int32_t flags, struct ls_mapped *mapped) {
    struct ls_open_batch batch;
    enum ls_block_stop opened = ls_open_batch_at(at, size, &batch);
    if (opened == LS_BLOCK_TORN) return LS_CLEAN_TORN;
    if (opened == LS_BLOCK_LEGACY) return LS_CLEAN_LEGACY;
    if (opened != LS_BLOCK_END) return LS_CLEAN_INVALID;
    int32_t special = LS_CODEC_MASK | LS_CONTROL_BIT;
    if (!(flags & LS_CLEAN_TRANSACTIONAL)) special |= LS_TRANSACTIONAL_BIT;
    if (batch.attributes & special) return LS_CLEAN_SPECIAL;
    if (!ls_has_right_crc(at, &batch)) return LS_CLEAN_INVALID;

    const struct section section = {
        .records = batch.records,
        .end = batch.end,
        .base_offset = batch.base_offset,
        .start_offset = start_offset,
        .last_offset_delta = batch.last_offset_delta,
        .record_count = batch.record_count,
    };
    enum ls_clean_stop stop = map_section(map, &section, mapped);
    if (stop != LS_CLEAN_END) return stop;
    int64_t last_offset = batch.base_offset + batch.last_offset_delta;
    if (last_offset >= start_offset) map->latest_offset = last_offset;
    mapped->bytes_read += batch.end - at;
    return LS_CLEAN_END;
}

void ls_map_batches(struct ls_offset_map *map, uintptr_t bytes, int64_t size, int64_t start_offset,
                    int32_t flags, int64_t batches_max, struct ls_mapped *mapped) {
    assert(map->slot_count > 0);
    assert(map->entries_max <= map->slot_count);
    assert(start_offset >= 0);

    const uint8_t *at = (const uint8_t *)bytes;
    *mapped = (struct ls_mapped){.stop = LS_CLEAN_END};
    for (int64_t taken = 0; mapped->bytes_read < size; ++taken) {
        if (taken == batches_max) {
            mapped->stop = LS_CLEAN_TAKEN;
            return;
        }
        mapped->stop = (int32_t)map_batch(map, at + mapped->bytes_read, size - mapped->bytes_read,
                                          start_offset, flags, mapped);
        if (mapped->stop != LS_CLEAN_END) return;
    }
}
