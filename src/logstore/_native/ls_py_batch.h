/*
 * ls_py_batch.h: whether C may deliver a batch, and the Record objects made of its records. Inline,
 * for the files that deliver records; ls_py.h's rules hold.
 */
#ifndef LS_PY_BATCH_H
#define LS_PY_BATCH_H

#include "ls_open_batch.h"
#include "ls_py.h"
#include "ls_record.h"

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
                                          const struct ls_open_batch *batch,
                                          const struct ls_record *parsed) {
    struct ls_py_record *record = ls_py_new_record(state);
    if (record == NULL) return NULL;
    record->offset = batch->base_offset + parsed->offset_delta;
    record->timestamp = batch->timestamp_type == 1
                            ? batch->max_timestamp
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

/* Why Python must handle this batch, or LS_BLOCK_END. */
static inline enum ls_block_stop ls_py_refuse_batch(const struct ls_open_batch *batch,
                                                    const uint8_t *at, bool transactional,
                                                    bool verify) {
    if (batch->attributes & LS_CONTROL_BIT) return LS_BLOCK_CONTROL;
    if (batch->attributes & LS_TRANSACTIONAL_BIT && !transactional) return LS_BLOCK_TRANSACTIONAL;
    if (batch->attributes & LS_CODEC_MASK) return LS_BLOCK_COMPRESSED;
    if (verify && !ls_has_right_crc(at, batch)) return LS_BLOCK_INVALID;
    return LS_BLOCK_END;
}

#endif
