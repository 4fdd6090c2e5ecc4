/*
 * put_records.c: what ls_encode_inline.h puts, against the format written byte by byte.
 *
 * Every combination of sizes and deltas around the places where a varint grows. Exits 1 and names
 * the first record that differs. Compiled and run by test_kernels_source.py.
 */
#include <stdio.h>
#include <stdlib.h>

#include "ls_encode_inline.h"

enum { ROOM = 1 << 16 };

static const int64_t key_sizes[] = {-1, 0, 1, 31, 32, 33, 62, 63, 64, 65, 127, 128, 600};
static const int64_t value_sizes[] = {
    -1,   0,    1,    3,    4,    7,    8,    15,   16,   17,   40,   50,   54,   55,   56,
    57,   58,   59,   60,   63,   64,   65,   127,  128,  511,  512,  513,  8000, 8160, 8175,
    8176, 8177, 8178, 8179, 8180, 8185, 8186, 8187, 8188, 8189, 8191, 8192, 9000};
static const int64_t timestamps[] = {0,    1,    -1,    63,    64,      -64,       -65,
                                     8191, 8192, -8192, -8193, 1 << 20, INT64_MAX, INT64_MIN};
static const int32_t offsets[] = {0, 1, 63, 64, 8191, 8192, (1 << 20) - 1, 1 << 20, INT32_MAX};

static uint8_t source[ROOM];
static uint8_t expected[ROOM];
static uint8_t actual[ROOM];

static uint8_t *varint(uint8_t *at, uint64_t bits) {
    for (; bits >= 128; bits >>= 7)
        *at++ = (uint8_t)(bits | 128);
    *at++ = (uint8_t)bits;
    return at;
}

static uint8_t *sized(uint8_t *at, const uint8_t *bytes, int64_t size) {
    at = varint(at, size < 0 ? 1 : (uint64_t)size << 1);
    for (int64_t index = 0; index < size; ++index)
        *at++ = bytes[index];
    return at;
}

static int64_t put_expected(int32_t offset, int64_t timestamp, int64_t key_size, int64_t value_size,
                            const uint8_t *headers, int64_t headers_size) {
    static uint8_t body[ROOM];
    uint8_t *at = body;
    *at++ = 0;
    at = varint(at, ls_zigzag64(timestamp));
    at = varint(at, ls_zigzag32(offset));
    at = sized(at, source, key_size);
    at = sized(at, source + 7, value_size);
    for (int64_t index = 0; index < headers_size; ++index)
        *at++ = headers[index];
    if (headers_size == 0) *at++ = 0;
    uint8_t *end = varint(expected, (uint64_t)(at - body) << 1);
    for (const uint8_t *byte = body; byte < at; ++byte)
        *end++ = *byte;
    return end - expected;
}

static bool is_same(const uint8_t *end, int64_t size) {
    return end - actual == size && memcmp(actual, expected, (size_t)size) == 0;
}

static bool check(int32_t offset, int64_t timestamp, int64_t key_size, int64_t value_size,
                  int64_t headers_size) {
    static const uint8_t headers[] = {2, 2, 'h', 2, 'x'};
    int64_t size = put_expected(offset, timestamp, key_size, value_size, headers, headers_size);
    if (ls_record_size(offset, timestamp, key_size, value_size, headers_size) != size) return false;
    const uint8_t *poisoned = actual + size + LS_ENCODE_SLACK;
    memset(actual, 0xa5, (size_t)size + LS_ENCODE_SLACK + 64);
    uint8_t *end = ls_put_record(actual, offset, timestamp, source, key_size, source + 7,
                                 value_size, headers, headers_size);
    if (!is_same(end, size)) return false;
    for (int32_t index = 0; index < 64; ++index) {
        if (poisoned[index] != 0xa5) return false;
    }
    if (key_size >= 0 || headers_size > 0 || timestamp != 0 ||
        !ls_fits_value_shape(offset, value_size))
        return true;

    struct ls_value_shape shape = LS_VALUE_SHAPE_NONE;
    if (ls_shape_value(&shape, offset, value_size) != size) return false;
    memset(actual, 0xa5, (size_t)size);
    return is_same(ls_put_value(&shape, actual, offset, source + 7), size);
}

#define COUNT(array) (sizeof(array) / sizeof *(array))

int main(void) {
    for (int32_t index = 0; index < ROOM; ++index)
        source[index] = (uint8_t)(index * 31 + index / 256);
    for (size_t k = 0; k < COUNT(key_sizes); ++k) {
        for (size_t v = 0; v < COUNT(value_sizes); ++v) {
            for (size_t t = 0; t < COUNT(timestamps); ++t) {
                for (size_t o = 0; o < COUNT(offsets); ++o) {
                    for (int64_t headers_size = 0; headers_size <= 5; headers_size += 5) {
                        if (check(offsets[o], timestamps[t], key_sizes[k], value_sizes[v],
                                  headers_size))
                            continue;
                        printf(
                            "offset delta %d, timestamp delta %lld, key %lld, value %lld, headers "
                            "%lld\n",
                            offsets[o], (long long)timestamps[t], (long long)key_sizes[k],
                            (long long)value_sizes[v], (long long)headers_size);
                        return 1;
                    }
                }
            }
        }
    }
    return 0;
}
