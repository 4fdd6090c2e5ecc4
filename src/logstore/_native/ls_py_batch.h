/*
 * ls_py_batch.h: one batch in memory, judged, and the Record objects made of its records. Inline,
 * for the files that deliver records; ls_py.h's rules hold.
 */
#ifndef LS_PY_BATCH_H
#define LS_PY_BATCH_H

#include "ls_py.h"
#include "ls_record.h"

/* Where one batch stands and what its records share. */
struct ls_py_batch {
    const uint8_t *section; /* first record */
    const uint8_t *end;     /* behind the last */
    int64_t base_offset;
    int64_t base_timestamp;
    int64_t log_append_time; /* replaces every record's timestamp if timestamp_type is 1 */
    int32_t last_offset_delta;
    int32_t record_count;
    int32_t leader_epoch;
    int16_t attributes;
    int8_t timestamp_type;
};

static inline PyObject *ls_py_bytes_or_none(const uint8_t *bytes, int32_t size) {
    if (size < 0) return Py_NewRef(Py_None);
    return PyBytes_FromStringAndSize((const char *)bytes, size);
}

/* The tuple of pairs for headers that ls_parse_record has already checked. */
static inline PyObject *ls_py_make_headers(const struct ls_record *record, const uint8_t *end) {
    uint32_t bits;
    const uint8_t *at = ls_get_varint(record->headers, end, &bits);
    PyObject *headers = PyTuple_New(record->header_count);
    for (int32_t i = 0; headers != NULL && i < record->header_count; ++i) {
        const uint8_t *key = NULL, *value = NULL;
        int32_t key_size = 0, value_size = -1;
        at = ls_get_sized(at, end, 0, &key, &key_size);
        if (at != NULL) at = ls_get_sized(at, end, INT32_MIN, &value, &value_size);
        PyObject *pair = PyTuple_New(2);
        PyObject *name =
            pair ? PyUnicode_DecodeUTF8((const char *)key, key_size, "surrogateescape") : NULL;
        PyObject *content = name ? ls_py_bytes_or_none(value, value_size) : NULL;
        if (content == NULL) {
            Py_XDECREF(name);
            Py_XDECREF(pair);
            Py_CLEAR(headers);
        } else {
            PyTuple_SetItem(pair, 0, name);
            PyTuple_SetItem(pair, 1, content);
            PyTuple_SetItem(headers, i, pair);
        }
    }
    return headers;
}

/* Memory for a record, with one reference and its type; nothing else of it is set. */
static inline struct ls_py_record *ls_py_new_record(struct ls_py_state *state) {
#ifndef Py_GIL_DISABLED
    if (LS_LIKELY(state->free_record_count > 0)) {
        PyObject *memory = state->free_records[--state->free_record_count];
        return (struct ls_py_record *)PyObject_Init(memory, state->record_type);
    }
#endif
    return PyObject_New(struct ls_py_record, state->record_type);
}

static inline PyObject *ls_py_make_record(struct ls_py_state *state,
                                          const struct ls_py_batch *batch,
                                          const struct ls_record *parsed) {
    struct ls_py_record *record = ls_py_new_record(state);
    if (record == NULL) return NULL;
    record->offset = batch->base_offset + parsed->offset_delta;
    record->timestamp = batch->timestamp_type == 1
                            ? batch->log_append_time
                            : ls_wrapping_add(batch->base_timestamp, parsed->timestamp_delta);
    record->key = ls_py_bytes_or_none(parsed->key, parsed->key_size);
    record->value = ls_py_bytes_or_none(parsed->value, parsed->value_size);
    record->headers = parsed->header_count == 0 ? Py_NewRef(state->empty_tuple)
                                                : ls_py_make_headers(parsed, batch->end);
    record->leader_epoch = batch->leader_epoch;
    record->timestamp_type = batch->timestamp_type;
    if (LS_UNLIKELY(record->key == NULL || record->value == NULL || record->headers == NULL)) {
        Py_DECREF(record);
        return NULL;
    }
    return (PyObject *)record;
}

/* Look at the batch at `at`; LS_BLOCK_END: it is plain, and `batch` is filled. Bounds every length. */
static inline enum ls_block_stop ls_py_open_batch(const uint8_t *at, int64_t size,
                                                  struct ls_py_batch *batch) {
    if (size < LS_HEADER_UP_TO_MAGIC) return LS_BLOCK_TORN;
    int64_t batch_size = LS_LOG_OVERHEAD + (int64_t)(int32_t)ls_load_be32(at + LS_LENGTH_AT);
    int8_t magic = (int8_t)at[LS_MAGIC_AT];
    if (magic == 0 || magic == 1) return LS_BLOCK_LEGACY;
    if (magic != 2 || batch_size < LS_BATCH_OVERHEAD) return LS_BLOCK_INVALID;
    if (batch_size > size) return LS_BLOCK_TORN;
    *batch = (struct ls_py_batch){
        .section = at + LS_BATCH_OVERHEAD,
        .end = at + batch_size,
        .base_offset = (int64_t)ls_load_be64(at + LS_BASE_OFFSET_AT),
        .base_timestamp = (int64_t)ls_load_be64(at + LS_BASE_TIMESTAMP_AT),
        .log_append_time = (int64_t)ls_load_be64(at + LS_MAX_TIMESTAMP_AT),
        .last_offset_delta = (int32_t)ls_load_be32(at + LS_LAST_OFFSET_DELTA_AT),
        .record_count = (int32_t)ls_load_be32(at + LS_RECORD_COUNT_AT),
        .leader_epoch = (int32_t)ls_load_be32(at + LS_LEADER_EPOCH_AT),
        .attributes = (int16_t)ls_load_be16(at + LS_ATTRIBUTES_AT),
    };
    if (batch->base_offset < 0 || batch->last_offset_delta < 0 || batch->record_count < 0 ||
        batch->base_offset >= INT64_MAX - batch->last_offset_delta) {
        return LS_BLOCK_INVALID;
    }
    batch->timestamp_type = (batch->attributes & LS_LOG_APPEND_TIME_BIT) != 0;
    return LS_BLOCK_END;
}

/* Why Python must handle this batch, or LS_BLOCK_END. */
static inline enum ls_block_stop ls_py_refuse_batch(const struct ls_py_batch *batch,
                                                    const uint8_t *at, bool transactional,
                                                    bool verify) {
    if (batch->attributes & LS_CONTROL_BIT) return LS_BLOCK_CONTROL;
    if (batch->attributes & LS_TRANSACTIONAL_BIT && !transactional) return LS_BLOCK_TRANSACTIONAL;
    if (batch->attributes & LS_CODEC_MASK) return LS_BLOCK_COMPRESSED;
    if (verify) {
        uint32_t crc =
            ls_crc32c(0, (uintptr_t)(at + LS_ATTRIBUTES_AT), batch->end - at - LS_ATTRIBUTES_AT);
        if (crc != ls_load_be32(at + LS_CRC_AT)) return LS_BLOCK_INVALID;
    }
    return LS_BLOCK_END;
}

#endif
