/*
 * ls_offset_map.h: the offset map inside the core, inline: hash, look ahead, probe. Nothing here is
 * visible to Python; the contract is in logstore.h.
 */
#ifndef LS_OFFSET_MAP_H
#define LS_OFFSET_MAP_H

#include "ls_internal.h"
#include "ls_record.h"

struct ls_map_entry {
    uint64_t hash[2];
    uint64_t end; /* the offset + 1; 0: the slot is free */
};

/* ---- SipHash-2-4-128: Aumasson and Bernstein, the reference's order of operations ------------ */
#define LS_ROTATE(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))

LS_INLINE void ls_sip_round(uint64_t v[4]) {
    v[0] += v[1];
    v[1] = LS_ROTATE(v[1], 13);
    v[1] ^= v[0];
    v[0] = LS_ROTATE(v[0], 32);
    v[2] += v[3];
    v[3] = LS_ROTATE(v[3], 16);
    v[3] ^= v[2];
    v[0] += v[3];
    v[3] = LS_ROTATE(v[3], 21);
    v[3] ^= v[0];
    v[2] += v[1];
    v[1] = LS_ROTATE(v[1], 17);
    v[1] ^= v[2];
    v[2] = LS_ROTATE(v[2], 32);
}

LS_INLINE void ls_sip_word(uint64_t v[4], uint64_t word) {
    v[3] ^= word;
    ls_sip_round(v);
    ls_sip_round(v);
    v[0] ^= word;
}

/* The last word: the size's low byte above up to 7 bytes. */
LS_INLINE uint64_t ls_sip_last_word(const uint8_t *at, int64_t size) {
    uint64_t word = (uint64_t)size << 56;
    const uint8_t *rest = at + (size & ~(int64_t)7);
    int64_t rest_size = size & 7;
    if (size >= 8 && rest_size > 0) /* The bytes before are in the word that was taken already. */
        return word | ls_load_le64(rest + rest_size - 8) >> (64 - 8 * rest_size);
    for (int64_t index = 0; index < rest_size; ++index)
        word |= (uint64_t)rest[index] << (8 * index);
    return word;
}

LS_INLINE void ls_sip(const uint64_t secret[2], const uint8_t *bytes, int64_t size,
                      uint64_t hash[2]) {
    uint64_t v[4] = {
        secret[0] ^ 0x736f6d6570736575u,
        secret[1] ^ 0x646f72616e646f6du ^ 0xee,
        secret[0] ^ 0x6c7967656e657261u,
        secret[1] ^ 0x7465646279746573u,
    };
    for (int64_t at = 0; at + 8 <= size; at += 8)
        ls_sip_word(v, ls_load_le64(bytes + at));
    ls_sip_word(v, ls_sip_last_word(bytes, size));
    v[2] ^= 0xee;
    for (int index = 0; index < 4; ++index)
        ls_sip_round(v);
    hash[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    for (int index = 0; index < 4; ++index)
        ls_sip_round(v);
    hash[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* ---- slots ---------------------------------------------------------------------------------- */
/* Where a hash's entry is looked for first; then in the slots that follow. */
LS_INLINE struct ls_map_entry *ls_map_slot(const struct ls_offset_map *map,
                                           const uint64_t hash[2]) {
    uint64_t slot = (uint64_t)(((unsigned __int128)hash[0] * (uint64_t)map->slot_count) >> 64);
    return (struct ls_map_entry *)map->entries + slot;
}

/* The entry of a hash, or the free slot where it would be; NULL: neither. */
LS_INLINE struct ls_map_entry *ls_map_find(const struct ls_offset_map *map,
                                           const uint64_t hash[2]) {
    struct ls_map_entry *first = (struct ls_map_entry *)map->entries;
    struct ls_map_entry *end = first + map->slot_count;
    struct ls_map_entry *begin = ls_map_slot(map, hash);
    for (struct ls_map_entry *entry = begin; entry < end; ++entry)
        if (entry->end == 0 || (entry->hash[0] == hash[0] && entry->hash[1] == hash[1]))
            return entry;
    for (struct ls_map_entry *entry = first; entry < begin; ++entry)
        if (entry->end == 0 || (entry->hash[0] == hash[0] && entry->hash[1] == hash[1]))
            return entry;
    return NULL;
}

/* -1: no such key. */
LS_INLINE int64_t ls_map_get(const struct ls_offset_map *map, const uint64_t hash[2]) {
    const struct ls_map_entry *entry = ls_map_find(map, hash);
    return entry == NULL ? -1 : (int64_t)entry->end - 1;
}

/* ---- records of a section, some at a time, their slots on the way into the cache ------------- */
enum { LS_KEYS_AHEAD = 64 };

struct ls_ahead {
    uint64_t hash[2]; /* with a key */
    const uint8_t *key;
    int64_t timestamp_delta;
    int32_t offset_delta;
    int32_t key_size; /* -1: none */
    bool has_key;
    bool has_value;
};

/*
 * Parse up to LS_KEYS_AHEAD records. Returns how many, -1 if one breaks the format. The keys are
 * hashed afterwards: one does not wait for the other, so that the processor takes some at a time.
 */
LS_INLINE int32_t ls_look_ahead(const struct ls_offset_map *map, const uint8_t **at,
                                const uint8_t *end, int32_t record_count, struct ls_ahead *ahead) {
    int32_t count = record_count < LS_KEYS_AHEAD ? record_count : LS_KEYS_AHEAD;
    const uint8_t *next = *at;
    for (int32_t index = 0; index < count; ++index) {
        struct ls_record record;
        next = ls_parse_record(next, end, &record);
        if (LS_UNLIKELY(next == NULL)) return -1;
        struct ls_ahead *found = &ahead[index];
        found->timestamp_delta = record.timestamp_delta;
        found->offset_delta = record.offset_delta;
        found->has_key = record.key_size >= 0;
        found->has_value = record.value_size >= 0;
        found->key = record.key;
        found->key_size = record.key_size;
    }
    for (int32_t index = 0; index < count; ++index) {
        struct ls_ahead *found = &ahead[index];
        if (!found->has_key) continue;
        ls_sip(map->secret, found->key, found->key_size, found->hash);
        __builtin_prefetch(ls_map_slot(map, found->hash));
    }
    *at = next;
    return count;
}

#endif
