/*
 * ls_record.h: take one v2 record apart, inline, with every check of spec 1.4. For code that walks
 * a records section; nothing here is visible to Python.
 *
 *     bodyLength varint | attributes i8 | timestampDelta varlong | offsetDelta varint
 *     keyLength varint, key | valueLength varint, value | headersCount varint
 *     per header: keyLength varint, key | valueLength varint, value
 */
#ifndef LS_RECORD_H
#define LS_RECORD_H

#include "ls_internal.h"

/* One parsed record; the pointers are into the section. */
struct ls_record {
    const uint8_t *key;     /* meaningless when key_size is -1 */
    const uint8_t *value;   /* meaningless when value_size is -1 */
    const uint8_t *headers; /* at the headersCount varint */
    int64_t timestamp_delta;
    int32_t offset_delta;
    int32_t key_size;   /* -1 null */
    int32_t value_size; /* -1 null */
    int32_t header_count;
};

/* Pass a size varint (-1: null) and its bytes. NULL: cut off, or a size below `size_min`. */
LS_INLINE const uint8_t *ls_get_sized(const uint8_t *at, const uint8_t *end, int32_t size_min,
                                      const uint8_t **bytes, int32_t *size) {
    uint32_t bits;
    at = ls_get_varint(at, end, &bits);
    if (LS_UNLIKELY(at == NULL)) return NULL;
    int32_t bytes_size = ls_unzigzag32(bits);
    if (LS_UNLIKELY(bytes_size < size_min)) return NULL;
    *bytes = at;
    *size = bytes_size;
    if (bytes_size <= 0) return at;
    if (LS_UNLIKELY(bytes_size > end - at)) return NULL;
    return at + bytes_size;
}

enum {
    /* Most that ls_parse_inside reads beyond a body with a wrong size: 10 + 5 + 5 + 5 + 5. */
    LS_INSIDE_BYTES = 32
};

/* The headers from headersCount on; NULL if they do not end at `next`. */
LS_INLINE const uint8_t *ls_pass_headers(const uint8_t *at, const uint8_t *next,
                                         struct ls_record *record) {
    uint32_t bits;
    at = ls_get_varint(at, next, &bits);
    if (LS_UNLIKELY(at == NULL)) return NULL;
    record->header_count = ls_unzigzag32(bits);
    if (LS_UNLIKELY(record->header_count != 0)) {
        if (record->header_count < 0 || record->header_count > next - at) return NULL;
        for (int32_t index = 0; index < record->header_count; ++index) {
            const uint8_t *bytes;
            int32_t size;
            at = ls_get_sized(at, next, 0, &bytes, &size); /* a null header key is illegal */
            if (at == NULL) return NULL;
            at = ls_get_sized(at, next, INT32_MIN, &bytes, &size);
            if (at == NULL) return NULL;
        }
    }
    return LS_LIKELY(at == next) ? next : NULL;
}

/* A body that is, or may be, the section's last: every byte is bounded by `next`. */
LS_INLINE const uint8_t *ls_parse_last(const uint8_t *at, const uint8_t *next,
                                       struct ls_record *record) {
    uint32_t bits;
    uint64_t timestamp_bits;
    at = ls_get_varlong(at + 1, next,
                        &timestamp_bits); /* past the attributes, in which no bit is defined */
    if (at == NULL) return NULL;
    record->timestamp_delta = ls_unzigzag64(timestamp_bits);
    at = ls_get_varint(at, next, &bits);
    if (at == NULL) return NULL;
    record->offset_delta = ls_unzigzag32(bits);
    at = ls_get_sized(at, next, INT32_MIN, &record->key, &record->key_size);
    if (at == NULL) return NULL;
    at = ls_get_sized(at, next, INT32_MIN, &record->value, &record->value_size);
    if (at == NULL) return NULL;
    if (record->key_size < 0) record->key_size = -1;
    if (record->value_size < 0) record->value_size = -1;
    record->headers = at;
    return ls_pass_headers(at, next, record);
}

/*
 * A body with LS_INSIDE_BYTES readable behind it. Varints may be read beyond the body: what is
 * skipped is bounded by it, so `at` never gets further than they do, and then the end does not
 * match.
 */
LS_INLINE const uint8_t *ls_parse_inside(const uint8_t *at, const uint8_t *next,
                                         struct ls_record *record) {
    uint32_t bits;
    uint64_t timestamp_bits = at[1];
    at += 2;
    if (LS_UNLIKELY(timestamp_bits >= 128)) {
        at = ls_get_varlong(at - 1, next + LS_VARLONG_BYTES_MAX, &timestamp_bits);
        if (at == NULL) return NULL;
    }
    record->timestamp_delta = ls_unzigzag64(timestamp_bits);
    at = ls_get_varint_inside(at, &bits);
    if (LS_UNLIKELY(at == NULL)) return NULL;
    record->offset_delta = ls_unzigzag32(bits);

    at = ls_get_varint_inside(at, &bits);
    if (LS_UNLIKELY(at == NULL)) return NULL;
    int32_t size = ls_unzigzag32(bits);
    record->key = at;
    record->key_size = size < 0 ? -1 : size;
    if (size > 0) {
        if (LS_UNLIKELY(size > next - at)) return NULL;
        at += size;
    }
    at = ls_get_varint_inside(at, &bits);
    if (LS_UNLIKELY(at == NULL)) return NULL;
    size = ls_unzigzag32(bits);
    record->value = at;
    record->value_size = size < 0 ? -1 : size;
    if (size > 0) {
        if (LS_UNLIKELY(size > next - at)) return NULL;
        at += size;
    }
    record->headers = at;
    record->header_count = 0;
    if (LS_LIKELY(at == next - 1 && *at == 0)) return next;
    return at < next ? ls_pass_headers(at, next, record) : NULL;
}

/* Where the record at `at` ends, and its body begins; NULL: it is cut off, or too small for one. */
LS_INLINE const uint8_t *ls_record_end(const uint8_t *at, const uint8_t *end,
                                       const uint8_t **body) {
    uint32_t bits;
    if (LS_LIKELY(end - at >= LS_VARINT_BYTES_MAX)) {
        at = ls_get_varint_inside(at, &bits);
    } else {
        at = ls_get_varint(at, end, &bits);
    }
    if (LS_UNLIKELY(at == NULL)) return NULL;
    int32_t body_size = ls_unzigzag32(bits);
    if (LS_UNLIKELY(body_size < LS_RECORD_BYTES_MIN - 1 || body_size > end - at)) return NULL;
    *body = at;
    return at + body_size;
}

/*
 * Parse the record at `at`; reads only [at, end). Returns the byte after it, or NULL if it breaks a
 * rule of the format. A size below -1 counts as null in Kafka; here too.
 */
LS_INLINE const uint8_t *ls_parse_record(const uint8_t *at, const uint8_t *end,
                                         struct ls_record *record) {
    const uint8_t *body;
    const uint8_t *next = ls_record_end(at, end, &body);
    if (LS_UNLIKELY(next == NULL)) return NULL;
    if (LS_LIKELY(end - next >= LS_INSIDE_BYTES)) return ls_parse_inside(body, next, record);
    return ls_parse_last(body, next, record);
}

#endif
