/*
 * ls_py_block.c: blocks of Record objects, or of plain values, made from record batches in memory.
 * The GIL is held throughout: a block is a few hundred records, some tens of microseconds.
 */
#include "ls_py.h"
#include "ls_record.h"

/* Where one batch stands and what its records share. */
struct batch {
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

/* What a block takes and what it has: items are ours until they are moved into a list. */
struct block {
    struct ls_py_state *state;
    PyObject **items;
    Py_ssize_t count;
    Py_ssize_t count_max;
    int64_t start_offset; /* records below are skipped; on return the next offset to read */
    int64_t stop_offset;  /* exclusive */
    bool values_only;
    PyObject *timestamp_object; /* of timestamp_value: neighbours often share it */
    int64_t timestamp_value;
};

/* Position inside a batch: of the next record and how many came before it. */
struct cut {
    const uint8_t *at;
    int32_t index;
};

enum fill { FILL_DONE, FILL_FULL, FILL_BOUND, FILL_INVALID, FILL_ERROR };

static PyObject *bytes_or_none(const uint8_t *bytes, int32_t size) {
    if (size < 0) return Py_NewRef(Py_None);
    return PyBytes_FromStringAndSize((const char *)bytes, size);
}

/* The tuple of pairs for headers that ls_parse_record has already checked. */
static PyObject *make_headers(const struct ls_record *record, const uint8_t *end) {
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
        PyObject *content = name ? bytes_or_none(value, value_size) : NULL;
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

static PyObject *timestamp_object(struct block *block, int64_t timestamp) {
    if (block->timestamp_object == NULL || block->timestamp_value != timestamp) {
        PyObject *object = PyLong_FromLongLong(timestamp);
        if (object == NULL) return NULL;
        Py_XDECREF(block->timestamp_object);
        block->timestamp_object = object;
        block->timestamp_value = timestamp;
    }
    return Py_NewRef(block->timestamp_object);
}

static PyObject *make_record(struct block *block, const struct batch *batch,
                             const struct ls_record *parsed) {
    struct ls_py_record *record = PyObject_New(struct ls_py_record, block->state->record_type);
    if (record == NULL) return NULL;
    int64_t timestamp = batch->timestamp_type == 1
                            ? batch->log_append_time
                            : ls_wrapping_add(batch->base_timestamp, parsed->timestamp_delta);
    record->offset = PyLong_FromLongLong(batch->base_offset + parsed->offset_delta);
    record->timestamp = timestamp_object(block, timestamp);
    record->key = bytes_or_none(parsed->key, parsed->key_size);
    record->value = bytes_or_none(parsed->value, parsed->value_size);
    record->headers = parsed->header_count == 0 ? Py_NewRef(block->state->empty_tuple)
                                                : make_headers(parsed, batch->end);
    record->leader_epoch = batch->leader_epoch;
    record->timestamp_type = batch->timestamp_type;
    if (LS_UNLIKELY(record->offset == NULL || record->timestamp == NULL || record->key == NULL ||
                    record->value == NULL || record->headers == NULL)) {
        Py_DECREF(record);
        return NULL;
    }
    return (PyObject *)record;
}

/*
 * Append the batch's records from *cut on to the block; the cut says where it stopped. Offsets that
 * do not increase would let a reader skip a record: damage.
 */
static enum fill fill(struct block *block, const struct batch *batch, struct cut *cut) {
    int32_t last_delta = -1;
    while (cut->index < batch->record_count) {
        if (block->count == block->count_max) return FILL_FULL;
        struct ls_record parsed;
        const uint8_t *next = ls_parse_record(cut->at, batch->end, &parsed);
        if (next == NULL || parsed.offset_delta <= last_delta ||
            parsed.offset_delta > batch->last_offset_delta) {
            return FILL_INVALID;
        }
        int64_t offset = batch->base_offset + parsed.offset_delta;
        if (offset >= block->stop_offset) return FILL_BOUND;
        if (offset >= block->start_offset) {
            PyObject *item = block->values_only ? bytes_or_none(parsed.value, parsed.value_size)
                                                : make_record(block, batch, &parsed);
            if (LS_UNLIKELY(item == NULL)) return FILL_ERROR;
            block->items[block->count++] = item;
            block->start_offset = offset + 1;
        }
        last_delta = parsed.offset_delta;
        cut->at = next;
        cut->index += 1;
    }
    return cut->at == batch->end ? FILL_DONE : FILL_INVALID;
}

static void drop_items(struct block *block, Py_ssize_t count) {
    while (block->count > count)
        Py_DECREF(block->items[--block->count]);
}

static int block_open(struct block *block, PyObject *module, int64_t count_max) {
    block->state = PyModule_GetState(module);
    block->count_max = (Py_ssize_t)count_max;
    block->items = PyMem_Malloc((size_t)count_max * sizeof *block->items);
    if (block->items == NULL) PyErr_NoMemory();
    return block->items == NULL ? -1 : 0;
}

/* The items as a list; NULL if `failed` or out of memory. Frees the block either way. */
static PyObject *block_close(struct block *block, bool failed) {
    PyObject *list = failed ? NULL : PyList_New(block->count);
    if (list == NULL) drop_items(block, 0);
    for (Py_ssize_t i = 0; i < block->count; i++)
        PyList_SetItem(list, i, block->items[i]);
    PyMem_Free(block->items);
    Py_CLEAR(block->timestamp_object);
    return list;
}

/*
 * fill_records(section, base_offset, base_timestamp, log_append_time, timestamp_type, leader_epoch,
 *              last_offset_delta, record_count, start_offset, stop_offset, limit, values_only)
 * -> list, or None if the section breaks a rule of the format.
 */
PyObject *ls_py_fill_records(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    int64_t numbers[11];
    if (count != 12) return PyErr_Format(PyExc_TypeError, "fill_records takes 12 arguments");
    if (ls_py_int64s(args + 1, 11, numbers) < 0) return NULL;
    struct block block = {
        .start_offset = numbers[7], .stop_offset = numbers[8], .values_only = numbers[10] != 0};
    Py_buffer view;
    if (PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0) return NULL;
    const uint8_t *section = view.buf;
    struct batch batch = {
        .section = section,
        .end = section + view.len,
        .base_offset = numbers[0],
        .base_timestamp = numbers[1],
        .log_append_time = numbers[2],
        .timestamp_type = (int8_t)numbers[3],
        .leader_epoch = (int32_t)numbers[4],
        .last_offset_delta = (int32_t)numbers[5],
        .record_count = (int32_t)numbers[6],
    };
    /* Every record takes some bytes: a count beyond that is damage, not a reason to allocate. */
    bool sound = numbers[9] >= 0 && batch.record_count >= 0 &&
                 batch.record_count <= view.len / LS_RECORD_BYTES_MIN &&
                 batch.base_offset <= INT64_MAX - batch.last_offset_delta;
    int64_t count_max = numbers[9] < batch.record_count ? numbers[9] : batch.record_count;
    enum fill outcome = FILL_INVALID;
    PyObject *list = NULL;
    if (sound && block_open(&block, self, count_max) == 0) {
        struct cut cut = {.at = batch.section};
        outcome = fill(&block, &batch, &cut);
        list = block_close(&block, outcome == FILL_INVALID || outcome == FILL_ERROR);
    }
    PyBuffer_Release(&view);
    if (list == NULL && !PyErr_Occurred()) return Py_NewRef(Py_None);
    return list;
}

/* Look at the batch at `at`; LS_BLOCK_END: it is plain, and `batch` is filled. Bounds every length. */
static enum ls_block_stop open_batch(const uint8_t *at, int64_t size, struct batch *batch) {
    if (size < LS_HEADER_UP_TO_MAGIC) return LS_BLOCK_TORN;
    int64_t batch_size = LS_LOG_OVERHEAD + (int64_t)(int32_t)ls_load_be32(at + LS_LENGTH_AT);
    int8_t magic = (int8_t)at[LS_MAGIC_AT];
    if (magic == 0 || magic == 1) return LS_BLOCK_LEGACY;
    if (magic != 2 || batch_size < LS_BATCH_OVERHEAD) return LS_BLOCK_INVALID;
    if (batch_size > size) return LS_BLOCK_TORN;
    *batch = (struct batch){
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
static enum ls_block_stop refuse_batch(const struct batch *batch, const uint8_t *at,
                                       bool transactional, bool verify) {
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

/* What read_block walks: [at, end), and where in the batch at `at` to go on. */
struct walk {
    const uint8_t *at;
    const uint8_t *end;
    struct cut cut; /* at NULL: at the batch's first record */
    bool transactional;
    bool verify;
};

/* Fill the block until something ends it; -1 with an error set. */
static int walk_batches(struct walk *walk, struct block *block) {
    while (walk->at < walk->end) {
        struct batch batch;
        enum ls_block_stop stop = open_batch(walk->at, walk->end - walk->at, &batch);
        if (stop != LS_BLOCK_END) return (int)stop;
        int64_t last_offset = batch.base_offset + batch.last_offset_delta;
        if (last_offset >= block->start_offset) {
            if (batch.base_offset >= block->stop_offset) return LS_BLOCK_BOUND;
            if (block->count == block->count_max) return LS_BLOCK_FULL;
            bool resumed = walk->cut.at != NULL;
            stop = refuse_batch(&batch, walk->at, walk->transactional, walk->verify && !resumed);
            if (stop != LS_BLOCK_END) return (int)stop;

            Py_ssize_t count = block->count;
            int64_t start_offset = block->start_offset;
            struct cut cut = resumed ? walk->cut : (struct cut){.at = batch.section};
            if (cut.at < batch.section || cut.at > batch.end) return LS_BLOCK_INVALID;
            walk->cut = (struct cut){0};
            switch (fill(block, &batch, &cut)) {
                case FILL_DONE:
                    break;
                case FILL_FULL:
                    walk->cut = cut;
                    return LS_BLOCK_FULL;
                case FILL_BOUND:
                    return LS_BLOCK_BOUND;
                case FILL_INVALID: /* Python judges this batch as a whole. */
                    drop_items(block, count);
                    block->start_offset = start_offset;
                    return LS_BLOCK_INVALID;
                case FILL_ERROR:
                    return -1;
            }
            block->start_offset = last_offset + 1;
        }
        walk->at = batch.end;
    }
    return LS_BLOCK_END;
}

/*
 * read_block(data, position, end, start_offset, stop_offset, max_records, values_only, verify_crc,
 *            transactional, record_position, record_index)
 * -> (items, next_position, next_offset, stop, record_position, record_index)
 */
PyObject *ls_py_read_block(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    int64_t numbers[10];
    if (count != 11) return PyErr_Format(PyExc_TypeError, "read_block takes 11 arguments");
    if (ls_py_int64s(args + 1, 10, numbers) < 0) return NULL;
    Py_buffer view;
    if (PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0) return NULL;
    const int64_t position = numbers[0], end = numbers[1], max_records = numbers[4],
                  record_position = numbers[8];
    const uint8_t *data = view.buf;
    if (position < 0 || end < position || end > view.len || record_position < 0 ||
        record_position > end || max_records < 1 || max_records > LS_BLOCK_RECORDS_MAX) {
        PyBuffer_Release(&view);
        return PyErr_Format(PyExc_ValueError,
                            "a position is outside the data, or max_records is not in 1..%d",
                            (int)LS_BLOCK_RECORDS_MAX);
    }
    struct walk walk = {.at = data + position,
                        .end = data + end,
                        .transactional = numbers[7] != 0,
                        .verify = numbers[6] != 0};
    if (record_position > 0)
        walk.cut = (struct cut){.at = data + record_position, .index = (int32_t)numbers[9]};
    struct block block = {
        .start_offset = numbers[2], .stop_offset = numbers[3], .values_only = numbers[5] != 0};
    PyObject *result = NULL;
    if (block_open(&block, self, max_records) == 0) {
        int stop = walk_batches(&walk, &block);
        PyObject *items = block_close(&block, stop < 0);
        if (items != NULL) {
            result = Py_BuildValue(
                "NLLiLi", items, (long long)(walk.at - data), (long long)block.start_offset, stop,
                (long long)(walk.cut.at == NULL ? 0 : walk.cut.at - data), (int)walk.cut.index);
        }
    }
    PyBuffer_Release(&view);
    return result;
}
