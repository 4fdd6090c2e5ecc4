/*
 * ls_offset_map.h: the offset map inside the core, inline: look ahead, probe. Nothing here is
 * visible to Python; the contract is in logstore.h.
 */
#ifndef LS_OFFSET_MAP_H
#define LS_OFFSET_MAP_H

#include "ls_internal.h"
#include "ls_record.h"
#include "ls_siphash.h"

/* Four of them are a cache line, and none is in two. */
struct ls_map_entry {
    uint64_t hash;
    uint64_t tagged_end; /* 24 bits more of the hash, then offset - base_offset + 1; 0: free */
};

enum { LS_MAP_END_BITS = 40 };
#define LS_MAP_END_MASK (((uint64_t)1 << LS_MAP_END_BITS) - 1)
#define LS_MAP_REACH    ((int64_t)LS_MAP_END_MASK) /* offsets from the base on */

/* ---- slots ---------------------------------------------------------------------------------- */
/* Where an entry is looked for first; then in the slots that follow. */
LS_INLINE struct ls_map_entry *ls_map_slot(const struct ls_offset_map *map, uint64_t hash1) {
    uint64_t slot = (uint64_t)(((unsigned __int128)hash1 * (uint64_t)map->slot_count) >> 64);
    return (struct ls_map_entry *)map->entries + slot;
}

LS_INLINE bool ls_map_is_free(const struct ls_map_entry *entry) {
    return (entry->tagged_end & LS_MAP_END_MASK) == 0;
}

/* Whether the entry is free, or of this hash: 88 bits, beside those that led here. */
LS_INLINE bool ls_map_matches(const struct ls_map_entry *entry, uint64_t hash0, uint64_t hash1) {
    if (ls_map_is_free(entry)) return true;
    return entry->hash == hash0 &&
           entry->tagged_end >> LS_MAP_END_BITS == (hash1 & ((1u << (64 - LS_MAP_END_BITS)) - 1));
}

/* The entry of a hash, or the free slot where it would be; NULL: neither. */
LS_INLINE struct ls_map_entry *ls_map_find(const struct ls_offset_map *map, uint64_t hash0,
                                           uint64_t hash1) {
    struct ls_map_entry *first = (struct ls_map_entry *)map->entries;
    struct ls_map_entry *end = first + map->slot_count;
    struct ls_map_entry *begin = ls_map_slot(map, hash1);
    for (struct ls_map_entry *entry = begin; entry < end; ++entry)
        if (ls_map_matches(entry, hash0, hash1)) return entry;
    for (struct ls_map_entry *entry = first; entry < begin; ++entry)
        if (ls_map_matches(entry, hash0, hash1)) return entry;
    return NULL;
}

/* -1: no such key. */
LS_INLINE int64_t ls_map_get(const struct ls_offset_map *map, uint64_t hash0, uint64_t hash1) {
    const struct ls_map_entry *entry = ls_map_find(map, hash0, hash1);
    if (entry == NULL || ls_map_is_free(entry)) return -1;
    return map->base_offset + (int64_t)(entry->tagged_end & LS_MAP_END_MASK) - 1;
}

/* ---- offsets with a later record of the same key -------------------------------------------- */
LS_INLINE bool ls_is_superseded(const struct ls_offset_map *map, int64_t relative_offset) {
    const uint64_t *words = (const uint64_t *)map->superseded;
    return words[relative_offset >> 6] >> (relative_offset & 63) & 1;
}

/* ---- records of a section, some at a time, their slots on the way into the cache ------------- */
struct ls_ahead {
    struct ls_keys keys;
    const uint8_t *begins[LS_KEYS_MAX + 1]; /* of each record; the last one's end */
    int64_t timestamp_deltas[LS_KEYS_MAX];
    int32_t offset_deltas[LS_KEYS_MAX];
    int32_t count;
    bool have_value[LS_KEYS_MAX];
};

/*
 * Parse and hash up to LS_KEYS_MAX records. False: the record behind the last one of them breaks
 * the format.
 */
LS_INLINE bool ls_look_ahead(const struct ls_offset_map *map, const uint8_t *at, const uint8_t *end,
                             int32_t record_count, struct ls_ahead *ahead) {
    int32_t wanted = record_count < LS_KEYS_MAX ? record_count : LS_KEYS_MAX;
    int32_t count = 0;
    ahead->begins[0] = at;
    for (; count < wanted; ++count) {
        struct ls_record record;
        at = ls_parse_record(at, end, &record);
        if (LS_UNLIKELY(at == NULL)) break;
        ahead->begins[count + 1] = at;
        ahead->timestamp_deltas[count] = record.timestamp_delta;
        ahead->offset_deltas[count] = record.offset_delta;
        ahead->have_value[count] = record.value_size >= 0;
        ahead->keys.bytes[count] = record.key;
        ahead->keys.sizes[count] = record.key_size;
    }
    ahead->count = count;
    ls_hash_keys(map->secret, &ahead->keys, count);
    return count == wanted;
}

/*
 * Have the slot of a record, if there is one, brought into the cache. Asked for one at a time, each
 * between two records of the block before, they come while those are looked at; asked for all at
 * once, they are more than a core waits for at a time.
 */
LS_INLINE void ls_ask_for_slot(const struct ls_offset_map *map, const struct ls_ahead *ahead,
                               int32_t index) {
    if (index < ahead->count && ahead->keys.sizes[index] >= 0)
        __builtin_prefetch(ls_map_slot(map, ahead->keys.hash1[index]), 1);
}

LS_INLINE void ls_ask_for_slots(const struct ls_offset_map *map, const struct ls_ahead *ahead) {
    for (int32_t index = 0; index < ahead->count; ++index)
        ls_ask_for_slot(map, ahead, index);
}

#endif
