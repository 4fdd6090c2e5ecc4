/*
 * ls_siphash.h: SipHash-2-4 with 128 bits (Aumasson and Bernstein), and what the offset map knows a
 * key by: that hash, or the key itself where it is short. Of one key inline, and of many at a time.
 * Nothing here is visible to Python.
 */
#ifndef LS_SIPHASH_H
#define LS_SIPHASH_H

#include "ls_internal.h"

#define LS_ROTATE(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))

/* What the state is begun with, beside the secret; the last two say that the hash has 128 bits. */
#define LS_SIP_V0    0x736f6d6570736575u
#define LS_SIP_V1    (0x646f72616e646f6du ^ 0xee)
#define LS_SIP_V2    0x6c7967656e657261u
#define LS_SIP_V3    0x7465646279746573u
#define LS_SIP_HALF1 0xee
#define LS_SIP_HALF2 0xdd

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
    uint64_t v[4] = {secret[0] ^ LS_SIP_V0, secret[1] ^ LS_SIP_V1, secret[0] ^ LS_SIP_V2,
                     secret[1] ^ LS_SIP_V3};
    for (int64_t at = 0; at + 8 <= size; at += 8)
        ls_sip_word(v, ls_load_le64(bytes + at));
    ls_sip_word(v, ls_sip_last_word(bytes, size));
    v[2] ^= LS_SIP_HALF1;
    for (int index = 0; index < 4; ++index)
        ls_sip_round(v);
    hash[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= LS_SIP_HALF2;
    for (int index = 0; index < 4; ++index)
        ls_sip_round(v);
    hash[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* ---- keys ----------------------------------------------------------------------------------- */
enum {
    LS_KEY_SHORT_BYTES = 8,    /* A key of up to so many bytes is known by them. */
    LS_KEY_SHORT_BIT = 1 << 23 /* of hash[1]: it is; the bits below are its size */
};

/* The bytes of a short key, as a number. */
LS_INLINE uint64_t ls_short_key(const uint8_t *at, int64_t size) {
    if (LS_LIKELY(size == 8)) return ls_load_le64(at);
    if (size >= 4) {
        uint32_t first;
        uint32_t last;
        memcpy(&first, at, sizeof first);
        memcpy(&last, at + size - 4, sizeof last);
        return first | (uint64_t)last << (8 * (size - 4));
    }
    if (size == 0) return 0;
    uint64_t middle = at[size / 2];
    uint64_t last = at[size - 1];
    return at[0] | middle << (8 * (size / 2)) | last << (8 * (size - 1));
}

LS_INLINE uint64_t ls_fold(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/*
 * What a short key is known by: no two have the same. The high bits only spread keys over slots, by
 * multiplication with the secret: who does not know it cannot choose keys for one slot.
 */
LS_INLINE void ls_take_short_key(const uint64_t secret[2], const uint8_t *bytes, int64_t size,
                                 uint64_t hash[2]) {
    hash[0] = ls_short_key(bytes, size);
    uint64_t spread = ls_fold(ls_fold(hash[0] ^ secret[0], secret[1] | 1) ^ secret[1],
                              0x9e3779b97f4a7c15u); /* 2^64 by the golden ratio */
    hash[1] = (spread & ~(uint64_t)(2 * LS_KEY_SHORT_BIT - 1)) | LS_KEY_SHORT_BIT | (uint64_t)size;
}

/* What a key is known by: 64 bits, and the 24 low ones of hash[1]. The high bits say which slot. */
LS_INLINE void ls_hash_key(const uint64_t secret[2], const uint8_t *bytes, int64_t size,
                           uint64_t hash[2]) {
    if (size <= LS_KEY_SHORT_BYTES) {
        ls_take_short_key(secret, bytes, size, hash);
    } else {
        ls_sip(secret, bytes, size, hash);
        hash[1] &= ~(uint64_t)LS_KEY_SHORT_BIT;
    }
}

enum {
    LS_KEYS_MAX = 32,
    LS_KEYS_AT_ONCE = 8 /* divides LS_KEYS_MAX */
};

/* Keys, and what ls_hash_keys makes of them. */
struct ls_keys {
    const uint8_t *bytes[LS_KEYS_MAX];
    int64_t sizes[LS_KEYS_MAX]; /* -1: there is no key; its hash means nothing */
    uint64_t hash0[LS_KEYS_MAX];
    uint64_t hash1[LS_KEYS_MAX];
};

/* The hashes of the first `count` keys; what is behind them is overwritten. */
void ls_hash_keys(const uint64_t secret[2], struct ls_keys *keys, int32_t count);

#endif
