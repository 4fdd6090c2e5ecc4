/*
 * ls_py_writer.c: the writer's calls as functions that keep the GIL while they are short. Dropping
 * and taking it costs nothing by itself, but beside a busy Python thread each drop can cost the
 * switch interval, 5 ms (PERFORMANCE.md, finding 6).
 *
 * The rule (DESIGN.md D2): with the GIL, only try the lock; if it is taken, drop the GIL and wait.
 */
#include "ls_py.h"
#include "ls_writer.h"

enum { BYTES_WITHOUT_GIL = 65536 }; /* from here on the work is worth dropping the GIL */

/*
 * Evaluate `call`, which uses `may_wait`: with the GIL if it is short and need not wait, else without.
 * The pair in the middle is Py_BEGIN_ALLOW_THREADS and its end.
 */
#define SHORT_OR_WITHOUT_GIL(result, is_short, call)     \
    do {                                                 \
        bool may_wait = false;                           \
        (result) = (is_short) ? (call) : LS_E_SLOW;      \
        if ((result) == LS_E_SLOW) {                     \
            may_wait = true;                             \
            PyThreadState *thread = PyEval_SaveThread(); \
            (result) = (call);                           \
            PyEval_RestoreThread(thread);                \
        }                                                \
    } while (0)

int ls_py_int64s(PyObject *const *args, Py_ssize_t count, int64_t *values) {
    for (Py_ssize_t i = 0; i < count; i++) {
        values[i] = PyLong_AsLongLong(args[i]);
        if (values[i] == -1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

static void free_writer(PyObject *capsule) {
    ls_writer_free(PyCapsule_GetPointer(capsule, NULL));
}

/*
 * own_writer(address) -> capsule. The writer lives as long as the capsule, which the garbage
 * collector does not track: in a cycle of garbage it is freed after every __del__ has run, while
 * what cffi.gc() makes may go before.
 */
PyObject *ls_py_own_writer(PyObject *self, PyObject *address) {
    (void)self;
    void *writer = PyLong_AsVoidPtr(address);
    if (writer == NULL) return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    return PyCapsule_New(writer, NULL, free_writer);
}

/* The arguments of a function that takes `wanted` integers; -1 with an error set. */
static int arguments(const char *name, PyObject *const *args, Py_ssize_t count, Py_ssize_t wanted,
                     int64_t *values) {
    if (count != wanted) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, wanted, count);
        return -1;
    }
    return ls_py_int64s(args, count, values);
}

static ls_writer *writer_at(int64_t address) {
    return (ls_writer *)(uintptr_t)address;
}

PyObject *ls_py_load(PyObject *self, PyObject *address) {
    (void)self;
    int64_t number;
    if (ls_py_int64s(&address, 1, &number) < 0) return NULL;
    return PyLong_FromLongLong(ls_load((uintptr_t)number));
}

PyObject *ls_py_writer_publish(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    int64_t numbers[2];
    if (arguments("writer_publish", args, count, 2, numbers) < 0) return NULL;
    return PyLong_FromLongLong(ls_writer_publish(writer_at(numbers[0]), numbers[1]));
}

PyObject *ls_py_writer_exclusive(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    int64_t numbers[2], result;
    if (arguments("writer_exclusive", args, count, 2, numbers) < 0) return NULL;
    ls_writer *writer = writer_at(numbers[0]);
    SHORT_OR_WITHOUT_GIL(result, true, ls_writer_exclusive(writer, (int32_t)numbers[1], may_wait));
    return PyLong_FromLongLong(result);
}

PyObject *ls_py_writer_is_forked(PyObject *self, PyObject *address) {
    (void)self;
    int64_t number;
    if (ls_py_int64s(&address, 1, &number) < 0) return NULL;
    return PyBool_FromLong(ls_writer_is_forked(writer_at(number)));
}

PyObject *ls_py_writer_settle(PyObject *self, PyObject *address) {
    (void)self;
    int64_t number;
    if (ls_py_int64s(&address, 1, &number) < 0) return NULL;
    return PyLong_FromLongLong(ls_writer_try_settle(writer_at(number)));
}

/* writer_flush(writer, offset) -> 0 or error */
PyObject *ls_py_writer_flush(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    int64_t numbers[2], result;
    if (arguments("writer_flush", args, count, 2, numbers) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    result = ls_writer_flush(writer_at(numbers[0]), numbers[1]);
    Py_END_ALLOW_THREADS;
    return PyLong_FromLongLong(result);
}

/* What WriterState is made of. */
static PyObject *state_tuple(const struct ls_segment *state) {
    return Py_BuildValue(
        "LLLLLLLLLL", (long long)state->next_offset, (long long)state->size_bytes,
        (long long)state->offset_entry_count, (long long)state->time_entry_count,
        (long long)state->last_time_entry_timestamp, (long long)state->last_time_entry_offset,
        (long long)state->bytes_since_last_index_entry, (long long)state->max_timestamp,
        (long long)state->offset_of_max_timestamp, (long long)state->rolling_based_timestamp);
}

/*
 * writer_roll(writer, stem, until, base_offset, index_bytes, created_ms, segment_ms)
 * -> (stage, why, log_fd, index_fd, timeindex_fd, state). Without the GIL.
 */
PyObject *ls_py_writer_roll(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    int64_t address, numbers[5], why = 0;
    if (count != 7) return PyErr_Format(PyExc_TypeError, "writer_roll takes 7 arguments");
    if (ls_py_int64s(args, 1, &address) < 0 || ls_py_int64s(args + 2, 5, numbers) < 0) return NULL;
    const char *stem = PyBytes_AsString(args[1]);
    if (stem == NULL) return NULL;
    ls_writer *writer = writer_at(address);
    struct ls_segment old = {0};
    struct ls_segment next = {
        .base_offset = numbers[1],
        .next_offset = numbers[1],
        .offset_entries_max = numbers[2] / LS_OFFSET_ENTRY_BYTES,
        .time_entries_max = numbers[2] / LS_TIME_ENTRY_BYTES,
        .last_time_entry_timestamp = -1,
        .last_time_entry_offset = numbers[1],
        .max_timestamp = -1,
        .offset_of_max_timestamp = numbers[1],
        .rolling_based_timestamp = INT64_MIN,
        .created_ms = numbers[3],
        .segment_ms = numbers[4],
        .log_fd = -1,
        .index_fd = -1,
        .timeindex_fd = -1,
    };
    int64_t stage;
    Py_BEGIN_ALLOW_THREADS;
    stage = ls_writer_roll(writer, stem, (int32_t)numbers[0], &old, &next, &why);
    Py_END_ALLOW_THREADS;
    return Py_BuildValue("LLiiiN", (long long)stage, (long long)why, (int)next.log_fd,
                         (int)next.index_fd, (int)next.timeindex_fd, state_tuple(&old));
}

/* writer_detach(writer) -> state, or error. It writes and cuts: without the GIL. */
PyObject *ls_py_writer_detach(PyObject *self, PyObject *address) {
    (void)self;
    int64_t number, result;
    if (ls_py_int64s(&address, 1, &number) < 0) return NULL;
    struct ls_segment state;
    Py_BEGIN_ALLOW_THREADS;
    result = ls_writer_detach(writer_at(number), &state);
    Py_END_ALLOW_THREADS;
    return result < 0 ? PyLong_FromLongLong(result) : state_tuple(&state);
}

PyObject *ls_py_writer_state(PyObject *self, PyObject *address) {
    (void)self;
    int64_t number, result;
    if (ls_py_int64s(&address, 1, &number) < 0) return NULL;
    ls_writer *writer = writer_at(number);
    struct ls_segment state;
    SHORT_OR_WITHOUT_GIL(result, true, ls_writer_state(writer, &state, may_wait));
    return result < 0 ? PyLong_FromLongLong(result) : state_tuple(&state);
}

/* append_encoded(writer, head, data, batches, publish) -> position or error */
PyObject *ls_py_append_encoded(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    int64_t address, publish, result;
    if (count != 5) return PyErr_Format(PyExc_TypeError, "append_encoded takes 5 arguments");
    if (ls_py_int64s(args, 1, &address) < 0 || ls_py_int64s(args + 4, 1, &publish) < 0) return NULL;
    Py_buffer views[3];
    for (int index = 0; index < 3; ++index) {
        if (PyObject_GetBuffer(args[1 + index], &views[index], PyBUF_SIMPLE) < 0) {
            while (index > 0)
                PyBuffer_Release(&views[--index]);
            return NULL;
        }
    }
    Py_buffer *head = &views[0], *data = &views[1], *batches = &views[2];
    ls_writer *writer = writer_at(address);
    int64_t batch_count = batches->len / (Py_ssize_t)sizeof(struct ls_batch);
    if (head->len > data->len) {
        result = LS_E_CORRUPT;
    } else {
        SHORT_OR_WITHOUT_GIL(
            result, data->len < BYTES_WITHOUT_GIL,
            ls_writer_append_encoded(writer, (uintptr_t)head->buf, head->len, (uintptr_t)data->buf,
                                     data->len, (uintptr_t)batches->buf, batch_count, publish != 0,
                                     may_wait));
    }
    for (int index = 0; index < 3; ++index)
        PyBuffer_Release(&views[index]);
    return PyLong_FromLongLong(result);
}

/*
 * append_ready(writer, data, leader_epoch, as_follower) -> (first_offset, last_offset,
 * last_offset_of_first_batch, max_timestamp, offset_of_max_timestamp, last_leader_epoch,
 * last_codec), or None: nothing was done.
 */
PyObject *ls_py_append_ready(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    int64_t address, numbers[2], result;
    if (count != 4) return PyErr_Format(PyExc_TypeError, "append_ready takes 4 arguments");
    if (ls_py_int64s(args, 1, &address) < 0 || ls_py_int64s(args + 2, 2, numbers) < 0) return NULL;
    Py_buffer data;
    if (PyObject_GetBuffer(args[1], &data, PyBUF_SIMPLE) < 0) return NULL;
    ls_writer *writer = writer_at(address);
    struct ls_ready ready;
    SHORT_OR_WITHOUT_GIL(result, data.len < BYTES_WITHOUT_GIL,
                         ls_writer_append_ready(writer, (uintptr_t)data.buf, data.len, numbers[0],
                                                numbers[1] != 0, may_wait, &ready));
    PyBuffer_Release(&data);
    if (result < 0) Py_RETURN_NONE;
    return Py_BuildValue("LLLLLii", (long long)ready.first_offset, (long long)ready.last_offset,
                         (long long)ready.last_offset_of_first_batch,
                         (long long)ready.max_timestamp, (long long)ready.offset_of_max_timestamp,
                         (int)ready.last_leader_epoch, (int)ready.last_codec);
}

PyObject *ls_py_appended(int64_t result, const struct ls_appended *appended) {
    return Py_BuildValue("LLLLLLLiLL", (long long)result, (long long)appended->first_offset,
                         (long long)appended->record_count, (long long)appended->position,
                         (long long)appended->size_bytes, (long long)appended->max_timestamp,
                         (long long)appended->offset_of_max_timestamp, (int)appended->problem,
                         (long long)appended->problem_index,
                         (long long)appended->problem_timestamp);
}

/* append_columns(writer, columns, first, count, now, flags) -> (result, *appended) */
PyObject *ls_py_append_columns(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    int64_t numbers[6], result;
    if (arguments("append_columns", args, count, 6, numbers) < 0) return NULL;
    ls_writer *writer = writer_at(numbers[0]);
    const struct ls_columns *columns = (const struct ls_columns *)(uintptr_t)numbers[1];
    int64_t first = numbers[2], record_count = numbers[3], now = numbers[4];
    int32_t flags = (int32_t)numbers[5];
    if (first < 0 || record_count < 0 || record_count > columns->count - first) {
        return PyErr_Format(PyExc_ValueError, "records outside of the columns");
    }
    int64_t bound = ls_record_bound(columns, first, record_count);
    struct ls_appended appended;
    SHORT_OR_WITHOUT_GIL(result, bound < BYTES_WITHOUT_GIL,
                         ls_writer_append_columns(writer, columns, first, record_count, now, flags,
                                                  may_wait, &appended));
    return ls_py_appended(result, &appended);
}
