/*
 * ls_py_record.c: the Record type. Attributes are plain slots (10 ns), and an instance has no GC
 * header: both were measured to matter for the cost of an iteration (PERFORMANCE.md, section D).
 */
#include "ls_internal.h"
#include "ls_py.h"

static PyMemberDef record_members[] = {
    {"offset", T_LONGLONG, offsetof(struct ls_py_record, offset), READONLY,
     "Logical offset in the partition."},
    {"timestamp", T_LONGLONG, offsetof(struct ls_py_record, timestamp), READONLY,
     "Milliseconds since the epoch, -1 for none."},
    {"key", T_OBJECT_EX, offsetof(struct ls_py_record, key), READONLY, "Key bytes, or None."},
    {"value", T_OBJECT_EX, offsetof(struct ls_py_record, value), READONLY,
     "Value bytes; None is a tombstone."},
    {"headers", T_OBJECT_EX, offsetof(struct ls_py_record, headers), READONLY,
     "Tuple of (str, bytes or None), in the order written."},
    {"timestamp_type", T_BYTE, offsetof(struct ls_py_record, timestamp_type), READONLY,
     "0 create time, 1 log append time, -1 none (magic 0)."},
    {"leader_epoch", T_INT, offsetof(struct ls_py_record, leader_epoch), READONLY,
     "Leader epoch of the record's batch, -1 if unknown."},
    {NULL, 0, 0, 0, NULL},
};

static void record_dealloc(PyObject *self) {
    struct ls_py_record *record = (struct ls_py_record *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(record->key);
    Py_XDECREF(record->value);
    Py_XDECREF(record->headers);
#ifndef Py_GIL_DISABLED
    struct ls_py_state *state = PyType_GetModuleState(type);
    if (LS_LIKELY(state != NULL && state->free_record_count < LS_PY_FREE_RECORDS_MAX)) {
        state->free_records[state->free_record_count++] = self;
        Py_DECREF(type);
        return;
    }
#endif
    PyObject_Free(self); /* The type is final, so this is its tp_free. */
    Py_DECREF(type);
}

/* -1 with an error set if it is no integer, or does not fit. */
static int take_int64(PyObject *value, long long *number) {
    PyObject *index = PyNumber_Index(value);
    if (index == NULL) return -1;
    *number = PyLong_AsLongLong(index);
    Py_DECREF(index);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

/* A new reference to exact bytes or None. */
static PyObject *exact_bytes(PyObject *value, const char *what) {
    if (value == Py_None || PyBytes_CheckExact(value)) return Py_NewRef(value);
    if (!PyObject_CheckBuffer(value)) {
        PyErr_Format(PyExc_TypeError,
                     "a %s is bytes, another buffer or None, not %R; encode it first", what,
                     (PyObject *)Py_TYPE(value));
        return NULL;
    }
    return PyBytes_FromObject(value);
}

static PyObject *exact_header(PyObject *header) {
    PyObject *pair = PySequence_Tuple(header);
    if (pair == NULL) return NULL;
    PyObject *result = NULL;
    if (PyUnicode_Check(header) || PyTuple_Size(pair) != 2 ||
        !PyUnicode_Check(PyTuple_GetItem(pair, 0))) {
        PyErr_Format(PyExc_TypeError, "a header is a pair (str, bytes or None), not %R", header);
    } else {
        PyObject *key = PyUnicode_FromObject(PyTuple_GetItem(pair, 0));
        PyObject *value = exact_bytes(PyTuple_GetItem(pair, 1), "header value");
        if (key != NULL && value != NULL) result = PyTuple_Pack(2, key, value);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    Py_DECREF(pair);
    return result;
}

/* A new reference to a tuple of exact pairs. */
static PyObject *exact_headers(PyObject *headers) {
    PyObject *given = PySequence_Tuple(headers);
    if (given == NULL) return NULL;
    Py_ssize_t count = PyTuple_Size(given);
    PyObject *result = PyTuple_New(count);
    for (Py_ssize_t i = 0; result != NULL && i < count; i++) {
        PyObject *pair = exact_header(PyTuple_GetItem(given, i));
        if (pair == NULL || PyTuple_SetItem(result, i, pair) < 0) Py_CLEAR(result);
    }
    Py_DECREF(given);
    return result;
}

static PyObject *record_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static const char *const names[] = {"offset",  "timestamp",      "key",          "value",
                                        "headers", "timestamp_type", "leader_epoch", NULL};
    PyObject *offset = NULL, *timestamp = NULL, *key = NULL, *value = NULL, *headers = NULL;
    int timestamp_type = 0, leader_epoch = -1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOO|Oii:Record", (char **)(uintptr_t)names,
                                     &offset, &timestamp, &key, &value, &headers, &timestamp_type,
                                     &leader_epoch)) {
        return NULL;
    }
    if (timestamp_type < -1 || timestamp_type > 1) {
        return PyErr_Format(PyExc_ValueError, "timestamp_type is -1, 0 or 1, not %d",
                            timestamp_type);
    }
    struct ls_py_record *record = PyObject_New(struct ls_py_record, type);
    if (record == NULL) return NULL;
    record->key = record->value = record->headers = NULL;
    record->leader_epoch = leader_epoch;
    record->timestamp_type = (int8_t)timestamp_type;
    if (take_int64(offset, &record->offset) < 0 || take_int64(timestamp, &record->timestamp) < 0 ||
        (record->key = exact_bytes(key, "key")) == NULL ||
        (record->value = exact_bytes(value, "value")) == NULL ||
        (record->headers = headers == NULL ? PyTuple_New(0) : exact_headers(headers)) == NULL) {
        Py_DECREF(record);
        return NULL;
    }
    return (PyObject *)record;
}

static PyObject *record_repr(PyObject *self) {
    struct ls_py_record *record = (struct ls_py_record *)self;
    return PyUnicode_FromFormat(
        "Record(offset=%lld, timestamp=%lld, key=%R, value=%R, headers=%R, timestamp_type=%d, "
        "leader_epoch=%d)",
        record->offset, record->timestamp, record->key, record->value, record->headers,
        (int)record->timestamp_type, (int)record->leader_epoch);
}

/* 1 equal, 0 not, -1 error. The leader epoch is its batch's, outside the CRC, and no part of the record. */
static int record_equal(const struct ls_py_record *a, const struct ls_py_record *b) {
    PyObject *const left[] = {a->key, a->value, a->headers};
    PyObject *const right[] = {b->key, b->value, b->headers};
    if (a->offset != b->offset || a->timestamp != b->timestamp ||
        a->timestamp_type != b->timestamp_type) {
        return 0;
    }
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        int equal = PyObject_RichCompareBool(left[i], right[i], Py_EQ);
        if (equal != 1) return equal;
    }
    return 1;
}

static PyObject *record_compare(PyObject *self, PyObject *other, int operation) {
    if (Py_TYPE(other) != Py_TYPE(self) || (operation != Py_EQ && operation != Py_NE)) {
        return Py_NewRef(Py_NotImplemented);
    }
    int equal = record_equal((struct ls_py_record *)self, (struct ls_py_record *)other);
    if (equal < 0) return NULL;
    return PyBool_FromLong(equal == (operation == Py_EQ));
}

static Py_hash_t record_hash(PyObject *self) {
    struct ls_py_record *record = (struct ls_py_record *)self;
    PyObject *fields = Py_BuildValue("(LLOOO)", record->offset, record->timestamp, record->key,
                                     record->value, record->headers);
    if (fields == NULL) return -1;
    Py_hash_t hash = PyObject_Hash(fields);
    Py_DECREF(fields);
    return hash;
}

static PyObject *record_reduce(PyObject *self, PyObject *unused) {
    (void)unused;
    struct ls_py_record *record = (struct ls_py_record *)self;
    return Py_BuildValue("O(LLOOOii)", (PyObject *)Py_TYPE(self), record->offset, record->timestamp,
                         record->key, record->value, record->headers, (int)record->timestamp_type,
                         (int)record->leader_epoch);
}

static PyObject *record_datetime(PyObject *self, void *unused) {
    (void)unused;
    struct ls_py_record *record = (struct ls_py_record *)self;
    if (record->timestamp == -1) return Py_NewRef(Py_None);
    struct ls_py_state *state = PyType_GetModuleState(Py_TYPE(self));
    if (state == NULL) return NULL;
    /* timedelta(0, 0, 0, milliseconds): exact, unlike a float of seconds. */
    PyObject *delta = PyObject_CallFunction(state->timedelta, "iiiL", 0, 0, 0, record->timestamp);
    if (delta == NULL) return NULL;
    PyObject *result = PyNumber_Add(state->epoch, delta);
    Py_DECREF(delta);
    return result;
}

static PyGetSetDef record_getset[] = {
    {"datetime", record_datetime, NULL,
     "The timestamp as an aware datetime in UTC; None if there is none.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef record_methods[] = {
    {"__reduce__", record_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static const char record_doc[] =
    "One record as it was read: immutable, hashable, picklable.\n\n"
    "Two records are equal if offset, timestamp, its type, key, value and headers are; the leader\n"
    "epoch belongs to the batch and does not count. A header key that is not valid UTF-8 is "
    "decoded\n"
    "with ``surrogateescape``, so that encoding it the same way gives the bytes on disk.";

static PyType_Slot record_slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)record_doc},
    {Py_tp_new, record_new},
    {Py_tp_dealloc, record_dealloc},
    {Py_tp_members, record_members},
    {Py_tp_getset, record_getset},
    {Py_tp_methods, record_methods},
    {Py_tp_repr, record_repr},
    {Py_tp_richcompare, record_compare},
    {Py_tp_hash, record_hash},
    {0, NULL},
};

static PyType_Spec record_spec = {
    .name = "logstore.record.Record",
    .basicsize = sizeof(struct ls_py_record),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = record_slots,
};

PyTypeObject *ls_py_add_record_type(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &record_spec, NULL);
    if (type != NULL && PyModule_AddObjectRef(module, "Record", type) < 0) Py_CLEAR(type);
    return (PyTypeObject *)type;
}
