/*
 * ls_py_list.c: append a Python list. Items are encoded straight from their objects into the writer's
 * staging buffer with the GIL kept, and each 1 MiB of them is written without it: one pass over the
 * objects, 10 ns each beside the copy. A stream (ls_writer.h) owns the writer without its lock, so
 * that the GIL may be taken back in between (DESIGN.md D2).
 */
#include "ls_py.h"
#include "ls_writer.h"

enum { BYTES_WITHOUT_GIL = 65536, AHEAD = 8 };

/* One argument: a list, a tuple, or NULL. */
struct column {
    PyObject *source;
    const char *name;
    bool is_list;
};

struct walk {
    struct ls_stream stream;
    struct column values, keys, timestamps, headers;
    struct ls_py_bytes header_bytes; /* of one record */
    int64_t timestamp;               /* without a column of them; -1 is now */
    const int64_t *order;            /* record i is item order[i]; NULL: item i */
    Py_ssize_t first, index, end;
};

/* ---- columns --------------------------------------------------------------------------------------- */
static Py_ssize_t column_size(const struct column *column) {
    return column->is_list ? PyList_Size(column->source) : PyTuple_Size(column->source);
}

static int column_open(struct column *column, const char *name, PyObject *source,
                       Py_ssize_t count) {
    column->name = name;
    if (source == Py_None) return 0;
    column->is_list = PyList_CheckExact(source);
    if (!column->is_list && !PyTuple_CheckExact(source)) {
        PyErr_Format(PyExc_TypeError, "%s is a list or a tuple, not %R", name,
                     (PyObject *)Py_TYPE(source));
        return -1;
    }
    column->source = Py_NewRef(source);
    if (count >= 0 && column_size(column) != count) {
        PyErr_Format(PyExc_ValueError, "%zd %s for %zd values; give one for each",
                     column_size(column), name, count);
        return -1;
    }
    return 0;
}

/*
 * A new reference to an item; NULL with an error set, if another thread has made the list shorter.
 * The reference matters: writing drops the GIL, and so may the item's own code.
 */
static inline PyObject *column_item(const struct column *column, Py_ssize_t index) {
#ifdef Py_GIL_DISABLED
    if (column->is_list) return PyList_GetItemRef(column->source, index);
#endif
    PyObject *item = column->is_list ? PyList_GetItem(column->source, index)
                                     : PyTuple_GetItem(column->source, index);
    Py_XINCREF(item);
    return item;
}

/* Which item is a record's. */
static inline Py_ssize_t item_index(const struct walk *walk, Py_ssize_t index) {
    return walk->order == NULL ? index : (Py_ssize_t)walk->order[index];
}

static int walk_open_values(struct walk *walk, PyObject *values) {
    if (column_open(&walk->values, "values", values, -1) < 0) return -1;
    if (walk->values.source == NULL) {
        PyErr_SetString(PyExc_TypeError, "values is a list or a tuple, not None");
        return -1;
    }
    walk->end = column_size(&walk->values);
    return 0;
}

static int walk_open(struct walk *walk, PyObject *const *args, Py_ssize_t first,
                     int64_t order_count) {
    if (walk_open_values(walk, args[0]) < 0) return -1;
    Py_ssize_t count = walk->end;
    if (column_open(&walk->keys, "keys", args[1], count) < 0 ||
        column_open(&walk->timestamps, "timestamps", args[2], count) < 0 ||
        column_open(&walk->headers, "headers", args[3], count) < 0) {
        return -1;
    }
    if (walk->order != NULL) walk->end = (Py_ssize_t)order_count;
    if (first < 0 || first > walk->end) {
        PyErr_Format(PyExc_ValueError, "first is %zd, outside of %zd values", first, walk->end);
        return -1;
    }
    walk->index = walk->first = first;
    return 0;
}

static void walk_close(struct walk *walk) {
    Py_XDECREF(walk->values.source);
    Py_XDECREF(walk->keys.source);
    Py_XDECREF(walk->timestamps.source);
    Py_XDECREF(walk->headers.source);
    PyMem_Free(walk->header_bytes.bytes);
}

/* ---- batches ------------------------------------------------------------------------------------------- */
/* Let what was filled join the append, and write what is due without the GIL. */
static int64_t seal(struct walk *walk) {
    struct ls_stream *stream = &walk->stream;
    int64_t result = ls_stream_seal(stream);
    if (result < 0 || !ls_stream_is_due(stream)) return result;
    /* What follows is probably like what was. */
    int64_t count = stream->appended.record_count;
    int64_t rest = walk->end - walk->first - count;
    int64_t bytes_to_come = stream->appended.size_bytes / count * rest;
    /* Rather than write half of it first. The estimate may be wrong: rolling is never wrong. */
    bool must_fit = stream->flags & LS_APPEND_ALL_OR_NOTHING;
    if (must_fit && ls_stream_room(stream) < bytes_to_come) return LS_E_ROLL;
    Py_BEGIN_ALLOW_THREADS;
    result = ls_stream_write(stream, bytes_to_come);
    Py_END_ALLOW_THREADS;
    return result;
}

/* End the batch and begin the next with a record of this size. */
static int64_t next_batch(struct walk *walk, int64_t record_size, int64_t timestamp) {
    int64_t result = seal(walk);
    if (result < 0) return result;
    Py_ssize_t index = item_index(walk, walk->index);
    return ls_stream_start(&walk->stream, index, record_size, timestamp);
}

/* ---- values alone, with one timestamp -------------------------------------------------------------------- */
/*
 * Put bytes objects as long as they fit the batch and nothing is special about them; the state of the
 * stream is kept in registers meanwhile. Without references: no other code runs.
 */
static int put_plain(struct walk *walk) {
    struct ls_stream *stream = &walk->stream;
    struct ls_value_shape shape = stream->shape;
    uint8_t *at = stream->at;
    int64_t count = stream->count;
    Py_ssize_t index = walk->index;
    const bool is_list = walk->values.is_list;
    PyObject *const source = walk->values.source;
    for (; index < walk->end; index++) {
        Py_ssize_t at_item = item_index(walk, index);
        if (walk->order != NULL && index + AHEAD < walk->end) {
            ls_py_prefetch(source, is_list, walk->order[index + AHEAD], 128);
        }
        PyObject *item =
            is_list ? PyList_GetItem(source, at_item) : PyTuple_GetItem(source, at_item);
        if (LS_UNLIKELY(item == NULL)) return -1;
        if (LS_UNLIKELY(!PyBytes_CheckExact(item))) break;
        char *bytes;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(item, &bytes, &size) < 0) return -1;
        if (LS_UNLIKELY(!ls_fits_value_shape(count, size))) break;
        if (LS_UNLIKELY(ls_shape_value(&shape, count, size) > stream->end - at)) break;
        at = ls_put_value(&shape, at, count, (const uint8_t *)bytes);
        count += 1;
    }
    stream->shape = shape;
    stream->at = at;
    stream->count = (int32_t)count;
    walk->index = index;
    return 0;
}

/* ---- any record -------------------------------------------------------------------------------------------- */
static int wrong_type(const char *name, Py_ssize_t index, PyObject *object) {
    PyErr_Format(PyExc_TypeError, "item %zd of %s is %R, not bytes, another buffer or None%s",
                 index, name, (PyObject *)Py_TYPE(object),
                 PyUnicode_Check(object) ? "; encode it first" : "");
    return -1;
}

/* The bytes of one item, until the view is released. */
static int take_item(const struct column *column, Py_ssize_t index, PyObject *object,
                     struct ls_item *item, Py_buffer *view) {
    *item = (struct ls_item){NULL, -1};
    if (object == Py_None) return 0;
    if (PyBytes_CheckExact(object)) { /* Without a view: the object is held, and cannot change. */
        char *bytes;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(object, &bytes, &size) < 0) return -1;
        *item = (struct ls_item){(const uint8_t *)bytes, size};
    } else {
        if (!PyObject_CheckBuffer(object)) return wrong_type(column->name, index, object);
        if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) < 0) return -1;
        *item = (struct ls_item){view->buf, view->len};
    }
    if (item->size <= INT32_MAX) return 0;
    PyErr_Format(PyExc_ValueError, "item %zd of %s is larger than 2^31 - 1 bytes", index,
                 column->name);
    return -1;
}

static int take_timestamp(Py_ssize_t index, PyObject *object, int64_t *timestamp) {
    if (!PyLong_Check(object)) {
        PyErr_Format(PyExc_TypeError, "item %zd of timestamps is %R, not int (ms)", index,
                     (PyObject *)Py_TYPE(object));
        return -1;
    }
    *timestamp = PyLong_AsLongLong(object);
    return *timestamp == -1 && PyErr_Occurred() ? -1 : 0;
}

/* One record: objects that are held, and what they stand for. */
struct record {
    PyObject *value_object, *key_object, *timestamp_object, *header_object;
    Py_buffer value_view, key_view;
    struct ls_item value, key, header;
    int64_t timestamp;
};

static int take_record(struct walk *walk, struct record *record) {
    Py_ssize_t index = item_index(walk, walk->index);
    if (walk->order != NULL && walk->index + AHEAD < walk->end) {
        int64_t ahead = walk->order[walk->index + AHEAD];
        ls_py_prefetch(walk->values.source, walk->values.is_list, ahead, 128);
        if (walk->keys.source != NULL) {
            ls_py_prefetch(walk->keys.source, walk->keys.is_list, ahead, 0);
        }
    }
    record->key = (struct ls_item){NULL, -1};
    record->timestamp = walk->timestamp;
    record->value_object = column_item(&walk->values, index);
    if (record->value_object == NULL) return -1;
    if (take_item(&walk->values, index, record->value_object, &record->value, &record->value_view) <
        0) {
        return -1;
    }
    if (walk->keys.source != NULL) {
        record->key_object = column_item(&walk->keys, index);
        if (record->key_object == NULL) return -1;
        if (take_item(&walk->keys, index, record->key_object, &record->key, &record->key_view) <
            0) {
            return -1;
        }
    }
    if (walk->timestamps.source != NULL) {
        record->timestamp_object = column_item(&walk->timestamps, index);
        if (record->timestamp_object == NULL) return -1;
        if (take_timestamp(index, record->timestamp_object, &record->timestamp) < 0) return -1;
    }
    if (walk->headers.source != NULL) {
        record->header_object = column_item(&walk->headers, index);
        if (record->header_object == NULL) return -1;
        walk->header_bytes.size = 0;
        if (record->header_object != Py_None &&
            ls_py_put_headers(&walk->header_bytes, record->header_object) < 0) {
            return -1;
        }
        record->header = (struct ls_item){walk->header_bytes.bytes, walk->header_bytes.size};
    }
    return 0;
}

static void release_record(struct record *record) {
    if (record->value_view.obj != NULL) PyBuffer_Release(&record->value_view);
    if (record->key_view.obj != NULL) PyBuffer_Release(&record->key_view);
    Py_XDECREF(record->value_object);
    Py_XDECREF(record->key_object);
    Py_XDECREF(record->timestamp_object);
    Py_XDECREF(record->header_object);
}

static int64_t put_record(struct walk *walk, const struct record *record) {
    struct ls_stream *stream = &walk->stream;
    int64_t result =
        ls_stream_judge(stream, item_index(walk, walk->index), record->key, record->timestamp);
    if (result < 0) return result;
    for (;;) {
        result =
            ls_stream_put(stream, record->key, record->value, record->header, record->timestamp);
        if (result != LS_STREAM_NEXT) return result;
        int64_t size =
            ls_record_size(0, 0, record->key.size, record->value.size, record->header.size);
        result = next_batch(walk, size, record->timestamp);
        if (result < 0) return result;
    }
}

/* A record that is not put, because the append is not to be: its mistakes are found all the same. */
static int64_t check_record(struct walk *walk, const struct record *record) {
    return ls_stream_judge(&walk->stream, item_index(walk, walk->index), record->key,
                           record->timestamp);
}

/*
 * Whether no Python code can run for an item. Without the lock of whoever decides about rolls that
 * must be: such code may ask for the lock, whose owner waits for this append.
 */
static bool is_inert(const struct walk *walk) {
    PyObject *item = column_item(&walk->values, item_index(walk, walk->index));
    if (item == NULL) return false;
    bool is = item == Py_None || PyBytes_CheckExact(item) || PyByteArray_CheckExact(item);
    Py_DECREF(item);
    return is;
}

/* Take one record and put or check it; LS_E_TYPE with an error set. */
static int64_t each(struct walk *walk,
                    int64_t (*use)(struct walk *walk, const struct record *record)) {
    if (walk->stream.flags & LS_APPEND_IF_FAST && !is_inert(walk)) {
        PyErr_Clear();
        return LS_E_REFUSED;
    }
    struct record record = {0};
    int64_t result = LS_E_TYPE;
    if (take_record(walk, &record) == 0) result = use(walk, &record);
    release_record(&record);
    if (result >= 0) walk->index += 1;
    return result;
}

/* ---- the append ----------------------------------------------------------------------------------------- */
static int64_t fill(struct walk *walk) {
    bool is_plain = walk->keys.source == NULL && walk->timestamps.source == NULL &&
                    walk->headers.source == NULL;
    int64_t result = 0;
    while (result >= 0 && walk->index < walk->end) {
        /* The first record of a batch, and what put_plain leaves: one after the other. */
        result = each(walk, put_record);
        if (result >= 0 && is_plain && put_plain(walk) < 0) result = LS_E_TYPE;
    }
    if (result >= 0) result = seal(walk);
    if (result == LS_E_ROLL && walk->stream.flags & LS_APPEND_ALL_OR_NOTHING) {
        /* The caller goes on in parts: a wrong item must be found before the first is published. */
        while (walk->index < walk->end && (result == LS_E_ROLL || result >= 0)) {
            result = each(walk, check_record);
        }
        if (result >= 0) result = LS_E_ROLL;
    }
    return result;
}

static int64_t open_stream(struct walk *walk, ls_writer *writer) {
    int64_t result = ls_stream_open(writer, &walk->stream, false);
    if (result == LS_E_SLOW) {
        Py_BEGIN_ALLOW_THREADS;
        result = ls_stream_open(writer, &walk->stream, true);
        Py_END_ALLOW_THREADS;
    }
    if (walk->timestamp < 0) walk->timestamp = walk->stream.now;
    return result;
}

static int64_t close_stream(struct walk *walk, int64_t result) {
    struct ls_stream *stream = &walk->stream;
    bool is_short = stream->appended.size_bytes < BYTES_WITHOUT_GIL;
    int64_t closed = is_short ? ls_stream_close(stream, result, false) : LS_E_SLOW;
    if (closed == LS_E_SLOW) {
        Py_BEGIN_ALLOW_THREADS;
        closed = ls_stream_close(stream, result, true);
        Py_END_ALLOW_THREADS;
    }
    return closed;
}

int64_t ls_py_append_plain(ls_writer *writer, PyObject *values, int64_t *first_offset) {
    struct walk walk = {.timestamp = -1};
    walk.stream.now = -1;
    walk.stream.flags = LS_APPEND_IF_FAST | LS_APPEND_ALL_OR_NOTHING | LS_APPEND_CHECK_UNITS;
    int64_t result = LS_E_TYPE;
    if (walk_open_values(&walk, values) == 0) {
        result = open_stream(&walk, writer);
        if (result >= 0) result = close_stream(&walk, fill(&walk));
        *first_offset = walk.stream.appended.first_offset;
    }
    walk_close(&walk);
    return result;
}

/*
 * append_list(writer, values, keys, timestamps, headers, first, timestamp, now, flags, order, count)
 * -> (result, *appended). timestamp -1: now. order: an address of `count` int64, or 0 for all items.
 */
PyObject *ls_py_append_list(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    int64_t address, numbers[6];
    if (count != 11) return PyErr_Format(PyExc_TypeError, "append_list takes 11 arguments");
    if (ls_py_int64s(args, 1, &address) < 0 || ls_py_int64s(args + 5, 6, numbers) < 0) return NULL;
    ls_writer *writer = (ls_writer *)(uintptr_t)address;
    struct walk walk = {.timestamp = numbers[1]};
    walk.order = (const int64_t *)(uintptr_t)numbers[4];
    walk.stream.now = numbers[2];
    walk.stream.flags = (int32_t)numbers[3];
    PyObject *answer = NULL;
    if (walk_open(&walk, args + 1, (Py_ssize_t)numbers[0], numbers[5]) == 0) {
        int64_t result = open_stream(&walk, writer);
        if (result >= 0) result = close_stream(&walk, fill(&walk));
        if (result != LS_E_TYPE) answer = ls_py_appended(result, &walk.stream.appended);
    }
    walk_close(&walk);
    return answer;
}
