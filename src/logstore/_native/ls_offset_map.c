/*
 * ls_offset_map.c: the last offset of each key of a log's dirty part. Contract: logstore.h.
 * Source: Kafka SkimpyOffsetMap, Cleaner.buildOffsetMapForSegment; spec 7.2.
 */
#include "ls_offset_map.h"

#include "ls_open_batch.h"

_Static_assert(sizeof(struct ls_map_entry) == LS_OFFSET_MAP_ENTRY_BYTES, "24 bytes per key");

void ls_siphash128(const uint64_t *secret, uintptr_t bytes, int64_t size, uint64_t *hash) {
    assert(size >= 0);
    ls_sip(secret, (const uint8_t *)bytes, size, hash);
}

static int64_t put(struct ls_offset_map *map, const uint64_t hash[2], int64_t offset) {
    struct ls_map_entry *entry = ls_map_find(map, hash);
    if (entry == NULL) return LS_E_NO_ROOM;
    if (entry->end == 0) {
        entry->hash[0] = hash[0];
        entry->hash[1] = hash[1];
        map->entry_count += 1;
    }
    entry->end = (uint64_t)offset + 1;
    map->latest_offset = offset;
    return 0;
}

int64_t ls_offset_map_put(struct ls_offset_map *map, uintptr_t key, int64_t size, int64_t offset) {
    assert(map->slot_count > 0);
    assert(size >= 0);
    assert(offset >= 0 && offset < INT64_MAX);

    uint64_t hash[2];
    ls_sip(map->secret, (const uint8_t *)key, size, hash);
    return put(map, hash, offset);
}

int64_t ls_offset_map_get(const struct ls_offset_map *map, uintptr_t key, int64_t size) {
    assert(map->slot_count > 0);
    assert(size >= 0);

    uint64_t hash[2];
    ls_sip(map->secret, (const uint8_t *)key, size, hash);
    return ls_map_get(map, hash);
}

/* The records of one section; LS_CLEAN_END, LS_CLEAN_INVALID or LS_CLEAN_FULL. */
static enum ls_clean_stop map_section(struct ls_offset_map *map, const uint8_t *at,
                                      const uint8_t *end, int32_t record_count, int64_t base_offset,
                                      int64_t start_offset, struct ls_mapped *mapped) {
    struct ls_ahead ahead[LS_KEYS_AHEAD];
    int32_t remaining = record_count;
    while (remaining > 0) {
        int32_t count = ls_look_ahead(map, &at, end, remaining, ahead);
        if (count < 0) return LS_CLEAN_INVALID;
        for (int32_t index = 0; index < count; ++index) {
            const struct ls_ahead *record = &ahead[index];
            int64_t offset = ls_wrapping_add(base_offset, record->offset_delta);
            if (offset >= start_offset && !record->has_key) mapped->null_keys += 1;
            if (offset >= start_offset && record->has_key) {
                if (map->entry_count >= map->entries_max) return LS_CLEAN_FULL;
                if (offset < 0 || put(map, record->hash, offset) != 0) return LS_CLEAN_INVALID;
            }
            mapped->records_read += 1;
        }
        remaining -= count;
    }
    return at == end ? LS_CLEAN_END : LS_CLEAN_INVALID;
}

void ls_map_section(struct ls_offset_map *map, uintptr_t section, int64_t size,
                    int32_t record_count, int64_t base_offset, int64_t start_offset,
                    struct ls_mapped *mapped) {
    assert(map->entries_max <= map->slot_count);
    assert(start_offset >= 0);

    const uint8_t *at = (const uint8_t *)section;
    *mapped = (struct ls_mapped){.stop = LS_CLEAN_INVALID};
    if (record_count < 0) return;
    mapped->stop =
        (int32_t)map_section(map, at, at + size, record_count, base_offset, start_offset, mapped);
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

    enum ls_clean_stop stop = map_section(map, batch.records, batch.end, batch.record_count,
                                          batch.base_offset, start_offset, mapped);
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
