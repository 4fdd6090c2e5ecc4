/*
 * ls_crc32c_x86.c: CRC-32C with the crc32 instruction and carry-less multiplication.
 *
 * A remainder is moved n bits ahead by multiplying it with x^n mod P. Two ways use that: three
 * streams of the crc32 instruction side by side (it takes one a cycle, but each waits three for the
 * last), joined at the end of each block; and folding, where 128 bits are multiplied ahead onto the
 * 128 bits that come n bits later, many at a time. Each is bound by its own execution unit, at
 * about 8 bytes a cycle; the fused variant gives each unit a part of every block: half as fast
 * again.
 *
 * Source of the method: Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using CRC32
 * Instruction" and "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel 2009-2011.
 */
#include "ls_crc32c_variants.h"

#if LS_X86
#include <immintrin.h>

/* Newer clangs know the instruction by a name of its own, which older compilers refuse. */
#if defined(__clang__) && __clang_major__ >= 14
#define CRC32 "sse4.2,crc32"
#else
#define CRC32 "sse4.2"
#endif
#define SSE42   __attribute__((target(CRC32)))
#define PCLMUL  __attribute__((target(CRC32 ",pclmul")))
#define VPCLMUL __attribute__((target(CRC32 ",pclmul,avx2,vpclmulqdq")))

enum {
    SHORT_STREAM =
        336, /* bytes of each of three streams: what is left of a large input, small inputs */
    LONG_STREAM = 4096,
    FOLD_BYTES = 128, /* four times 256 bits */
    FUSED_WORDS = 5,  /* of each stream, while FOLD_BYTES are folded: both take as long */
    SHORT_FUSED = 8,  /* steps of a fused block */
    LONG_FUSED = 32
};

/* Bytes of each stream, and of all, in a fused block of so many steps. */
#define FUSED_STREAM(steps) (INT64_C(8) * FUSED_WORDS * (steps))
#define FUSED_BLOCK(steps)  (INT64_C(128) * (steps) + 3 * FUSED_STREAM(steps))

/* x^n mod P, bit-reflected; to fold by n bits: x^(n + 63) and x^(n - 1), in the high halves. */
static const uint64_t fold_128[2] = {0x3743f7bd00000000, 0x3171d43000000000};
static const uint64_t fold_512[2] = {0x1c19243b00000000, 0x75bba45b00000000};
static const uint64_t fold_1024[2] = {0x6577b24500000000, 0x7417153f00000000};
/* x^(8 n - 33) mod P: moves a stream's remainder over one, or two, streams of n bytes. */
static const uint64_t over_short_1 = 0xa60ce07b;
static const uint64_t over_short_2 = 0xcec3662e;
static const uint64_t over_long_1 = 0x82f89c77;
static const uint64_t over_long_2 = 0x54a86326;

/* How remainders move in a fused block: over 1, 2, 3 streams; from a block's fold to the next. */
struct fused_powers {
    uint64_t over[3];
    uint64_t skip[2];
};
static const struct fused_powers short_fused = {{0xbac2fd7b, 0x6b749fb2, 0x3771e98f},
                                                {0xf9ab581300000000, 0xa27a349f00000000}};
static const struct fused_powers long_fused = {{0xdd66cbbb, 0x22c3799f, 0x23d5e7e5},
                                               {0x38e362be00000000, 0x5743fc5100000000}};

SSE42 LS_INLINE uint32_t serial(uint64_t state, const uint8_t *bytes, int64_t size) {
    for (; size >= 8; bytes += 8, size -= 8)
        state = _mm_crc32_u64(state, ls_load_le64(bytes));
    uint32_t narrow = (uint32_t)state;
    if (size & 4) {
        uint32_t word;
        memcpy(&word, bytes, sizeof word);
        narrow = _mm_crc32_u32(narrow, word);
        bytes += 4;
    }
    if (size & 2) {
        uint16_t word;
        memcpy(&word, bytes, sizeof word);
        narrow = _mm_crc32_u16(narrow, word);
        bytes += 2;
    }
    if (size & 1) narrow = _mm_crc32_u8(narrow, *bytes);
    return narrow;
}

SSE42 uint32_t ls_crc32c_sse42(uint32_t crc, const uint8_t *bytes, int64_t size) {
    return ~serial(~crc, bytes, size);
}

/* ---- three streams -------------------------------------------------------------------------- */
PCLMUL LS_INLINE uint64_t times(uint64_t remainder, uint64_t power) {
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)remainder),
                                           _mm_cvtsi64_si128((int64_t)power), 0);
    return (uint64_t)_mm_cvtsi128_si64(product);
}

PCLMUL LS_INLINE uint64_t three_streams(uint64_t state, const uint8_t *bytes, int64_t stream,
                                        uint64_t over_1, uint64_t over_2) {
    uint64_t second = 0;
    uint64_t third = 0;
    for (int64_t at = 0; at < stream; at += 8) {
        state = _mm_crc32_u64(state, ls_load_le64(bytes + at));
        second = _mm_crc32_u64(second, ls_load_le64(bytes + stream + at));
        third = _mm_crc32_u64(third, ls_load_le64(bytes + 2 * stream + at));
    }
    return _mm_crc32_u64(0, times(state, over_2) ^ times(second, over_1)) ^ third;
}

PCLMUL uint32_t ls_crc32c_sse42_3way(uint32_t crc, const uint8_t *bytes, int64_t size) {
    uint64_t state = ~crc;
    for (; size >= 3 * LONG_STREAM; bytes += 3 * LONG_STREAM, size -= 3 * LONG_STREAM) {
        state = three_streams(state, bytes, LONG_STREAM, over_long_1, over_long_2);
    }
    for (; size >= 3 * SHORT_STREAM; bytes += 3 * SHORT_STREAM, size -= 3 * SHORT_STREAM) {
        state = three_streams(state, bytes, SHORT_STREAM, over_short_1, over_short_2);
    }
    return ~serial(state, bytes, size);
}

/* ---- folding -------------------------------------------------------------------------------- */
LS_INLINE __m128i load_128(const void *at) {
    return _mm_loadu_si128((const __m128i *)at);
}

PCLMUL LS_INLINE __m128i fold(__m128i ahead, __m128i powers, __m128i onto) {
    __m128i low = _mm_clmulepi64_si128(ahead, powers, 0x00);
    __m128i high = _mm_clmulepi64_si128(ahead, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), onto);
}

VPCLMUL LS_INLINE __m256i load_256(const uint8_t *at) {
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

VPCLMUL LS_INLINE __m256i fold_256(__m256i ahead, __m256i powers, __m256i onto) {
    __m256i low = _mm256_clmulepi64_epi128(ahead, powers, 0x00);
    __m256i high = _mm256_clmulepi64_epi128(ahead, powers, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(low, high), onto);
}

struct lanes {
    __m256i a, b, c, d;
};

VPCLMUL LS_INLINE struct lanes load_more(const uint8_t *at) {
    return (struct lanes){load_256(at), load_256(at + 32), load_256(at + 64), load_256(at + 96)};
}

VPCLMUL LS_INLINE struct lanes load_lanes(const uint8_t *at, uint32_t state) {
    struct lanes lanes = load_more(at);
    /* The state so far is added to the first 32 bits. */
    lanes.a = _mm256_xor_si256(lanes.a, _mm256_zextsi128_si256(_mm_cvtsi32_si128((int32_t)state)));
    return lanes;
}

VPCLMUL LS_INLINE void fold_lanes(struct lanes *lanes, __m256i powers, struct lanes onto) {
    lanes->a = fold_256(lanes->a, powers, onto.a);
    lanes->b = fold_256(lanes->b, powers, onto.b);
    lanes->c = fold_256(lanes->c, powers, onto.c);
    lanes->d = fold_256(lanes->d, powers, onto.d);
}

/* Eight times 128 bits to four, to one, to 32. */
VPCLMUL LS_INLINE uint32_t reduce_lanes(const struct lanes *lanes, const uint8_t *bytes,
                                        int64_t size) {
    __m128i by_512 = load_128(fold_512);
    __m128i by_128 = load_128(fold_128);
    __m128i a = fold(_mm256_castsi256_si128(lanes->a), by_512, _mm256_castsi256_si128(lanes->c));
    __m128i b =
        fold(_mm256_extracti128_si256(lanes->a, 1), by_512, _mm256_extracti128_si256(lanes->c, 1));
    __m128i c = fold(_mm256_castsi256_si128(lanes->b), by_512, _mm256_castsi256_si128(lanes->d));
    __m128i d =
        fold(_mm256_extracti128_si256(lanes->b, 1), by_512, _mm256_extracti128_si256(lanes->d, 1));
    b = fold(a, by_128, b);
    c = fold(b, by_128, c);
    d = fold(c, by_128, d);
    for (; size >= 16; bytes += 16, size -= 16)
        d = fold(d, by_128, load_128(bytes));

    uint64_t state = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(d));
    state = _mm_crc32_u64(state, (uint64_t)_mm_extract_epi64(d, 1));
    return serial(state, bytes, size);
}

VPCLMUL LS_INLINE uint32_t folded(uint32_t state, const uint8_t *bytes, int64_t size) {
    if (size < 2 * FOLD_BYTES) return serial(state, bytes, size);
    __m256i by_1024 = _mm256_broadcastsi128_si256(load_128(fold_1024));
    struct lanes lanes = load_lanes(bytes, state);
    bytes += FOLD_BYTES;
    size -= FOLD_BYTES;
    for (; size >= FOLD_BYTES; bytes += FOLD_BYTES, size -= FOLD_BYTES) {
        fold_lanes(&lanes, by_1024, load_more(bytes));
    }
    return reduce_lanes(&lanes, bytes, size);
}

VPCLMUL uint32_t ls_crc32c_vpclmul(uint32_t crc, const uint8_t *bytes, int64_t size) {
    return ~folded(~crc, bytes, size);
}

struct streams {
    uint64_t a, b, c;
};

VPCLMUL LS_INLINE void next_word(struct streams *streams, const uint8_t *words, int64_t stream) {
    streams->a = _mm_crc32_u64(streams->a, ls_load_le64(words));
    streams->b = _mm_crc32_u64(streams->b, ls_load_le64(words + stream));
    streams->c = _mm_crc32_u64(streams->c, ls_load_le64(words + 2 * stream));
}

/* ---- both at once --------------------------------------------------------------------------- */
/*
 * All whole blocks at *bytes. A block is FOLD_BYTES * steps to fold, then three streams. At its
 * end the lanes skip the streams and fold onto the next block, whose first 32 bits take the
 * streams' remainder.
 */
VPCLMUL LS_INLINE uint32_t fused_blocks(uint32_t state, const uint8_t **bytes, int64_t *size,
                                        int64_t steps, const struct fused_powers *powers) {
    const int64_t stream = FUSED_STREAM(steps);
    const uint8_t *at = *bytes;
    __m256i by_1024 = _mm256_broadcastsi128_si256(load_128(fold_1024));
    __m256i by_skip = _mm256_broadcastsi128_si256(load_128(powers->skip));
    struct lanes lanes = load_lanes(at, state);
    for (;;) {
        const uint8_t *words = at + FOLD_BYTES * steps;
        struct streams streams = {0, 0, 0};
        /* Four places at once defeat the processor's own read-ahead: ask for the next block. */
        const char *ahead = (const char *)at + FUSED_BLOCK(steps);
        for (int64_t step = 0;;) {
            if (steps == LONG_FUSED) {
                _mm_prefetch(ahead, _MM_HINT_T0);
                _mm_prefetch(ahead + 64, _MM_HINT_T0);
                _mm_prefetch(ahead + 128, _MM_HINT_T0);
                _mm_prefetch(ahead + 192, _MM_HINT_T0);
                ahead += FUSED_BLOCK(LONG_FUSED) / LONG_FUSED;
            }
            next_word(&streams, words, stream);
            next_word(&streams, words + 8, stream);
            next_word(&streams, words + 16, stream);
            next_word(&streams, words + 24, stream);
            next_word(&streams, words + 32, stream);
            words += 8 * FUSED_WORDS;
            if (++step == steps) break;
            fold_lanes(&lanes, by_1024, load_more(at + FOLD_BYTES * step));
        }
        uint64_t joined = times(streams.a, powers->over[1]) ^ times(streams.b, powers->over[0]);
        at += FUSED_BLOCK(steps);
        *size -= FUSED_BLOCK(steps);
        if (*size < FUSED_BLOCK(steps)) {
            joined ^= times(reduce_lanes(&lanes, NULL, 0), powers->over[2]);
            *bytes = at;
            return (uint32_t)(_mm_crc32_u64(0, joined) ^ streams.c);
        }
        fold_lanes(&lanes, by_skip,
                   load_lanes(at, (uint32_t)(_mm_crc32_u64(0, joined) ^ streams.c)));
    }
}

VPCLMUL uint32_t ls_crc32c_fused(uint32_t crc, const uint8_t *bytes, int64_t size) {
    uint32_t state = ~crc;
    if (size >= FUSED_BLOCK(LONG_FUSED))
        state = fused_blocks(state, &bytes, &size, LONG_FUSED, &long_fused);
    if (size >= FUSED_BLOCK(SHORT_FUSED))
        state = fused_blocks(state, &bytes, &size, SHORT_FUSED, &short_fused);
    return ~folded(state, bytes, size);
}
#else
/* A file without a declaration is not C. */
typedef int ls_crc32c_x86_is_empty;
#endif
