/*
 * ls_siphash.c: hashes of many keys. One SipHash is a chain of instructions that wait for each
 * other; eight keys at a time, in two registers of four, keep the processor busy meanwhile.
 */
#include "ls_siphash.h"

void ls_siphash128(const uint64_t *secret, uintptr_t bytes, int64_t size, uint64_t *hash) {
    assert(size >= 0);
    ls_sip(secret, (const uint8_t *)bytes, size, hash);
}

static void hash_one(const uint64_t secret[2], struct ls_keys *keys, int32_t index) {
    uint64_t hash[2];
    ls_hash_key(secret, keys->bytes[index], keys->sizes[index], hash);
    keys->hash0[index] = hash[0];
    keys->hash1[index] = hash[1];
}

#if LS_X86
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

enum { LANES = 4 };

/* The states of four keys. */
struct states {
    __m256i v0;
    __m256i v1;
    __m256i v2;
    __m256i v3;
};

AVX2 LS_INLINE __m256i rotate(__m256i x, int bits) {
    return _mm256_or_si256(_mm256_slli_epi64(x, bits), _mm256_srli_epi64(x, 64 - bits));
}

AVX2 LS_INLINE __m256i rotate_32(__m256i x) {
    return _mm256_shuffle_epi32(x, 0xb1);
}

AVX2 LS_INLINE void half_round(struct states *of) {
    of->v0 = _mm256_add_epi64(of->v0, of->v1);
    of->v2 = _mm256_add_epi64(of->v2, of->v3);
    of->v1 = _mm256_xor_si256(rotate(of->v1, 13), of->v0);
    of->v3 = _mm256_xor_si256(rotate(of->v3, 16), of->v2);
    of->v0 = rotate_32(of->v0);
}

AVX2 LS_INLINE void other_half_round(struct states *of) {
    of->v0 = _mm256_add_epi64(of->v0, of->v3);
    of->v2 = _mm256_add_epi64(of->v2, of->v1);
    of->v3 = _mm256_xor_si256(rotate(of->v3, 21), of->v0);
    of->v1 = _mm256_xor_si256(rotate(of->v1, 17), of->v2);
    of->v2 = rotate_32(of->v2);
}

/* One round of each; the instructions of the one fill the gaps of the other. */
AVX2 LS_INLINE void rounds(struct states *a, struct states *b, int count) {
    for (int index = 0; index < count; ++index) {
        half_round(a);
        half_round(b);
        other_half_round(a);
        other_half_round(b);
    }
}

AVX2 LS_INLINE __m256i load(const uint64_t words[LANES]) {
    return _mm256_loadu_si256((const __m256i *)(const void *)words);
}

AVX2 LS_INLINE void take_words(struct states *a, struct states *b, __m256i of_a, __m256i of_b) {
    a->v3 = _mm256_xor_si256(a->v3, of_a);
    b->v3 = _mm256_xor_si256(b->v3, of_b);
    rounds(a, b, 2);
    a->v0 = _mm256_xor_si256(a->v0, of_a);
    b->v0 = _mm256_xor_si256(b->v0, of_b);
}

AVX2 LS_INLINE void choose(struct states *of, const struct states *before, __m256i mask) {
    of->v0 = _mm256_blendv_epi8(before->v0, of->v0, mask);
    of->v1 = _mm256_blendv_epi8(before->v1, of->v1, mask);
    of->v2 = _mm256_blendv_epi8(before->v2, of->v2, mask);
    of->v3 = _mm256_blendv_epi8(before->v3, of->v3, mask);
}

/* Take a word of each key that is longer than it, and leave the states of the others alone. */
AVX2 static void take_some_words(struct states *a, struct states *b, const uint8_t *const bytes[],
                                 const int64_t sizes[], int64_t at) {
    uint64_t words[LS_KEYS_AT_ONCE];
    uint64_t masks[LS_KEYS_AT_ONCE];
    for (int lane = 0; lane < LS_KEYS_AT_ONCE; ++lane) {
        bool is_there = at + 8 <= sizes[lane];
        words[lane] = is_there ? ls_load_le64(bytes[lane] + at) : 0;
        masks[lane] = is_there ? ~(uint64_t)0 : 0;
    }
    struct states a_before = *a;
    struct states b_before = *b;
    take_words(a, b, load(words), load(words + LANES));
    choose(a, &a_before, load(masks));
    choose(b, &b_before, load(masks + LANES));
}

AVX2 LS_INLINE void put_hashes(const struct states *of, uint64_t *hashes) {
    __m256i hash =
        _mm256_xor_si256(_mm256_xor_si256(of->v0, of->v1), _mm256_xor_si256(of->v2, of->v3));
    _mm256_storeu_si256((__m256i *)(void *)hashes, hash);
}

AVX2 LS_INLINE __m256i words_at(const uint8_t *const bytes[LANES], int64_t at) {
    return _mm256_set_epi64x(
        (int64_t)ls_load_le64(bytes[3] + at), (int64_t)ls_load_le64(bytes[2] + at),
        (int64_t)ls_load_le64(bytes[1] + at), (int64_t)ls_load_le64(bytes[0] + at));
}

/* The keys [first, first + LS_KEYS_AT_ONCE); a missing one is hashed as whatever comes out. */
AVX2 static void hash_eight(const uint64_t secret[2], struct ls_keys *keys, int32_t first) {
    struct states a = {
        _mm256_set1_epi64x((int64_t)(secret[0] ^ LS_SIP_V0)),
        _mm256_set1_epi64x((int64_t)(secret[1] ^ LS_SIP_V1)),
        _mm256_set1_epi64x((int64_t)(secret[0] ^ LS_SIP_V2)),
        _mm256_set1_epi64x((int64_t)(secret[1] ^ LS_SIP_V3)),
    };
    struct states b = a;

    const uint8_t *const *bytes = keys->bytes + first;
    const int64_t *sizes = keys->sizes + first;
    int64_t least = sizes[0];
    int64_t greatest = sizes[0];
    for (int lane = 1; lane < LS_KEYS_AT_ONCE; ++lane) {
        least = sizes[lane] < least ? sizes[lane] : least;
        greatest = sizes[lane] > greatest ? sizes[lane] : greatest;
    }
    int64_t at = 0;
    for (; at + 8 <= least; at += 8)
        take_words(&a, &b, words_at(bytes, at), words_at(bytes + LANES, at));
    for (; at + 8 <= greatest; at += 8)
        take_some_words(&a, &b, bytes, sizes, at);
    __m256i last_of_a;
    __m256i last_of_b;
    if (least == greatest && (least & 7) == 0) {
        last_of_a = last_of_b = _mm256_set1_epi64x((int64_t)((uint64_t)least << 56));
    } else {
        uint64_t words[LS_KEYS_AT_ONCE];
        for (int lane = 0; lane < LS_KEYS_AT_ONCE; ++lane)
            words[lane] = sizes[lane] > 0 ? ls_sip_last_word(bytes[lane], sizes[lane]) : 0;
        last_of_a = load(words);
        last_of_b = load(words + LANES);
    }
    take_words(&a, &b, last_of_a, last_of_b);

    const __m256i half1 = _mm256_set1_epi64x(LS_SIP_HALF1);
    a.v2 = _mm256_xor_si256(a.v2, half1);
    b.v2 = _mm256_xor_si256(b.v2, half1);
    rounds(&a, &b, 4);
    put_hashes(&a, keys->hash0 + first);
    put_hashes(&b, keys->hash0 + first + LANES);
    const __m256i half2 = _mm256_set1_epi64x(LS_SIP_HALF2);
    a.v1 = _mm256_xor_si256(a.v1, half2);
    b.v1 = _mm256_xor_si256(b.v1, half2);
    rounds(&a, &b, 4);
    put_hashes(&a, keys->hash1 + first);
    put_hashes(&b, keys->hash1 + first + LANES);
}

static bool hash_at_once(const uint64_t secret[2], struct ls_keys *keys, int32_t first) {
    if (!__builtin_cpu_supports("avx2")) return false;
    hash_eight(secret, keys, first);
    return true;
}
#else
static bool hash_at_once(const uint64_t secret[2], struct ls_keys *keys, int32_t first) {
    (void)secret, (void)keys, (void)first;
    return false;
}
#endif

/* Whether so many of the keys are long that they are worth hashing at once. */
LS_INLINE bool are_long(const struct ls_keys *keys, int32_t first) {
    int count = 0;
    for (int lane = 0; lane < LS_KEYS_AT_ONCE; ++lane)
        count += keys->sizes[first + lane] > LS_KEY_SHORT_BYTES;
    return count > 1;
}

static void hash_some(const uint64_t secret[2], struct ls_keys *keys, int32_t first) {
    bool are_hashed = are_long(keys, first) && hash_at_once(secret, keys, first);
    for (int32_t index = first; index < first + LS_KEYS_AT_ONCE; ++index) {
        if (are_hashed && keys->sizes[index] > LS_KEY_SHORT_BYTES) {
            keys->hash1[index] &= ~(uint64_t)LS_KEY_SHORT_BIT;
        } else if (keys->sizes[index] >= 0) {
            hash_one(secret, keys, index);
        }
    }
}

void ls_hash_keys(const uint64_t secret[2], struct ls_keys *keys, int32_t count) {
    assert(count <= LS_KEYS_MAX);
    int32_t end = (count + LS_KEYS_AT_ONCE - 1) / LS_KEYS_AT_ONCE * LS_KEYS_AT_ONCE;
    for (int32_t index = count; index < end; ++index)
        keys->sizes[index] = -1;
    for (int32_t first = 0; first < end; first += LS_KEYS_AT_ONCE)
        hash_some(secret, keys, first);
}
