/*
 * ls_encode_inline.h: put one v2 record, or a v2 batch header, straight into a buffer. For code that
 * walks records itself (lists, single appends); columns go through ls_encode_batch.
 *
 *     uint8_t *end = batch + batch_bytes;                     // end + LS_ENCODE_SLACK is ours, too
 *     int64_t size = ls_record_size(delta, ts, key_size, value_size, headers_size);
 *     if (size > end - at) ...                                // does not fit: next batch
 *     at = ls_put_record(at, delta, ts, key, key_size, value, value_size, headers, headers_size);
 *     ...
 *     ls_seal_batch((uintptr_t)batch, at - batch, &fields, base_timestamp, max_timestamp, last_delta, count);
 *
 * Sources are read exactly; LS_ENCODE_SLACK bytes behind a record may be overwritten.
 */
#ifndef LS_ENCODE_INLINE_H
#define LS_ENCODE_INLINE_H

#include "ls_internal.h"

enum {
    /* Most that a record takes beside key, value and headers: 5 + 1 + 10 + 5 + 5 + 5 + 1. */
    LS_RECORD_OVERHEAD_MAX = 32
};

/* Put an unsigned varint; writes up to 5 bytes. */
LS_INLINE uint8_t *ls_put_varint(uint8_t *at, uint32_t bits) {
    while (bits >= 128) {
        *at++ = (uint8_t)(bits | 128);
        bits >>= 7;
    }
    *at++ = (uint8_t)bits;
    return at;
}

LS_INLINE uint8_t *ls_put_varlong(uint8_t *at, uint64_t bits) {
    while (bits >= 128) {
        *at++ = (uint8_t)(bits | 128);
        bits >>= 7;
    }
    *at++ = (uint8_t)bits;
    return at;
}

/*
 * Size of a record's body, which its first varint states. key_size and value_size: -1 null.
 * headers_size: bytes of headersCount + headers; 0 stands for no headers (one byte).
 * Sizes are at most 2^31 - 1 each; the result may exceed that: LS_E_TOO_LARGE is the caller's.
 */
LS_INLINE int64_t ls_record_body_size(int32_t offset_delta, int64_t timestamp_delta, int64_t key_size,
                                      int64_t value_size, int64_t headers_size) {
    int64_t size = 1 + ls_varlong_bytes(ls_zigzag64(timestamp_delta)) + ls_varint_bytes(ls_zigzag32(offset_delta));
    size += key_size < 0 ? 1 : ls_varint_bytes((uint32_t)key_size << 1) + key_size;
    size += value_size < 0 ? 1 : ls_varint_bytes((uint32_t)value_size << 1) + value_size;
    return size + (headers_size > 0 ? headers_size : 1);
}

/* Size of a whole record, with its length varint. */
LS_INLINE int64_t ls_record_size(int32_t offset_delta, int64_t timestamp_delta, int64_t key_size, int64_t value_size,
                                 int64_t headers_size) {
    int64_t body = ls_record_body_size(offset_delta, timestamp_delta, key_size, value_size, headers_size);
    return body + (body < 1 << 27 ? ls_varint_bytes((uint32_t)body << 1) : LS_VARINT_BYTES_MAX);
}

/* Copy exactly `size` bytes without reading beyond the source. */
LS_INLINE void ls_copy(uint8_t *to, const uint8_t *from, int64_t size) { memcpy(to, from, (size_t)size); }

/*
 * Put one record at `at` and return the byte after it: exactly ls_record_size bytes further.
 * The room, and a body of at most 2^31 - 1 bytes, are the caller's to check. `headers` are
 * headersCount and headers as the format has them.
 */
LS_INLINE uint8_t *ls_put_record(uint8_t *at, int32_t offset_delta, int64_t timestamp_delta, const uint8_t *key,
                                 int64_t key_size, const uint8_t *value, int64_t value_size, const uint8_t *headers,
                                 int64_t headers_size) {
    int64_t body = ls_record_body_size(offset_delta, timestamp_delta, key_size, value_size, headers_size);
    assert(body <= INT32_MAX);
    at = ls_put_varint(at, (uint32_t)body << 1);
    *at++ = 0;
    at = ls_put_varlong(at, ls_zigzag64(timestamp_delta));
    at = ls_put_varint(at, ls_zigzag32(offset_delta));
    if (key_size < 0) {
        *at++ = 1;
    } else {
        at = ls_put_varint(at, (uint32_t)key_size << 1);
        ls_copy(at, key, key_size);
        at += key_size;
    }
    if (value_size < 0) {
        *at++ = 1;
    } else {
        at = ls_put_varint(at, (uint32_t)value_size << 1);
        ls_copy(at, value, value_size);
        at += value_size;
    }
    if (headers_size <= 0) {
        *at++ = 0;
    } else {
        ls_copy(at, headers, headers_size);
        at += headers_size;
    }
    return at;
}

#endif
