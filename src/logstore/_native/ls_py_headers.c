/*
 * ls_py_headers.c: record headers, from Python objects to the bytes of the format: a count, then
 * per header a key (UTF-8) and a value, each with its length (spec 1.4).
 */
#include "ls_encode_inline.h"
#include "ls_py.h"

int ls_py_grow(void **memory, Py_ssize_t *room, Py_ssize_t needed, size_t element) {
    if (needed <= *room) return 0;
    Py_ssize_t wanted = *room < 16 ? 16 : 2 * *room;
    if (wanted < needed) wanted = needed;
    void *grown = PyMem_Realloc(*memory, (size_t)wanted * element);
    if (grown == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    *memory = grown;
    *room = wanted;
    return 0;
}

/* Put a varint and, if `bytes` is not NULL, `number` bytes behind it. */
static int put(struct ls_py_bytes *out, int64_t number, const char *bytes) {
    int64_t size = bytes == NULL ? 0 : number;
    if (number > INT32_MAX || out->size > INT32_MAX - LS_VARINT_BYTES_MAX - size) {
        PyErr_SetString(PyExc_ValueError, "headers are larger than 2^31 - 1 bytes; send fewer");
        return -1;
    }
    Py_ssize_t needed = (Py_ssize_t)(out->size + LS_VARINT_BYTES_MAX + size);
    if (ls_py_grow((void **)&out->bytes, &out->room, needed, 1) < 0) return -1;
    uint8_t *at = ls_put_varint(out->bytes + out->size, ls_zigzag32((int32_t)number));
    if (size > 0) memcpy(at, bytes, (size_t)size);
    out->size = at - out->bytes + size;
    return 0;
}

static int put_key(struct ls_py_bytes *out, PyObject *key) {
    /* surrogateescape: what could not be decoded goes back to the bytes it was. */
    PyObject *encoded = PyUnicode_AsEncodedString(key, "utf-8", "surrogateescape");
    if (encoded == NULL) return -1;
    int result = put(out, PyBytes_Size(encoded), PyBytes_AsString(encoded));
    Py_DECREF(encoded);
    return result;
}

static int put_value(struct ls_py_bytes *out, PyObject *value) {
    if (value == Py_None) return put(out, -1, NULL);
    Py_buffer view;
    if (PyObject_GetBuffer(value, &view, PyBUF_SIMPLE) < 0) return -1;
    int result = put(out, view.len, view.buf == NULL ? "" : view.buf);
    PyBuffer_Release(&view);
    return result;
}

static int put_pair(struct ls_py_bytes *out, PyObject *pair) {
    PyObject *both = PyUnicode_Check(pair) ? NULL : PySequence_Tuple(pair);
    PyObject *key = both != NULL && PyTuple_Size(both) == 2 ? PyTuple_GetItem(both, 0) : NULL;
    PyObject *value = key == NULL ? NULL : PyTuple_GetItem(both, 1);
    int result = -1;
    if (key == NULL || !PyUnicode_Check(key) ||
        (value != Py_None && !PyObject_CheckBuffer(value))) {
        PyErr_Format(PyExc_TypeError, "a header is a pair (str, bytes or None), not %R", pair);
    } else {
        result = put_key(out, key);
        if (result == 0) result = put_value(out, value);
    }
    Py_XDECREF(both);
    return result;
}

int ls_py_put_headers(struct ls_py_bytes *out, PyObject *headers) {
    PyObject *pairs = PyDict_Check(headers) ? PyMapping_Items(headers) : Py_NewRef(headers);
    PyObject *tuple = pairs ? PySequence_Tuple(pairs) : NULL;
    Py_XDECREF(pairs);
    if (tuple == NULL) return -1;
    Py_ssize_t count = PyTuple_Size(tuple);
    int result = count == 0 ? 0 : put(out, count, NULL); /* no bytes at all stand for no headers */
    for (Py_ssize_t i = 0; result == 0 && i < count; i++) {
        result = put_pair(out, PyTuple_GetItem(tuple, i));
    }
    Py_DECREF(tuple);
    return result;
}
