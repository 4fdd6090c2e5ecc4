/*
 * ls_py_live.c: a look at a page of live offsets that keeps the GIL: it is on the way of every read
 * beside a writer.
 */
#include <stdatomic.h>

#include "ls_live.h"
#include "ls_py.h"

/* live_is_at(address, change_count, log_end_offset) -> bool, after everything that was read before */
PyObject *ls_py_live_is_at(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    int64_t numbers[3];
    if (count != 3) return PyErr_Format(PyExc_TypeError, "live_is_at takes 3 arguments");
    if (ls_py_int64s(args, 3, numbers) < 0) return NULL;
    struct ls_live *live = (struct ls_live *)(uintptr_t)numbers[0];
    atomic_thread_fence(memory_order_seq_cst);
    bool is_at = atomic_load(&live->change_count) == numbers[1] &&
                 atomic_load(&live->log_end_offset) == numbers[2];
    return PyBool_FromLong(is_at);
}
