/*
 * ls_py_tail.c: TailReader, which waits for records behind the last batch of the segment that is
 * written, and reads them: between their publication and their objects is no line of Python.
 *
 * It knows one moment of the log's live offsets. As long as nothing that matters has changed there
 * since, before and after a read, the bytes read are the log's. What is unusual in any way, from a
 * roll to damage, is not answered here: the caller goes the general way, which has all the errors.
 */
#include <errno.h>
#include <stdatomic.h>
#include <time.h>

#include "ls_live.h"
#include "ls_py.h"

enum {
    TAIL_BYTES = 16 << 10, /* on the stack; more at once is read faster in the general way */
    PAGE = 4096,
    TURNS_BETWEEN_CLOCKS = 256,
    SLICE_NS = 20000000, /* of a spin: then signals are looked for */
    NANOSECONDS = 1000000000
};

struct tail {
    PyObject ob_base;
    PyObject *owner; /* keeps the page mapped and the descriptor open */
    struct ls_py_state *state;
    struct ls_live *live;
    struct ls_live_offsets shown; /* when it was made; only the change count moves on */
    ls_io *io;
    int32_t fd;
    bool transactional; /* batches of transactions are delivered */
    struct ls_py_place place;
    _Atomic bool is_stopped;
};

/* Bytes of the file from the position on. */
struct piece {
    const uint8_t *bytes;
    int64_t size;
    int64_t end_offset; /* published when they were read */
    uint8_t room[TAIL_BYTES + 2 * PAGE];
};

enum news { NOTHING, NEWS, UNUSUAL };

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * NANOSECONDS + now.tv_nsec;
}

/* ---- looking and waiting, with or without the GIL -------------------------------------------- */

/* Whether files and marks are what they were: only flushes have moved the change count. */
static bool is_as_it_was(struct tail *tail) {
    struct ls_live_offsets now;
    const struct ls_live_offsets *shown = &tail->shown;
    if (ls_live_load((uintptr_t)tail->live, &now) < 0) return false;
    if (now.writer_epoch != shown->writer_epoch || now.is_open != shown->is_open ||
        now.truncation_count != shown->truncation_count ||
        now.active_base_offset != shown->active_base_offset ||
        now.log_start_offset != shown->log_start_offset ||
        now.high_watermark != shown->high_watermark ||
        now.first_unstable_offset != shown->first_unstable_offset) {
        return false;
    }
    tail->shown.change_count = now.change_count;
    return true;
}

static enum news look(struct tail *tail, int64_t *end_offset) {
    if (atomic_load_explicit(&tail->is_stopped, memory_order_relaxed)) return UNUSUAL;
    /* Sequentially consistent: see ls_live_end. */
    *end_offset = atomic_load(&tail->live->log_end_offset);
    if (LS_UNLIKELY(atomic_load(&tail->live->change_count) != tail->shown.change_count) &&
        !is_as_it_was(tail)) {
        return UNUSUAL;
    }
    return *end_offset > tail->place.next_offset ? NEWS : NOTHING;
}

/* Look, and read what there is. */
static enum news take(struct tail *tail, struct piece *piece) {
    enum news news = look(tail, &piece->end_offset);
    if (news != NEWS) return news;
    /* Stored before the end; it may belong to the next append already. */
    int64_t size = atomic_load(&tail->live->size_bytes) - tail->place.position;
    if (size <= 0 || size > TAIL_BYTES) return UNUSUAL;
    uintptr_t pages = ((uintptr_t)piece->room + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    /* At the same place in a page as in the file: else the copy may take four times as long. */
    uint8_t *bytes = (uint8_t *)(pages + (uintptr_t)(tail->place.position % PAGE));
    piece->bytes = bytes;
    piece->size = ls_io_read_all(tail->io, tail->fd, bytes, size, tail->place.position);
    if (piece->size <= 0) return UNUSUAL;
    /* What was read before stays before. */
    atomic_thread_fence(memory_order_seq_cst);
    int64_t end_offset;
    return look(tail, &end_offset) == NEWS ? NEWS : UNUSUAL;
}

static enum news spin(struct tail *tail, struct piece *piece, int64_t until) {
    for (int64_t turn = 1;; turn++) {
        int64_t end_offset;
        if (look(tail, &end_offset) != NOTHING) return take(tail, piece);
        if (turn % TURNS_BETWEEN_CLOCKS == 0 && now_ns() >= until) return NOTHING;
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    }
}

/* Sleep until something moves. A poke, or a signal, ends it with NOTHING. */
static enum news sleep_until(struct tail *tail, struct piece *piece, int64_t until) {
    uintptr_t live = (uintptr_t)tail->live;
    for (;;) {
        uint32_t word = ls_live_prepare(live);
        int64_t change_count = tail->shown.change_count;
        enum news news = take(tail, piece);
        if (news != NOTHING) return news;
        int64_t left = until - now_ns();
        if (left <= 0) return NOTHING;
        int64_t result = ls_live_wait(live, word, left);
        news = take(tail, piece);
        if (news != NOTHING || (result != 0 && result != -EAGAIN)) return news;
        if (tail->shown.change_count == change_count) return NOTHING; /* else it was a flush */
    }
}

/* ---- the object ------------------------------------------------------------------------------ */

static PyObject *tail_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *owner = NULL;
    unsigned long long live = 0, io = 0;
    long long change_count = 0;
    struct {
        long long position, next_offset, base_offset_min;
    } place = {0};
    int fd = -1, transactional = 0;
    if (keywords != NULL && PyDict_Size(keywords) > 0) {
        return PyErr_Format(PyExc_TypeError, "TailReader() takes no keyword arguments");
    }
    if (!PyArg_ParseTuple(args, "OKLKipLLL:TailReader", &owner, &live, &change_count, &io, &fd,
                          &transactional, &place.position, &place.next_offset,
                          &place.base_offset_min)) {
        return NULL;
    }
    if (live == 0 || io == 0 || fd < 0 || place.position < 0 || place.next_offset < 0) {
        return PyErr_Format(PyExc_ValueError, "no page, no descriptor, or a negative place");
    }
    struct tail *tail = (struct tail *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (tail == NULL) return NULL;
    tail->owner = Py_NewRef(owner);
    tail->state = PyType_GetModuleState(type);
    tail->live = (struct ls_live *)(uintptr_t)live;
    tail->io = (ls_io *)(uintptr_t)io;
    tail->fd = fd;
    tail->transactional = transactional != 0;
    tail->place = (struct ls_py_place){place.position, place.next_offset, place.base_offset_min};
    bool is_now = ls_live_load((uintptr_t)live, &tail->shown) == 0 &&
                  tail->shown.change_count == change_count;
    atomic_init(&tail->is_stopped, !is_now);
    if (tail->state == NULL) Py_CLEAR(tail);
    return (PyObject *)tail;
}

static int tail_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct tail *)self)->owner);
    return 0;
}

static int tail_clear(PyObject *self) {
    struct tail *tail = (struct tail *)self;
    atomic_store(&tail->is_stopped, true);
    Py_CLEAR(tail->owner);
    return 0;
}

static void tail_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)tail_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* The records at hand as a list; None: there is none, or what needs more care. */
static PyObject *records_of(struct tail *tail, const struct piece *piece) {
    PyObject *records = ls_py_plain_records(tail->state, piece->bytes, piece->size,
                                            tail->transactional, piece->end_offset, &tail->place);
    if (records == NULL || PyList_Size(records) > 0) return records;
    Py_DECREF(records);
    return Py_NewRef(Py_None);
}

static PyObject *tail_next(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    struct tail *tail = (struct tail *)self;
    struct piece piece;
    int64_t times[2];
    if (count != 2) return PyErr_Format(PyExc_TypeError, "next takes 2 arguments");
    if (ls_py_int64s(args, 2, times) < 0) return NULL;
    enum news news = take(tail, &piece);
    if (news == NOTHING) {
        int64_t now = now_ns();
        const int64_t end = now + times[1];
        const int64_t spin_end = now + (times[0] < times[1] ? times[0] : times[1]);
        while (news == NOTHING && now < end) {
            bool is_spinning = now < spin_end;
            Py_BEGIN_ALLOW_THREADS;
            news = is_spinning
                       ? spin(tail, &piece, spin_end - now < SLICE_NS ? spin_end : now + SLICE_NS)
                       : sleep_until(tail, &piece, end);
            Py_END_ALLOW_THREADS;
            if (news == NOTHING && PyErr_CheckSignals() < 0) return NULL;
            if (!is_spinning) break;
            now = now_ns();
        }
    }
    return news == NEWS ? records_of(tail, &piece) : Py_NewRef(Py_None);
}

static PyObject *tail_stop(PyObject *self, PyObject *unused) {
    (void)unused;
    atomic_store(&((struct tail *)self)->is_stopped, true);
    return Py_NewRef(Py_None);
}

static PyMemberDef tail_members[] = {
    {"position", T_LONGLONG, offsetof(struct tail, place.position), READONLY,
     "In the file, of the next batch."},
    {"next_offset", T_LONGLONG, offsetof(struct tail, place.next_offset), READONLY,
     "Of the next record."},
    {"base_offset_min", T_LONGLONG, offsetof(struct tail, place.base_offset_min), READONLY,
     "The next batch does not begin below it."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef tail_methods[] = {
    {"next", (PyCFunction)(void (*)(void))tail_next, METH_FASTCALL,
     "next(spin_ns, wait_ns) -> the next records, a list, waiting for them: first without\n"
     "sleeping; None: none came, or the general way has to be gone."},
    {"stop", tail_stop, METH_NOARGS,
     "Have next() return, once it is woken; all later calls return None."},
    {NULL, NULL, 0, NULL},
};

static const char tail_doc[] =
    "TailReader(owner, live, change_count, io, fd, transactional, position, next_offset,\n"
    "           base_offset_min)\n\n"
    "Reads behind the last batch of the segment that is written. One thread at a time; stop() "
    "from\n"
    "any.";

static PyType_Slot tail_slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)tail_doc},
    {Py_tp_new, tail_new},
    {Py_tp_dealloc, tail_dealloc},
    {Py_tp_traverse, tail_traverse},
    {Py_tp_clear, tail_clear},
    {Py_tp_members, tail_members},
    {Py_tp_methods, tail_methods},
    {0, NULL},
};

static PyType_Spec tail_spec = {
    .name = "logstore._native.records.TailReader",
    .basicsize = sizeof(struct tail),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = tail_slots,
};

PyTypeObject *ls_py_add_tail_type(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &tail_spec, NULL);
    if (type != NULL && PyModule_AddObjectRef(module, "TailReader", type) < 0) Py_CLEAR(type);
    return (PyTypeObject *)type;
}
