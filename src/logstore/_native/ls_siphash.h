/*
 * ls_siphash.h: SipHash-2-4 with 128 bits (Aumasson and Bernstein), of one key inline and of many
 * at a time. Nothing here is visible to Python.
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
