/*
 * ls_py_partition.c: lists of records for several partitions: where each belongs, what it weighs,
 * and a list of those of one partition. Each is one pass over the objects with the GIL kept.
 */
#include "ls_py.h"

enum { AHEAD = 16 };

/* A new reference to an item of a list or a tuple; NULL with an error set. */
static PyObject *item_of(PyObject *source, bool is_list, Py_ssize_t index) {
#ifdef Py_GIL_DISABLED
    if (is_list) return PyList_GetItemRef(source, index);
#endif
    PyObject *item = is_list ? PyList_GetItem(source, index) : PyTuple_GetItem(source, index);
    Py_XINCREF(item);
    return item;
}

/* Whether `source` is a list (1) or a tuple (0) of `count` items; -1 with an error set. */
static int is_list_of(PyObject *source, const char *name, int64_t count) {
    int is_list = PyList_CheckExact(source);
    if (!is_list && !PyTuple_CheckExact(source)) {
        PyErr_Format(PyExc_TypeError, "%s is a list or a tuple, not %R", name,
                     (PyObject *)Py_TYPE(source));
        return -1;
    }
    Py_ssize_t size = is_list ? PyList_Size(source) : PyTuple_Size(source);
    if (size == count) return is_list;
    PyErr_Format(PyExc_ValueError, "there are %zd %s, and room for %lld", size, name,
                 (long long)count);
    return -1;
}

/* Do something with the bytes of an item; bytes is NULL for None. */
typedef void use_bytes(void *to, int64_t index, const uint8_t *bytes, int64_t size, int64_t rule);

static int use_item(PyObject *item, const char *name, Py_ssize_t index, use_bytes *use, void *to,
                    int64_t rule) {
    if (item == Py_None) {
        use(to, index, NULL, 0, rule);
        return 0;
    }
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_CheckExact(item)) {
        if (PyBytes_AsStringAndSize(item, &bytes, &size) < 0) return -1;
        use(to, index, (const uint8_t *)bytes, size, rule);
        return 0;
    }
    if (!PyObject_CheckBuffer(item)) {
        PyErr_Format(PyExc_TypeError, "item %zd of %s is %R, not bytes, another buffer or None%s",
                     index, name, (PyObject *)Py_TYPE(item),
                     PyUnicode_Check(item) ? "; encode it first" : "");
        return -1;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(item, &view, PyBUF_SIMPLE) < 0) return -1;
    use(to, index, view.buf == NULL ? (const uint8_t *)"" : view.buf, view.len, rule);
    PyBuffer_Release(&view);
    return 0;
}

static PyObject *use_items(PyObject *source, const char *name, int64_t count, use_bytes *use,
                           void *to, int64_t rule) {
    int is_list = is_list_of(source, name, count);
    if (is_list < 0) return NULL;
    for (Py_ssize_t index = 0; index < (Py_ssize_t)count; ++index) {
        PyObject *item = item_of(source, is_list, index);
        int result = item == NULL ? -1 : use_item(item, name, index, use, to, rule);
        Py_XDECREF(item);
        if (result < 0) return NULL;
    }
    Py_RETURN_NONE;
}

static void put_partition(void *to, int64_t index, const uint8_t *bytes, int64_t size,
                          int64_t partitions) {
    int32_t *out = to;
    if (bytes == NULL) {
        out[index] = -1;
    } else {
        uint32_t hash = ls_murmur2((uintptr_t)bytes, size);
        out[index] = (int32_t)(hash & INT32_MAX) % (int32_t)partitions;
    }
}

/* partition_list(keys, count, partitions, out): as ls_partition_keys does. */
PyObject *ls_py_partition_list(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    int64_t numbers[3];
    if (count != 4) return PyErr_Format(PyExc_TypeError, "partition_list takes 4 arguments");
    if (ls_py_int64s(args + 1, 3, numbers) < 0) return NULL;
    assert(numbers[1] > 0 && numbers[1] <= INT32_MAX);
    void *out = (void *)(uintptr_t)numbers[2];
    return use_items(args[0], "keys", numbers[0], put_partition, out, numbers[1]);
}

static void put_size(void *to, int64_t index, const uint8_t *bytes, int64_t size, int64_t rule) {
    (void)bytes;
    (void)rule;
    ((int64_t *)to)[index] = size;
}

/* measure_list(values, count, out): the size of each in bytes, int64; 0 for None. */
PyObject *ls_py_measure_list(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    int64_t numbers[2];
    if (count != 3) return PyErr_Format(PyExc_TypeError, "measure_list takes 3 arguments");
    if (ls_py_int64s(args + 1, 2, numbers) < 0) return NULL;
    return use_items(args[0], "values", numbers[0], put_size, (void *)(uintptr_t)numbers[1], 0);
}

/* take_list(source, size, order, count): a list of source[order[i]], i in [0, count). */
PyObject *ls_py_take_list(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    int64_t numbers[3];
    if (count != 4) return PyErr_Format(PyExc_TypeError, "take_list takes 4 arguments");
    if (ls_py_int64s(args + 1, 3, numbers) < 0) return NULL;
    int is_list = is_list_of(args[0], "items", numbers[0]);
    if (is_list < 0) return NULL;
    const int64_t *order = (const int64_t *)(uintptr_t)numbers[1];
    PyObject *taken = PyList_New((Py_ssize_t)numbers[2]);
    if (taken == NULL) return NULL;
    for (Py_ssize_t index = 0; index < (Py_ssize_t)numbers[2]; ++index) {
        if (index + AHEAD < numbers[2]) ls_py_prefetch(args[0], is_list, order[index + AHEAD], 0);
        PyObject *item = item_of(args[0], is_list, (Py_ssize_t)order[index]);
        if (item == NULL) {
            Py_DECREF(taken);
            return NULL;
        }
        (void)PyList_SetItem(taken, index, item);
    }
    return taken;
}
