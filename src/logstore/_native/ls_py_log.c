/*
 * ls_py_log.c: NativeLog, the base type of Log: append and get of one record, and extend with values,
 * without a line of Python. What is not plain goes to the subclass's _append_general, _get_general and
 * _extend_general with the same arguments; a flush that takes more than C can do to _finish_flush.
 */
#include "ls_py.h"
#include "ls_writer.h"

struct log {
    PyObject ob_base;
    PyObject *writer_object; /* keeps the writer alive */
    ls_writer *writer;       /* NULL: every append is general */
    PyObject *getter;        /* a RecordGetter; NULL: every get is general */
    PyObject *name_get_general;
    PyObject *name_key, *name_headers, *name_timestamp, *name_sync;
};

static int log_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct log *)self)->writer_object);
    Py_VISIT(((struct log *)self)->getter);
    return 0;
}

static int log_clear(PyObject *self) {
    struct log *log = (struct log *)self;
    log->writer = NULL;
    Py_CLEAR(log->writer_object);
    Py_CLEAR(log->getter);
    return 0;
}

static void log_dealloc(PyObject *self) {
    struct log *log = (struct log *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)log_clear(self);
    Py_XDECREF(log->name_get_general);
    Py_XDECREF(log->name_key);
    Py_XDECREF(log->name_headers);
    Py_XDECREF(log->name_timestamp);
    Py_XDECREF(log->name_sync);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *log_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    (void)args;
    (void)keywords;
    struct log *log = (struct log *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (log == NULL) return NULL;
    log->name_get_general = PyUnicode_InternFromString("_get_general");
    log->name_key = PyUnicode_InternFromString("key");
    log->name_headers = PyUnicode_InternFromString("headers");
    log->name_timestamp = PyUnicode_InternFromString("timestamp");
    log->name_sync = PyUnicode_InternFromString("sync");
    if (!log->name_get_general || !log->name_key || !log->name_headers || !log->name_timestamp ||
        !log->name_sync) {
        Py_CLEAR(log);
    }
    return (PyObject *)log;
}

static PyObject *log_bind_writer(PyObject *self, PyObject *writer) {
    struct log *log = (struct log *)self;
    ls_writer *address = NULL;
    if (writer != Py_None) {
        PyObject *number = PyObject_GetAttrString(writer, "address");
        if (number == NULL) return NULL;
        address = PyLong_AsVoidPtr(number);
        Py_DECREF(number);
        if (address == NULL && PyErr_Occurred()) return NULL;
    }
    PyObject *old = log->writer_object;
    log->writer_object = writer == Py_None ? NULL : Py_NewRef(writer);
    log->writer = address;
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

/* Plain bytes, or None; false: for the general path. */
static inline bool take_item(PyObject *object, struct ls_item *item) {
    if (LS_LIKELY(PyBytes_CheckExact(object))) {
        char *bytes;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(object, &bytes, &size) < 0) return false;
        *item = (struct ls_item){(const uint8_t *)bytes, size};
        return true;
    }
    *item = (struct ls_item){NULL, -1};
    return object == Py_None;
}

/* An int that is a time; false: for the general path, which judges it. */
static bool take_timestamp(PyObject *object, int64_t *timestamp) {
    if (object == Py_None) return true;
    if (!PyLong_CheckExact(object)) return false;
    int overflow;
    *timestamp = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow == 0 && *timestamp >= 0;
}

/* Whether a `sync` is one of the two constants. */
static bool take_sync(PyObject *object, bool *sync) {
    *sync = object == Py_True;
    return *sync || object == Py_False;
}

static bool take_keywords(const struct log *log, PyObject *const *values, PyObject *names,
                          struct ls_item *key, int64_t *timestamp, bool *sync) {
    Py_ssize_t count = PyTuple_Size(names);
    for (Py_ssize_t i = 0; i < count; i++) {
        /* Names at a call site are interned; others take the general path. */
        PyObject *name = PyTuple_GetItem(names, i);
        if (name == log->name_key) {
            if (!take_item(values[i], key)) return false;
        } else if (name == log->name_timestamp) {
            if (!take_timestamp(values[i], timestamp)) return false;
        } else if (name == log->name_headers) {
            if (!PyTuple_CheckExact(values[i]) || PyTuple_Size(values[i]) != 0) return false;
        } else if (name != log->name_sync || !take_sync(values[i], sync)) {
            return false;
        }
    }
    return true;
}

static PyObject *call_general(PyObject *self, const char *name, PyObject *const *args,
                              Py_ssize_t count, PyObject *names) {
    PyObject *method = PyObject_GetAttrString(self, name);
    PyObject *positional = method ? PyTuple_New(count) : NULL;
    PyObject *keywords = positional ? PyDict_New() : NULL;
    PyObject *result = NULL;
    if (keywords != NULL) {
        int failed = 0;
        for (Py_ssize_t i = 0; i < count; i++)
            PyTuple_SetItem(positional, i, Py_NewRef(args[i]));
        Py_ssize_t name_count = names == NULL ? 0 : PyTuple_Size(names);
        for (Py_ssize_t i = 0; i < name_count && !failed; i++) {
            failed = PyDict_SetItem(keywords, PyTuple_GetItem(names, i), args[count + i]) < 0;
        }
        if (!failed) result = PyObject_Call(method, positional, keywords);
    }
    Py_XDECREF(keywords);
    Py_XDECREF(positional);
    Py_XDECREF(method);
    return result;
}

/*
 * The writer, and a reference to the object that keeps it: for what drops the GIL, while another
 * thread may close the log. NULL: every append is general.
 */
static ls_writer *hold_writer(PyObject *self, PyObject **keeper) {
    struct log *log = (struct log *)self;
    ls_writer *writer;
#ifdef Py_GIL_DISABLED
    Py_BEGIN_CRITICAL_SECTION(self);
#endif
    writer = log->writer;
    *keeper = Py_XNewRef(log->writer_object);
#ifdef Py_GIL_DISABLED
    Py_END_CRITICAL_SECTION();
#endif
    return writer;
}

/* Make what was appended durable, up to an offset; -1 with an error set. No writer: it was closed. */
static int make_durable(PyObject *self, ls_writer *writer, int64_t offset) {
    int64_t result = LS_E_SLOW;
    if (writer != NULL) {
        Py_BEGIN_ALLOW_THREADS;
        result = ls_writer_flush(writer, offset);
        Py_END_ALLOW_THREADS;
    }
    if (LS_LIKELY(result >= 0)) return 0;
    PyObject *done =
        PyObject_CallMethod(self, "_finish_flush", "LL", (long long)offset, (long long)result);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* The offset, or an error: nothing was done then. */
static int64_t append_fast(const struct log *log, PyObject *const *args, Py_ssize_t count,
                           PyObject *names, bool *sync) {
    struct ls_item value, key = {NULL, -1};
    int64_t timestamp = -1;
    if (log->writer == NULL || count != 1 || !take_item(args[0], &value)) return LS_E_SLOW;
    if (names != NULL && !take_keywords(log, args + 1, names, &key, &timestamp, sync))
        return LS_E_SLOW;
    return ls_writer_append_one(log->writer, key, value, timestamp);
}

static PyObject *log_append(PyObject *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *names) {
    int64_t offset;
    bool sync = false;
#ifdef Py_GIL_DISABLED
    Py_BEGIN_CRITICAL_SECTION(self);
#endif
    offset = append_fast((struct log *)self, args, count, names, &sync);
#ifdef Py_GIL_DISABLED
    Py_END_CRITICAL_SECTION();
#endif
    /* Errors too: the general path tries again, and tells what is wrong. */
    if (LS_UNLIKELY(offset < 0)) return call_general(self, "_append_general", args, count, names);
    if (sync) {
        PyObject *keeper;
        ls_writer *writer = hold_writer(self, &keeper);
        int failed = make_durable(self, writer, offset + 1);
        Py_XDECREF(keeper);
        if (failed < 0) return NULL;
    }
    return PyLong_FromLongLong(offset);
}

static const char append_doc[] =
    "append($self, value, *, key=None, headers=(), timestamp=None, sync=False)\n--\n\n"
    "Append one record and return its offset.\n\n"
    "On return the record is written: it survives a crash of the process. With ``sync`` it is\n"
    "flushed, too, and survives a loss of power.\n\n"
    "Args:\n"
    "    value: Bytes or another buffer; None is a tombstone.\n"
    "    key: Bytes or another buffer, or None.\n"
    "    headers: Pairs of a str and bytes or None, or a mapping.\n"
    "    timestamp: Milliseconds since the epoch or an aware datetime; None is now.\n"
    "    sync: Return only when the record is on the device.";

/* ---- extend ------------------------------------------------------------------------------------ */

/* Whether there are values alone, in a list or tuple, and what `sync` is; more is for the general way. */
static bool takes_plain(const struct log *log, PyObject *const *args, Py_ssize_t count,
                        PyObject *names, bool *sync) {
    if (count != 1 || !(PyList_CheckExact(args[0]) || PyTuple_CheckExact(args[0]))) return false;
    Py_ssize_t name_count = names == NULL ? 0 : PyTuple_Size(names);
    for (Py_ssize_t i = 0; i < name_count; i++) {
        PyObject *value = args[1 + i];
        bool is_sync = PyTuple_GetItem(names, i) == log->name_sync;
        if (!is_sync || !take_sync(value, sync)) return false;
    }
    return true;
}

static PyObject *log_extend(PyObject *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *names) {
    bool sync = false;
    int64_t result = LS_E_SLOW, first_offset = 0;
    PyObject *keeper = NULL;
    ls_writer *writer = NULL;
    if (takes_plain((struct log *)self, args, count, names, &sync)) {
        writer = hold_writer(self, &keeper);
    }
    if (writer != NULL) result = ls_py_append_plain(writer, args[0], &first_offset);
    PyObject *offsets = NULL;
    if (result > 0) {
        if (!sync || make_durable(self, writer, first_offset + result) == 0) {
            offsets =
                PyObject_CallFunction((PyObject *)&PyRange_Type, "LL", (long long)first_offset,
                                      (long long)(first_offset + result));
        }
    } else if (result != LS_E_TYPE) {
        offsets = call_general(self, "_extend_general", args, count, names);
    }
    Py_XDECREF(keeper);
    return offsets;
}

static const char extend_doc[] =
    "extend($self, values, *, keys=None, headers=None, timestamps=None, compression=None,\n"
    "       sync=False)\n--\n\n"
    "Append many records and return their offsets.\n"
    "\n"
    "Input with a length that fits one segment is all or nothing, for errors and for readers. A\n"
    "larger one, or an iterable without a length, is published in parts of at most a segment.\n"
    "\n"
    "Args:\n"
    "    values: Buffers; None is a tombstone.\n"
    "    keys: As many, or None: no record has a key.\n"
    "    headers: As many mappings or sequences of pairs, or None.\n"
    "    timestamps: As many, in milliseconds or as aware datetimes; None: now.\n"
    "    compression: ``gzip``, ``snappy``, ``lz4``, ``zstd``, or None: as the settings say.\n"
    "    sync: Return when everything is on the device.\n"
    "\n"
    "Raises:\n"
    "    TypeError: An item is neither a buffer nor None; ``values`` is a single value.\n"
    "    ValueError: Lengths differ, or a time is in the wrong unit.\n"
    "    RecordTooLargeError: A batch would be larger than max.message.bytes.\n"
    "    InvalidRecordError: A record breaks a rule of the settings.\n"
    "    PartialAppendError: It failed after a part was published; ``appended`` stays.\n"
    "    StorageError: Nothing was appended.";

/* ---- get ------------------------------------------------------------------------------------ */

static PyObject *log_bind_getter(PyObject *self, PyObject *bound) {
    struct log *log = (struct log *)self;
    if (bound != Py_None && !ls_py_is_getter(bound)) {
        return PyErr_Format(PyExc_TypeError, "a RecordGetter or None, not %R", bound);
    }
    PyObject *old;
#ifdef Py_GIL_DISABLED
    Py_BEGIN_CRITICAL_SECTION(self);
#endif
    old = log->getter;
    log->getter = bound == Py_None ? NULL : Py_NewRef(bound);
#ifdef Py_GIL_DISABLED
    Py_END_CRITICAL_SECTION();
#endif
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

static PyObject *bound_getter(PyObject *self) {
    PyObject *bound;
#ifdef Py_GIL_DISABLED
    Py_BEGIN_CRITICAL_SECTION(self);
#endif
    bound = Py_XNewRef(((struct log *)self)->getter);
#ifdef Py_GIL_DISABLED
    Py_END_CRITICAL_SECTION();
#endif
    return bound;
}

static PyObject *log_subscript(PyObject *self, PyObject *key) {
    PyObject *bound = PyLong_CheckExact(key) ? bound_getter(self) : NULL;
    if (bound != NULL) {
        int overflow;
        int64_t offset = PyLong_AsLongLongAndOverflow(key, &overflow);
        PyObject *record = overflow == 0 ? ls_py_getter_get(bound, offset) : NULL;
        Py_DECREF(bound);
        if (record != NULL || PyErr_Occurred()) return record;
    }
    return PyObject_CallMethodObjArgs(self, ((struct log *)self)->name_get_general, key, NULL);
}

static PyMethodDef log_methods[] = {
    {"append", (PyCFunction)(void (*)(void))log_append, METH_FASTCALL | METH_KEYWORDS, append_doc},
    {"extend", (PyCFunction)(void (*)(void))log_extend, METH_FASTCALL | METH_KEYWORDS, extend_doc},
    {"_bind_writer", log_bind_writer, METH_O,
     "Let appends use this Writer directly; None: always the general way."},
    {"_bind_getter", log_bind_getter, METH_O,
     "Let log[offset] ask this RecordGetter first; None: always _get_general."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot log_slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)"Base of Log: its append and log[offset] in C."},
    {Py_tp_new, log_new},
    {Py_tp_dealloc, log_dealloc},
    {Py_tp_traverse, log_traverse},
    {Py_tp_clear, log_clear},
    {Py_tp_methods, log_methods},
    {Py_mp_subscript, log_subscript},
    {0, NULL},
};

static PyType_Spec log_spec = {
    .name = "logstore._native.writer.NativeLog",
    .basicsize = sizeof(struct log),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = log_slots,
};

PyTypeObject *ls_py_add_log_type(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &log_spec, NULL);
    if (type != NULL && PyModule_AddObjectRef(module, "NativeLog", type) < 0) Py_CLEAR(type);
    return (PyTypeObject *)type;
}
