/*
 * ls_io_fail.c: an io that fails when a test wants it to, and is otherwise the one that it wraps.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "ls_io.h"

#define RULES_MAX 32

struct rule {
    int32_t op;    /* enum ls_io_op, or LS_IO_FAIL_ANY */
    int32_t error; /* errno; 0: a short transfer */
    int64_t at;    /* fires in this call of op, counted from the io's first */
    bool for_ever; /* and in every later one */
};

struct fail {
    ls_io io;
    ls_io *inner;
    pthread_mutex_t mutex;
    int64_t calls[LS_IO_OP_COUNT];
    int64_t all_calls;
    int32_t rule_count;
    struct rule rules[RULES_MAX];
    int64_t budget; /* bytes by which files may still grow; < 0: any */
};

static struct fail *fail_of(ls_io *io) {
    return (struct fail *)io;
}

/* Count a call and judge it: 0, or -errno. `is_short` may be NULL: the call transfers nothing. */
static int64_t judge(struct fail *fail, enum ls_io_op op, bool *is_short) {
    int64_t result = 0;
    (void)pthread_mutex_lock(&fail->mutex);
    fail->calls[op] += 1;
    fail->all_calls += 1;
    for (int32_t i = 0; i < fail->rule_count; i++) {
        const struct rule *rule = &fail->rules[i];
        if (rule->op != LS_IO_FAIL_ANY && rule->op != (int32_t)op) continue;
        int64_t call = rule->op == LS_IO_FAIL_ANY ? fail->all_calls : fail->calls[op];
        if (call < rule->at || (call > rule->at && !rule->for_ever)) continue;
        if (rule->error != 0) {
            result = -(int64_t)rule->error;
        } else if (is_short != NULL) {
            *is_short = true;
        }
        break;
    }
    (void)pthread_mutex_unlock(&fail->mutex);
    return result;
}

/* Half of it, but never nothing: that would mean the end of the file. */
static int64_t half(int64_t size) {
    return size <= 1 ? size : size / 2;
}

/* ---- space ---------------------------------------------------------------------------------- */

static int64_t size_of(int32_t fd) {
    struct stat status;
    return fstat(fd, &status) < 0 ? 0 : (int64_t)status.st_size;
}

/* What deleting the name `path` gives back. */
static int64_t space_of(const char *path) {
    struct stat status;
    if (stat(path, &status) < 0 || !S_ISREG(status.st_mode) || status.st_nlink > 1) return 0;
    return (int64_t)status.st_size;
}

static void give_back(struct fail *fail, int64_t bytes) {
    (void)pthread_mutex_lock(&fail->mutex);
    if (fail->budget >= 0) fail->budget += bytes;
    (void)pthread_mutex_unlock(&fail->mutex);
}

/*
 * Take space for a write of `size` bytes; what an overwrite needs is there already. Returns how many
 * bytes may be written, or -ENOSPC; *taken is for give_back if the write fails.
 */
static int64_t take(struct fail *fail, int32_t fd, int64_t position, int64_t size, int64_t *taken) {
    *taken = 0;
    (void)pthread_mutex_lock(&fail->mutex);
    int64_t allowed = size;
    if (fail->budget >= 0 && size > 0) {
        int64_t growth = position + size - size_of(fd);
        if (growth > size) growth = size; /* A hole takes no space. */
        if (growth > fail->budget) {
            allowed = size - (growth - fail->budget);
            growth = fail->budget;
        }
        if (allowed <= 0) {
            allowed = -ENOSPC;
        } else if (growth > 0) {
            *taken = growth;
            fail->budget -= growth;
        }
    }
    (void)pthread_mutex_unlock(&fail->mutex);
    return allowed;
}

/* ---- data ----------------------------------------------------------------------------------- */

static int64_t fail_pwrite(ls_io *io, int32_t fd, const void *bytes, int64_t size,
                           int64_t position) {
    struct fail *fail = fail_of(io);
    bool is_short = false;
    int64_t result = judge(fail, LS_IO_PWRITE, &is_short);
    if (result < 0) return result;
    int64_t taken;
    int64_t allowed = take(fail, fd, position, is_short ? half(size) : size, &taken);
    if (allowed < 0) return allowed;
    result = fail->inner->table->pwrite(fail->inner, fd, bytes, allowed, position);
    if (result < 0) give_back(fail, taken);
    return result;
}

static int64_t fail_pwritev(ls_io *io, int32_t fd, const struct ls_io_span *spans, int32_t count,
                            int64_t position) {
    struct fail *fail = fail_of(io);
    bool is_short = false;
    int64_t result = judge(fail, LS_IO_PWRITEV, &is_short);
    if (result < 0) return result;
    int64_t size = 0;
    for (int32_t i = 0; i < count; i++)
        size += spans[i].size;
    int64_t taken;
    int64_t allowed = take(fail, fd, position, is_short ? half(size) : size, &taken);
    if (allowed < 0) return allowed;

    struct ls_io_span kept[LS_IO_SPANS_MAX];
    int32_t kept_count = 0;
    for (int64_t left = allowed; left > 0 && kept_count < count; kept_count++) {
        kept[kept_count] = spans[kept_count];
        if (kept[kept_count].size > left) kept[kept_count].size = left;
        left -= kept[kept_count].size;
    }
    result = fail->inner->table->pwritev(fail->inner, fd, kept, kept_count, position);
    if (result < 0) give_back(fail, taken);
    return result;
}

static int64_t fail_pread(ls_io *io, int32_t fd, void *bytes, int64_t size, int64_t position) {
    struct fail *fail = fail_of(io);
    bool is_short = false;
    int64_t result = judge(fail, LS_IO_PREAD, &is_short);
    if (result < 0) return result;
    return fail->inner->table->pread(fail->inner, fd, bytes, is_short ? half(size) : size,
                                     position);
}

static int64_t fail_fallocate(ls_io *io, int32_t fd, int64_t position, int64_t size) {
    struct fail *fail = fail_of(io);
    int64_t result = judge(fail, LS_IO_FALLOCATE, NULL);
    if (result < 0) return result;
    (void)pthread_mutex_lock(&fail->mutex);
    bool is_full = fail->budget >= 0 && position + size - size_of(fd) > fail->budget;
    (void)pthread_mutex_unlock(&fail->mutex);
    return is_full ? -ENOSPC : fail->inner->table->fallocate(fail->inner, fd, position, size);
}

static int64_t fail_ftruncate(ls_io *io, int32_t fd, int64_t size) {
    struct fail *fail = fail_of(io);
    int64_t result = judge(fail, LS_IO_FTRUNCATE, NULL);
    if (result < 0) return result;
    int64_t freed = size_of(fd) - size;
    result = fail->inner->table->ftruncate(fail->inner, fd, size);
    if (result == 0 && freed > 0) give_back(fail, freed);
    return result;
}

static int64_t fail_fdatasync(ls_io *io, int32_t fd) {
    struct fail *fail = fail_of(io);
    int64_t result = judge(fail, LS_IO_FDATASYNC, NULL);
    return result < 0 ? result : fail->inner->table->fdatasync(fail->inner, fd);
}

static int64_t fail_start_writeback(ls_io *io, int32_t fd) {
    struct fail *fail = fail_of(io);
    int64_t result = judge(fail, LS_IO_START_WRITEBACK, NULL);
    return result < 0 ? result : ls_io_start_writeback(fail->inner, fd);
}

static int64_t fail_copy_file_range(ls_io *io, int32_t source, int64_t source_position,
                                    int32_t target, int64_t target_position, int64_t size) {
    struct fail *fail = fail_of(io);
    bool is_short = false;
    int64_t result = judge(fail, LS_IO_COPY_FILE_RANGE, &is_short);
    if (result < 0) return result;
    int64_t taken;
    int64_t allowed = take(fail, target, target_position, is_short ? half(size) : size, &taken);
    if (allowed < 0) return allowed;
    result = fail->inner->table->copy_file_range(fail->inner, source, source_position, target,
                                                 target_position, allowed);
    if (result < 0) give_back(fail, taken);
    return result;
}

static int64_t fail_sendfile(ls_io *io, int32_t socket, int32_t fd, int64_t position,
                             int64_t size) {
    struct fail *fail = fail_of(io);
    bool is_short = false;
    int64_t result = judge(fail, LS_IO_SENDFILE, &is_short);
    if (result < 0) return result;
    return fail->inner->table->sendfile(fail->inner, socket, fd, position,
                                        is_short ? half(size) : size);
}

/* ---- the others ------------------------------------------------------------------------------- */

static int64_t fail_open(ls_io *io, const char *path, int32_t flags, int32_t mode) {
    struct fail *fail = fail_of(io);
    int64_t result = judge(fail, LS_IO_OPEN, NULL);
    return result < 0 ? result : fail->inner->table->open(fail->inner, path, flags, mode);
}

/* A close that fails has closed all the same. */
static int64_t fail_close(ls_io *io, int32_t fd) {
    struct fail *fail = fail_of(io);
    int64_t result = judge(fail, LS_IO_CLOSE, NULL);
    int64_t closed = fail->inner->table->close(fail->inner, fd);
    return result < 0 ? result : closed;
}

static int64_t fail_fsync_dir(ls_io *io, const char *path) {
    struct fail *fail = fail_of(io);
    int64_t result = judge(fail, LS_IO_FSYNC_DIR, NULL);
    return result < 0 ? result : fail->inner->table->fsync_dir(fail->inner, path);
}

static int64_t fail_rename(ls_io *io, const char *source, const char *target) {
    struct fail *fail = fail_of(io);
    int64_t result = judge(fail, LS_IO_RENAME, NULL);
    if (result < 0) return result;
    int64_t freed = space_of(target);
    result = fail->inner->table->rename(fail->inner, source, target);
    if (result == 0) give_back(fail, freed);
    return result;
}

static int64_t fail_link(ls_io *io, const char *source, const char *target) {
    struct fail *fail = fail_of(io);
    int64_t result = judge(fail, LS_IO_LINK, NULL);
    return result < 0 ? result : fail->inner->table->link(fail->inner, source, target);
}

static int64_t fail_unlink(ls_io *io, const char *path) {
    struct fail *fail = fail_of(io);
    int64_t result = judge(fail, LS_IO_UNLINK, NULL);
    if (result < 0) return result;
    int64_t freed = space_of(path);
    result = fail->inner->table->unlink(fail->inner, path);
    if (result == 0) give_back(fail, freed);
    return result;
}

static int64_t fail_mkdir(ls_io *io, const char *path, int32_t mode) {
    struct fail *fail = fail_of(io);
    int64_t result = judge(fail, LS_IO_MKDIR, NULL);
    return result < 0 ? result : fail->inner->table->mkdir(fail->inner, path, mode);
}

static int64_t fail_rmdir(ls_io *io, const char *path) {
    struct fail *fail = fail_of(io);
    int64_t result = judge(fail, LS_IO_RMDIR, NULL);
    return result < 0 ? result : fail->inner->table->rmdir(fail->inner, path);
}

static int64_t fail_map(ls_io *io, int32_t fd, int64_t size, int32_t flags, uintptr_t *address) {
    struct fail *fail = fail_of(io);
    int64_t result = judge(fail, LS_IO_MAP, NULL);
    return result < 0 ? result : fail->inner->table->map(fail->inner, fd, size, flags, address);
}

static int64_t fail_unmap(ls_io *io, uintptr_t address, int64_t size) {
    struct fail *fail = fail_of(io);
    int64_t result = judge(fail, LS_IO_UNMAP, NULL);
    return result < 0 ? result : fail->inner->table->unmap(fail->inner, address, size);
}

static int64_t fail_stored(ls_io *io, uintptr_t address, int64_t position, int64_t size) {
    struct fail *fail = fail_of(io);
    int64_t result = judge(fail, LS_IO_STORED, NULL);
    return result < 0 ? result : fail->inner->table->stored(fail->inner, address, position, size);
}

static int64_t fail_set_modified(ls_io *io, const char *path, int64_t modified_ms) {
    struct fail *fail = fail_of(io);
    int64_t result = judge(fail, LS_IO_SET_MODIFIED, NULL);
    return result < 0 ? result : fail->inner->table->set_modified(fail->inner, path, modified_ms);
}

/* ---- life ------------------------------------------------------------------------------------- */

static void fail_destroy(ls_io *io) {
    struct fail *fail = fail_of(io);
    ls_io_free(fail->inner);
    (void)pthread_mutex_destroy(&fail->mutex);
    free(fail);
}

static const struct ls_io_table FAIL_TABLE = {
    .open = fail_open,
    .close = fail_close,
    .pwrite = fail_pwrite,
    .pwritev = fail_pwritev,
    .pread = fail_pread,
    .fallocate = fail_fallocate,
    .ftruncate = fail_ftruncate,
    .fdatasync = fail_fdatasync,
    .start_writeback = fail_start_writeback,
    .fsync_dir = fail_fsync_dir,
    .rename = fail_rename,
    .link = fail_link,
    .unlink = fail_unlink,
    .mkdir = fail_mkdir,
    .rmdir = fail_rmdir,
    .copy_file_range = fail_copy_file_range,
    .sendfile = fail_sendfile,
    .map = fail_map,
    .unmap = fail_unmap,
    .stored = fail_stored,
    .set_modified = fail_set_modified,
    .destroy = fail_destroy,
};

ls_io *ls_io_fail_new(ls_io *inner) {
    struct fail *fail = calloc(1, sizeof *fail);
    if (fail == NULL) return NULL;
    ls_io_init(&fail->io, &FAIL_TABLE);
    if (pthread_mutex_init(&fail->mutex, NULL) != 0) {
        free(fail);
        return NULL;
    }
    fail->inner = ls_io_hold(inner);
    fail->budget = -1;
    return &fail->io;
}

int64_t ls_io_fail_add(ls_io *io, int32_t op, int32_t error, int64_t at, int32_t for_ever) {
    struct fail *fail = fail_of(io);
    if (op != LS_IO_FAIL_ANY && (op < 0 || op >= LS_IO_OP_COUNT)) return -EINVAL;
    if (error < 0 || error > 4095 || at < 1) return -EINVAL;
    /* It would be retried without end. */
    if (error == EINTR && for_ever) return -EINVAL;

    int64_t result = 0;
    (void)pthread_mutex_lock(&fail->mutex);
    if (fail->rule_count == RULES_MAX) {
        result = LS_E_NO_ROOM;
    } else {
        int64_t calls = op == LS_IO_FAIL_ANY ? fail->all_calls : fail->calls[op];
        fail->rules[fail->rule_count++] =
            (struct rule){.op = op, .error = error, .at = calls + at, .for_ever = for_ever != 0};
    }
    (void)pthread_mutex_unlock(&fail->mutex);
    return result;
}

int64_t ls_io_fail_clear(ls_io *io) {
    struct fail *fail = fail_of(io);
    (void)pthread_mutex_lock(&fail->mutex);
    fail->rule_count = 0;
    (void)pthread_mutex_unlock(&fail->mutex);
    return 0;
}

int64_t ls_io_fail_calls(ls_io *io, int32_t op) {
    struct fail *fail = fail_of(io);
    if (op != LS_IO_FAIL_ANY && (op < 0 || op >= LS_IO_OP_COUNT)) return -EINVAL;
    (void)pthread_mutex_lock(&fail->mutex);
    int64_t calls = op == LS_IO_FAIL_ANY ? fail->all_calls : fail->calls[op];
    (void)pthread_mutex_unlock(&fail->mutex);
    return calls;
}

int64_t ls_io_fail_set_budget(ls_io *io, int64_t bytes) {
    struct fail *fail = fail_of(io);
    (void)pthread_mutex_lock(&fail->mutex);
    fail->budget = bytes < 0 ? -1 : bytes;
    (void)pthread_mutex_unlock(&fail->mutex);
    return 0;
}

int64_t ls_io_fail_budget(ls_io *io) {
    struct fail *fail = fail_of(io);
    (void)pthread_mutex_lock(&fail->mutex);
    int64_t bytes = fail->budget;
    (void)pthread_mutex_unlock(&fail->mutex);
    return bytes;
}
