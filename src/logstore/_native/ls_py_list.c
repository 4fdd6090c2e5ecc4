/*
 * ls_py_list.c: append a Python list. The list is snapshotted as a tuple, whose items cannot go
 * away; slice after slice, addresses are collected under the GIL and encoded and written without.
 * Never the lock while the GIL is taken, never the GIL while the lock is held (DESIGN.md D2).
 */
#include "ls_encode_inline.h"
#include "ls_py.h"
#include "ls_writer.h"

enum { SLICE_ITEMS = 65536, SLICE_BYTES = 4 << 20, BYTES_WITHOUT_GIL = 65536 };

/* One column of the call: a tuple, or NULL. */
struct column {
    PyObject *tuple;
    const char *name;
    struct ls_item *items;
};

struct walk {
    struct column values, keys, headers;
    PyObject *timestamps;
    int64_t *timestamp_values;
    Py_ssize_t first; /* of the slice */
    Py_ssize_t count; /* in the slice */
    Py_ssize_t end;   /* of the whole */
    int64_t bytes;    /* in the slice */
    Py_buffer *views; /* exports held while the slice is written */
    Py_ssize_t view_count, view_room;
    struct ls_py_bytes header_bytes; /* encoded headers of the slice */
};

/* ---- memory ------------------------------------------------------------------------------------- */
static void release_views(struct walk *walk) {
    while (walk->view_count > 0)
        PyBuffer_Release(&walk->views[--walk->view_count]);
}

static void walk_close(struct walk *walk) {
    release_views(walk);
    PyMem_Free(walk->views);
    PyMem_Free(walk->header_bytes.bytes);
    PyMem_Free(walk->values.items);
    PyMem_Free(walk->keys.items);
    PyMem_Free(walk->headers.items);
    PyMem_Free(walk->timestamp_values);
    Py_XDECREF(walk->values.tuple);
    Py_XDECREF(walk->keys.tuple);
    Py_XDECREF(walk->headers.tuple);
    Py_XDECREF(walk->timestamps);
}

/* A tuple of `given`, which is a list, a tuple, or None (*tuple stays NULL). */
static int snapshot(PyObject *given, const char *name, Py_ssize_t count, PyObject **tuple) {
    if (given == Py_None) return 0;
    if (PyList_CheckExact(given)) {
        *tuple = PyList_AsTuple(given);
    } else if (PyTuple_CheckExact(given)) {
        *tuple = Py_NewRef(given);
    } else {
        PyErr_Format(PyExc_TypeError, "%s is a list or a tuple, not %R", name,
                     (PyObject *)Py_TYPE(given));
    }
    if (*tuple == NULL) return -1;
    if (count >= 0 && PyTuple_Size(*tuple) != count) {
        PyErr_Format(PyExc_ValueError, "%zd %s for %zd values; give one for each",
                     PyTuple_Size(*tuple), name, count);
        return -1;
    }
    return 0;
}

static void *allocate(Py_ssize_t count, size_t element) {
    void *memory = PyMem_Malloc((size_t)count * element);
    if (memory == NULL) PyErr_NoMemory();
    return memory;
}

static int walk_open(struct walk *walk, PyObject *const *args, Py_ssize_t first) {
    walk->values.name = "values";
    walk->keys.name = "keys";
    walk->headers.name = "headers";
    if (snapshot(args[0], "values", -1, &walk->values.tuple) < 0) return -1;
    if (walk->values.tuple == NULL) {
        PyErr_SetString(PyExc_TypeError, "values is a list or a tuple, not None");
        return -1;
    }
    Py_ssize_t count = PyTuple_Size(walk->values.tuple);
    if (snapshot(args[1], "keys", count, &walk->keys.tuple) < 0 ||
        snapshot(args[2], "timestamps", count, &walk->timestamps) < 0 ||
        snapshot(args[3], "headers", count, &walk->headers.tuple) < 0) {
        return -1;
    }
    if (first < 0 || first > count) {
        PyErr_Format(PyExc_ValueError, "first is %zd, outside of %zd values", first, count);
        return -1;
    }
    walk->first = first;
    walk->end = count;
    Py_ssize_t room = count - first < SLICE_ITEMS ? count - first : SLICE_ITEMS;
    walk->values.items = allocate(room, sizeof(struct ls_item));
    if (walk->values.items == NULL) return -1;
    if (walk->keys.tuple && !(walk->keys.items = allocate(room, sizeof(struct ls_item)))) return -1;
    if (walk->headers.tuple && !(walk->headers.items = allocate(room, sizeof(struct ls_item)))) {
        return -1;
    }
    if (walk->timestamps && !(walk->timestamp_values = allocate(room, sizeof(int64_t)))) return -1;
    return 0;
}

/* ---- items -------------------------------------------------------------------------------------------- */
static int wrong_type(const char *name, Py_ssize_t index, PyObject *object) {
    PyErr_Format(PyExc_TypeError, "item %zd of %s is %R, not bytes, another buffer or None%s",
                 index, name, (PyObject *)Py_TYPE(object),
                 PyUnicode_Check(object) ? "; encode it first" : "");
    return -1;
}

/* Address and size of any other buffer, exported until the slice is written. */
static int export_item(struct walk *walk, const char *name, Py_ssize_t index, PyObject *object,
                       struct ls_item *item) {
    if (!PyObject_CheckBuffer(object)) return wrong_type(name, index, object);
    if (ls_py_grow((void **)&walk->views, &walk->view_room, walk->view_count + 1,
                   sizeof(Py_buffer)) < 0) {
        return -1;
    }
    Py_buffer *view = &walk->views[walk->view_count];
    if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) < 0) return -1;
    walk->view_count += 1;
    *item = (struct ls_item){view->buf, view->len};
    return 0;
}

static inline int take_item(struct walk *walk, struct column *column, Py_ssize_t index,
                            PyObject *object, Py_ssize_t slot) {
    struct ls_item *item = &column->items[slot];
    if (LS_LIKELY(PyBytes_CheckExact(object))) {
        char *bytes;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(object, &bytes, &size) < 0) return -1;
        *item = (struct ls_item){(const uint8_t *)bytes, size};
    } else if (object == Py_None) {
        *item = (struct ls_item){NULL, -1};
        return 0;
    } else if (export_item(walk, column->name, index, object, item) < 0) {
        return -1;
    }
    walk->bytes += item->size;
    if (LS_LIKELY(item->size <= INT32_MAX)) return 0;
    PyErr_Format(PyExc_ValueError, "item %zd of %s is larger than 2^31 - 1 bytes", index,
                 column->name);
    return -1;
}

static int take_timestamp(struct walk *walk, Py_ssize_t index, Py_ssize_t slot) {
    PyObject *object = PyTuple_GetItem(walk->timestamps, index);
    if (object == NULL) return -1;
    if (!PyLong_Check(object)) {
        PyErr_Format(PyExc_TypeError, "item %zd of timestamps is %R, not int (ms)", index,
                     (PyObject *)Py_TYPE(object));
        return -1;
    }
    walk->timestamp_values[slot] = PyLong_AsLongLong(object);
    return walk->timestamp_values[slot] == -1 && PyErr_Occurred() ? -1 : 0;
}

/* ---- slices ------------------------------------------------------------------------------------------ */
static int take_record(struct walk *walk, Py_ssize_t index) {
    Py_ssize_t slot = walk->count;
    PyObject *value = PyTuple_GetItem(walk->values.tuple, index);
    if (take_item(walk, &walk->values, index, value, slot) < 0) return -1;
    if (walk->keys.tuple != NULL) {
        PyObject *key = PyTuple_GetItem(walk->keys.tuple, index);
        if (take_item(walk, &walk->keys, index, key, slot) < 0) return -1;
    }
    if (walk->timestamps != NULL && take_timestamp(walk, index, slot) < 0) return -1;
    if (walk->headers.tuple != NULL) {
        int64_t start = walk->header_bytes.size;
        PyObject *headers = PyTuple_GetItem(walk->headers.tuple, index);
        if (headers != Py_None && ls_py_put_headers(&walk->header_bytes, headers) < 0) return -1;
        int64_t size = walk->header_bytes.size - start;
        /* The buffer may still move: a position for now. */
        walk->headers.items[slot] = (struct ls_item){(const uint8_t *)(uintptr_t)start, size};
        walk->bytes += size;
    }
    walk->count += 1;
    return 0;
}

/* Collect the next slice; -1 with an error set. */
static int take_slice(struct walk *walk) {
    release_views(walk);
    walk->first += walk->count;
    walk->count = 0;
    walk->bytes = 0;
    walk->header_bytes.size = 0;
    Py_ssize_t end = walk->end - walk->first < SLICE_ITEMS ? walk->end : walk->first + SLICE_ITEMS;
    for (Py_ssize_t index = walk->first; index < end && walk->bytes < SLICE_BYTES; index++) {
        if (take_record(walk, index) < 0) return -1;
    }
    for (Py_ssize_t slot = 0; walk->headers.tuple != NULL && slot < walk->count; slot++) {
        struct ls_item *item = &walk->headers.items[slot];
        item->bytes = walk->header_bytes.bytes + (uintptr_t)item->bytes;
    }
    return 0;
}

static struct ls_items slice_of(const struct walk *walk, int64_t timestamp) {
    return (struct ls_items){
        .values = walk->values.items,
        .keys = walk->keys.items,
        .headers = walk->headers.items,
        .timestamps = walk->timestamp_values,
        .timestamp = timestamp,
        .first = walk->first,
        .count = walk->count,
    };
}

/* ---- the append ----------------------------------------------------------------------------------------- */
/* All in one step: short ones with the GIL, if that needs no waiting. */
static int64_t append_slice(ls_writer *writer, struct ls_items_append *append,
                            const struct ls_items *items, int64_t bytes) {
    int64_t result = LS_E_SLOW;
    if (bytes < BYTES_WITHOUT_GIL) result = ls_items_append_all(writer, append, items, false);
    if (result == LS_E_SLOW) {
        Py_BEGIN_ALLOW_THREADS result = ls_items_append_all(writer, append, items, true);
        Py_END_ALLOW_THREADS
    }
    return result;
}

/* In steps, the first slice being collected. A wrong item in a later one undoes them all. */
static int64_t append_slices(ls_writer *writer, struct ls_items_append *append, struct walk *walk,
                             int64_t timestamp) {
    int64_t result;
    Py_BEGIN_ALLOW_THREADS result = ls_items_open(writer, append);
    Py_END_ALLOW_THREADS if (result < 0) return result;
    do {
        struct ls_items items = slice_of(walk, timestamp);
        /* What follows is probably like this slice. */
        int64_t rest = walk->end - walk->first - walk->count;
        int64_t bytes_to_come = walk->bytes / (walk->count > 0 ? walk->count : 1) * rest;
        Py_BEGIN_ALLOW_THREADS result = ls_items_add(writer, append, &items, bytes_to_come);
        Py_END_ALLOW_THREADS if (result >= 0 && take_slice(walk) < 0) result = LS_E_TYPE;
    } while (result >= 0 && walk->count > 0 && !append->must_roll);
    Py_BEGIN_ALLOW_THREADS result = ls_items_close(writer, append, result);
    Py_END_ALLOW_THREADS return result;
}

/*
 * append_list(writer, values, keys, timestamps, headers, first, timestamp, now, flags)
 * -> (result, *appended). timestamp -1: now.
 */
PyObject *ls_py_append_list(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    int64_t address, numbers[4];
    if (count != 9) return PyErr_Format(PyExc_TypeError, "append_list takes 9 arguments");
    if (ls_py_int64s(args, 1, &address) < 0 || ls_py_int64s(args + 5, 4, numbers) < 0) return NULL;
    ls_writer *writer = (ls_writer *)(uintptr_t)address;
    struct ls_items_append append = {.now = numbers[2], .flags = (int32_t)numbers[3]};
    struct walk walk = {0};
    PyObject *answer = NULL;
    if (walk_open(&walk, args + 1, (Py_ssize_t)numbers[0]) == 0 && take_slice(&walk) == 0) {
        bool is_whole = walk.first + walk.count == walk.end;
        struct ls_items items = slice_of(&walk, numbers[1]);
        int64_t result = is_whole ? append_slice(writer, &append, &items, walk.bytes)
                                  : append_slices(writer, &append, &walk, numbers[1]);
        if (result != LS_E_TYPE) answer = ls_py_appended(result, &append.appended);
    }
    walk_close(&walk);
    return answer;
}
