/*
 * ls_py_block.c: blocks of Record objects, or of plain values, made from record batches in memory.
 * The GIL is held throughout: a block is a few hundred records, some tens of microseconds.
 */
#include "ls_py.h"
#include "ls_py_batch.h"

/* What a block takes and what it has: items are ours until they are moved into a list. */
struct block {
    struct ls_py_state *state;
    PyObject **items;
    Py_ssize_t count;
    Py_ssize_t count_max;
    int64_t start_offset; /* records below are skipped; on return the next offset to read */
    int64_t stop_offset;  /* exclusive */
    bool values_only;
};

/* Position inside a batch: of the next record and how many came before it. */
struct cut {
    const uint8_t *at;
    int32_t index;
};

enum fill { FILL_DONE, FILL_FULL, FILL_BOUND, FILL_INVALID, FILL_ERROR };

/*
 * Append the batch's records from *cut on to the block; the cut says where it stopped. Offsets that
 * do not increase would let a reader skip a record: damage.
 */
static enum fill fill(struct block *block, const struct ls_open_batch *batch, struct cut *cut) {
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
            PyObject *item = block->values_only
                                 ? ls_py_bytes_or_none(parsed.value, parsed.value_size)
                                 : ls_py_make_record(block->state, batch, &parsed);
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

static int block_open(struct block *block, struct ls_py_state *state, int64_t count_max) {
    block->state = state;
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
    struct ls_open_batch batch = {
        .records = section,
        .end = section + view.len,
        .base_offset = numbers[0],
        .base_timestamp = numbers[1],
        .max_timestamp = numbers[2],
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
    if (sound && block_open(&block, PyModule_GetState(self), count_max) == 0) {
        struct cut cut = {.at = batch.records};
        outcome = fill(&block, &batch, &cut);
        list = block_close(&block, outcome == FILL_INVALID || outcome == FILL_ERROR);
    }
    PyBuffer_Release(&view);
    if (list == NULL && !PyErr_Occurred()) return Py_NewRef(Py_None);
    return list;
}

/* What read_block walks: [at, end), and where in the batch at `at` to go on. */
struct walk {
    const uint8_t *at;
    const uint8_t *end;
    struct cut cut;          /* at NULL: at the batch's first record */
    int64_t base_offset_min; /* of the batch at `at`, unless it was begun; -1: any */
    bool transactional;
    bool verify;
};

/* Fill the block until something ends it; -1 with an error set. */
static int walk_batches(struct walk *walk, struct block *block) {
    while (walk->at < walk->end) {
        struct ls_open_batch batch;
        enum ls_block_stop stop = ls_open_batch_at(walk->at, walk->end - walk->at, &batch);
        if (stop != LS_BLOCK_END) return (int)stop;
        bool resumed = walk->cut.at != NULL;
        if (batch.base_offset < walk->base_offset_min && !resumed) return LS_BLOCK_DISORDER;
        int64_t last_offset = batch.base_offset + batch.last_offset_delta;
        if (last_offset >= block->start_offset) {
            if (batch.base_offset >= block->stop_offset) return LS_BLOCK_BOUND;
            if (block->count == block->count_max) return LS_BLOCK_FULL;
            stop =
                ls_py_refuse_batch(&batch, walk->at, walk->transactional, walk->verify && !resumed);
            if (stop != LS_BLOCK_END) return (int)stop;

            Py_ssize_t count = block->count;
            int64_t start_offset = block->start_offset;
            struct cut cut = resumed ? walk->cut : (struct cut){.at = batch.records};
            if (cut.at < batch.records || cut.at > batch.end) return LS_BLOCK_INVALID;
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
        if (walk->base_offset_min >= 0) walk->base_offset_min = last_offset + 1;
    }
    return LS_BLOCK_END;
}

/*
 * read_block(data, position, end, start_offset, stop_offset, max_records, values_only, verify_crc,
 *            transactional, record_position, record_index, base_offset_min)
 * -> (items, next_position, next_offset, stop, record_position, record_index, base_offset_min)
 */
PyObject *ls_py_read_block(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    int64_t numbers[11];
    if (count != 12) return PyErr_Format(PyExc_TypeError, "read_block takes 12 arguments");
    if (ls_py_int64s(args + 1, 11, numbers) < 0) return NULL;
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
                        .base_offset_min = numbers[10],
                        .transactional = numbers[7] != 0,
                        .verify = numbers[6] != 0};
    if (record_position > 0)
        walk.cut = (struct cut){.at = data + record_position, .index = (int32_t)numbers[9]};
    struct block block = {
        .start_offset = numbers[2], .stop_offset = numbers[3], .values_only = numbers[5] != 0};
    PyObject *result = NULL;
    if (block_open(&block, PyModule_GetState(self), max_records) == 0) {
        int stop = walk_batches(&walk, &block);
        PyObject *items = block_close(&block, stop < 0);
        if (items != NULL) {
            result = Py_BuildValue("NLLiLiL", items, (long long)(walk.at - data),
                                   (long long)block.start_offset, stop,
                                   (long long)(walk.cut.at == NULL ? 0 : walk.cut.at - data),
                                   (int)walk.cut.index, (long long)walk.base_offset_min);
        }
    }
    PyBuffer_Release(&view);
    return result;
}

PyObject *ls_py_plain_records(struct ls_py_state *state, const uint8_t *bytes, int64_t size,
                              bool transactional, int64_t stop_offset, struct ls_py_place *place) {
    struct walk walk = {.at = bytes,
                        .end = bytes + size,
                        .base_offset_min = place->base_offset_min,
                        .transactional = transactional,
                        .verify = true};
    struct block block = {.start_offset = place->next_offset, .stop_offset = stop_offset};
    /* More records than these bytes can hold: none is left behind. */
    if (block_open(&block, state, size / LS_RECORD_BYTES_MIN + 1) < 0) return NULL;
    int stop = walk_batches(&walk, &block);
    PyObject *records = block_close(&block, stop < 0);
    if (records == NULL || PyList_Size(records) == 0) return records;
    place->position += walk.at - bytes;
    place->next_offset = block.start_offset;
    place->base_offset_min = walk.base_offset_min;
    return records;
}
