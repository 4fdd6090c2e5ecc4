/*
 * ls_offset_map.h: the offset map inside the core, inline: look ahead, probe. Nothing here is
 * visible to Python; the contract is in logstore.h.
 */
#ifndef LS_OFFSET_MAP_H
#define LS_OFFSET_MAP_H

#include "ls_internal.h"
#include "ls_record_shape.h"
#include "ls_siphash.h"

/* Four of them are a cache line, and none is in two. */
struct ls_map_entry {
    uint64_t hash;       /* hash0 */
    uint64_t tagged_end; /* 24 bits of hash1, then offset - base_offset + 1; 0: free */
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

/* Whether the entry is free, or of this key, as ls_hash_key knows it. */
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

/* ---- stretches of files (ls_stretches.c) ---------------------------------------------------- */
/* Note where the whole batches at the start of a piece are: they were put. */
void ls_note_stretches(struct ls_offset_map *map, const struct ls_pieces *pieces, int64_t size);
/*
 * Pass stretches of which nothing stays, from the position of the pieces on. Returns how far the
 * file may be read then: up to the next of them.
 */
int64_t ls_pass_stretches(const struct ls_offset_map *map, const struct ls_cleaning *cleaning,
                          struct ls_pieces *pieces, struct ls_cleaned *cleaned);

/* Whether a batch whose last offset is in [first, last] stays without records if all of them go. */
LS_INLINE bool ls_has_kept_end(const struct ls_cleaning *cleaning, int64_t first, int64_t last) {
    const int64_t *ends = (const int64_t *)cleaning->kept_ends;
    int64_t low = 0;
    int64_t high = cleaning->kept_end_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (ends[middle] < first) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < cleaning->kept_end_count && ends[low] <= last;
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

LS_INLINE void ls_put_ahead(struct ls_ahead *ahead, int32_t index, const struct ls_record *record,
                            const uint8_t *end) {
    ahead->begins[index + 1] = end;
    ahead->timestamp_deltas[index] = record->timestamp_delta;
    ahead->offset_deltas[index] = record->offset_delta;
    ahead->have_value[index] = record->value_size >= 0;
    ahead->keys.bytes[index] = record->key;
    ahead->keys.sizes[index] = record->key_size;
}

/*
 * Parse and hash up to LS_KEYS_MAX records. False: the record behind the last one of them breaks
 * the format.
 */
LS_INLINE bool ls_look_ahead(const struct ls_offset_map *map, const uint8_t *at, const uint8_t *end,
                             int32_t record_count, struct ls_ahead *ahead) {
    int32_t wanted = record_count < LS_KEYS_MAX ? record_count : LS_KEYS_MAX;
    int32_t count = 0;
    int64_t size_before = 0;
    ahead->begins[0] = at;
    while (count < wanted) {
        struct ls_record record;
        const uint8_t *begin = at;
        at = ls_parse_record(begin, end, &record);
        if (LS_UNLIKELY(at == NULL)) break;
        ls_put_ahead(ahead, count++, &record, at);
        /* Then those that follow and are like it, if it is like the one before. */
        struct record_shape shape;
        bool is_as_large = at - begin == size_before;
        size_before = at - begin;
        if (!is_as_large || !learn_shape(begin, at, end, &record, &shape)) continue;
        while (count < wanted && end - at >= shape.record_size + SHAPE_BYTES &&
               has_shape(&shape, at, &record.timestamp_delta)) {
            record.offset_delta += 1;
            record.key = at + shape.key_at;
            at += shape.record_size;
            ls_put_ahead(ahead, count++, &record, at);
        }
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
