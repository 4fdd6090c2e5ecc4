/*
 * ls_io.c: what every io has in common: argument checks, counters, EINTR, and the loops that
 * finish short transfers.
 */
#include "ls_io.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const OP_NAMES[LS_IO_OP_COUNT] = {
    [LS_IO_OPEN] = "open",
    [LS_IO_CLOSE] = "close",
    [LS_IO_PWRITE] = "pwrite",
    [LS_IO_PWRITEV] = "pwritev",
    [LS_IO_PREAD] = "pread",
    [LS_IO_FALLOCATE] = "fallocate",
    [LS_IO_FTRUNCATE] = "ftruncate",
    [LS_IO_FDATASYNC] = "fdatasync",
    [LS_IO_START_WRITEBACK] = "start_writeback",
    [LS_IO_FSYNC_DIR] = "fsync_dir",
    [LS_IO_RENAME] = "rename",
    [LS_IO_LINK] = "link",
    [LS_IO_UNLINK] = "unlink",
    [LS_IO_MKDIR] = "mkdir",
    [LS_IO_RMDIR] = "rmdir",
    [LS_IO_MAP] = "map",
    [LS_IO_COPY_FILE_RANGE] = "copy_file_range",
    [LS_IO_UNMAP] = "unmap",
    [LS_IO_STORED] = "stored",
    [LS_IO_SET_MODIFIED] = "set_modified",
    [LS_IO_SENDFILE] = "sendfile",
};

void ls_io_init(ls_io *io, const struct ls_io_table *table) {
    io->table = table;
    atomic_init(&io->holders, 1);
    atomic_init(&io->counting, 0);
    for (int op = 0; op < LS_IO_OP_COUNT; op++)
        atomic_init(&io->counts[op], 0);
}

ls_io *ls_io_hold(ls_io *io) {
    atomic_fetch_add_explicit(&io->holders, 1, memory_order_relaxed);
    return io;
}

void ls_io_free(ls_io *io) {
    if (io == NULL) return;
    /* The last holder sees what all others did before they let go. */
    if (atomic_fetch_sub_explicit(&io->holders, 1, memory_order_acq_rel) == 1)
        io->table->destroy(io);
}

void ls_io_set_counting(ls_io *io, int32_t counting) {
    atomic_store_explicit(&io->counting, counting != 0, memory_order_relaxed);
}

int64_t ls_io_count(const ls_io *io, int32_t op) {
    if (op < 0 || op >= LS_IO_OP_COUNT) return -EINVAL;
    return atomic_load_explicit(&io->counts[op], memory_order_relaxed);
}

const char *ls_io_name(int32_t op) {
    return op < 0 || op >= LS_IO_OP_COUNT ? NULL : OP_NAMES[op];
}

/* Count once per call, not per attempt. */
static inline void count(ls_io *io, enum ls_io_op op) {
    assert(io != NULL);
    if (atomic_load_explicit(&io->counting, memory_order_relaxed))
        atomic_fetch_add_explicit(&io->counts[op], 1, memory_order_relaxed);
}

/* A range of a file: neither end negative, no overflow. */
static inline bool is_range(int64_t position, int64_t size) {
    return position >= 0 && size >= 0 && position <= INT64_MAX - size;
}

static inline int64_t at_most(int64_t size, int64_t limit) {
    return size < limit ? size : limit;
}

/* ---- operations --------------------------------------------------------------------------------- */

/* Evaluate an attempt until it is not interrupted. */
#define UNINTERRUPTED(result, attempt) \
    do {                               \
        (result) = (attempt);          \
    } while ((result) == -EINTR)

int64_t ls_io_open(ls_io *io, const char *path, int32_t flags, int32_t mode) {
    /* With O_APPEND, Linux appends in pwrite too, whatever the position. */
    if (flags & O_APPEND) return -EINVAL;
    count(io, LS_IO_OPEN);
    int64_t fd;
    UNINTERRUPTED(fd, io->table->open(io, path, flags | O_CLOEXEC, mode));
    return fd;
}

int64_t ls_io_close(ls_io *io, int32_t fd) {
    count(io, LS_IO_CLOSE);
    /* Never retried: after EINTR Linux has closed the fd, and its number may be another's by now. */
    int64_t result = io->table->close(io, fd);
    return result == -EINTR ? 0 : result;
}

int64_t ls_io_pwrite(ls_io *io, int32_t fd, const void *bytes, int64_t size, int64_t position) {
    if (!is_range(position, size)) return -EINVAL;
    count(io, LS_IO_PWRITE);
    int64_t written;
    UNINTERRUPTED(written,
                  io->table->pwrite(io, fd, bytes, at_most(size, LS_IO_TRANSFER_MAX), position));
    return written;
}

int64_t ls_io_pwritev(ls_io *io, int32_t fd, const struct ls_io_span *spans, int32_t span_count,
                      int64_t position) {
    int64_t size = 0;
    if (span_count < 0) return -EINVAL;
    if (span_count > LS_IO_SPANS_MAX) span_count = LS_IO_SPANS_MAX;
    for (int32_t i = 0; i < span_count; i++) {
        if (!is_range(size, spans[i].size)) return -EINVAL;
        if (size + spans[i].size > LS_IO_TRANSFER_MAX) {
            /* The first span alone may be too large for one call. */
            if (i == 0) {
                return ls_io_pwrite(io, fd, (const void *)spans[0].bytes, spans[0].size, position);
            }
            span_count = i;
            break;
        }
        size += spans[i].size;
    }
    if (!is_range(position, size)) return -EINVAL;

    count(io, LS_IO_PWRITEV);
    int64_t written;
    UNINTERRUPTED(written, io->table->pwritev(io, fd, spans, span_count, position));
    return written;
}

int64_t ls_io_pread(ls_io *io, int32_t fd, void *bytes, int64_t size, int64_t position) {
    if (!is_range(position, size)) return -EINVAL;
    count(io, LS_IO_PREAD);
    int64_t got;
    UNINTERRUPTED(got,
                  io->table->pread(io, fd, bytes, at_most(size, LS_IO_TRANSFER_MAX), position));
    return got;
}

int64_t ls_io_fallocate(ls_io *io, int32_t fd, int64_t position, int64_t size) {
    if (!is_range(position, size)) return -EINVAL;
    count(io, LS_IO_FALLOCATE);
    int64_t result;
    UNINTERRUPTED(result, io->table->fallocate(io, fd, position, size));
    return result;
}

int64_t ls_io_ftruncate(ls_io *io, int32_t fd, int64_t size) {
    if (size < 0) return -EINVAL;
    count(io, LS_IO_FTRUNCATE);
    int64_t result;
    UNINTERRUPTED(result, io->table->ftruncate(io, fd, size));
    return result;
}

int64_t ls_io_fdatasync(ls_io *io, int32_t fd) {
    count(io, LS_IO_FDATASYNC);
    int64_t result;
    UNINTERRUPTED(result, io->table->fdatasync(io, fd));
    return result;
}

int64_t ls_io_start_writeback(ls_io *io, int32_t fd) {
    if (io->table->start_writeback == NULL) return 0;
    count(io, LS_IO_START_WRITEBACK);
    int64_t result;
    UNINTERRUPTED(result, io->table->start_writeback(io, fd));
    return result;
}

int64_t ls_io_fsync_dir(ls_io *io, const char *path) {
    count(io, LS_IO_FSYNC_DIR);
    int64_t result;
    UNINTERRUPTED(result, io->table->fsync_dir(io, path));
    return result;
}

int64_t ls_io_rename(ls_io *io, const char *source, const char *target) {
    count(io, LS_IO_RENAME);
    int64_t result;
    UNINTERRUPTED(result, io->table->rename(io, source, target));
    return result;
}

int64_t ls_io_link(ls_io *io, const char *source, const char *target) {
    count(io, LS_IO_LINK);
    int64_t result;
    UNINTERRUPTED(result, io->table->link(io, source, target));
    return result;
}

int64_t ls_io_unlink(ls_io *io, const char *path) {
    count(io, LS_IO_UNLINK);
    int64_t result;
    UNINTERRUPTED(result, io->table->unlink(io, path));
    return result;
}

int64_t ls_io_mkdir(ls_io *io, const char *path, int32_t mode) {
    count(io, LS_IO_MKDIR);
    int64_t result;
    UNINTERRUPTED(result, io->table->mkdir(io, path, mode));
    return result;
}

int64_t ls_io_rmdir(ls_io *io, const char *path) {
    count(io, LS_IO_RMDIR);
    int64_t result;
    UNINTERRUPTED(result, io->table->rmdir(io, path));
    return result;
}

int64_t ls_io_copy_file_range(ls_io *io, int32_t source, int64_t source_position, int32_t target,
                              int64_t target_position, int64_t size) {
    if (!is_range(source_position, size) || !is_range(target_position, size)) return -EINVAL;
    count(io, LS_IO_COPY_FILE_RANGE);
    int64_t copied;
    UNINTERRUPTED(copied,
                  io->table->copy_file_range(io, source, source_position, target, target_position,
                                             at_most(size, LS_IO_TRANSFER_MAX)));
    return copied;
}

int64_t ls_io_sendfile(ls_io *io, int32_t socket, int32_t fd, int64_t position, int64_t size) {
    if (!is_range(position, size)) return -EINVAL;
    count(io, LS_IO_SENDFILE);
    return io->table->sendfile(io, socket, fd, position, at_most(size, LS_IO_TRANSFER_MAX));
}

int64_t ls_io_map(ls_io *io, int32_t fd, int64_t size, int32_t flags, uintptr_t *address) {
    if (size <= 0 || !(flags & LS_IO_MAP_READ)) return -EINVAL;
    count(io, LS_IO_MAP);
    return io->table->map(io, fd, size, flags, address);
}

int64_t ls_io_unmap(ls_io *io, uintptr_t address, int64_t size) {
    if (address == 0 || size <= 0) return -EINVAL;
    count(io, LS_IO_UNMAP);
    return io->table->unmap(io, address, size);
}

int64_t ls_io_stored(ls_io *io, uintptr_t address, int64_t position, int64_t size) {
    if (address == 0 || !is_range(position, size)) return -EINVAL;
    count(io, LS_IO_STORED);
    return io->table->stored(io, address, position, size);
}

int64_t ls_io_set_modified(ls_io *io, const char *path, int64_t modified_ms) {
    count(io, LS_IO_SET_MODIFIED);
    int64_t result;
    UNINTERRUPTED(result, io->table->set_modified(io, path, modified_ms));
    return result;
}

/* ---- loops -------------------------------------------------------------------------------------- */

int64_t ls_io_write_all(ls_io *io, int32_t fd, const void *bytes, int64_t size, int64_t position) {
    const uint8_t *from = bytes;
    int64_t done = 0;
    while (done < size) {
        int64_t written = ls_io_pwrite(io, fd, from + done, size - done, position + done);
        if (written < 0) return written;
        if (written == 0) return -EIO; /* No progress, no reason: do not spin. */
        done += written;
    }
    return size < 0 ? -EINVAL : size;
}

int64_t ls_io_write_all_spans(ls_io *io, int32_t fd, const struct ls_io_span *spans,
                              int32_t span_count, int64_t position) {
    int64_t done = 0;
    int32_t i = 0;
    while (i < span_count) {
        int64_t written = ls_io_pwritev(io, fd, spans + i, span_count - i, position + done);
        if (written < 0) return written;
        done += written;

        bool progressed = written > 0;
        while (i < span_count && written >= spans[i].size) {
            written -= spans[i].size;
            i += 1;
            progressed = true; /* An empty span counts. */
        }
        if (!progressed) return -EIO;
        if (i < span_count && written > 0) {
            const uint8_t *rest = (const uint8_t *)spans[i].bytes + written;
            int64_t finished =
                ls_io_write_all(io, fd, rest, spans[i].size - written, position + done);
            if (finished < 0) return finished;
            done += finished;
            i += 1;
        }
    }
    return done;
}

int64_t ls_io_read_all(ls_io *io, int32_t fd, void *bytes, int64_t size, int64_t position) {
    uint8_t *into = bytes;
    int64_t done = 0;
    while (done < size) {
        int64_t got = ls_io_pread(io, fd, into + done, size - done, position + done);
        if (got < 0) return got;
        if (got == 0) break;
        done += got;
    }
    return size < 0 ? -EINVAL : done;
}

int64_t ls_io_file_equals(ls_io *io, const char *path, const void *bytes, int64_t size) {
    uint8_t block[32768];
    int64_t fd = ls_io_open(io, path, O_RDONLY, 0);
    if (fd < 0) return fd;
    int64_t got = 0;
    int64_t done = 0;
    int64_t wanted = 0; /* One byte more than there may be: then less tells where the file ends. */
    do {
        wanted = at_most(size - done + 1, (int64_t)sizeof block);
        got = ls_io_pread(io, (int32_t)fd, block, wanted, done);
        if (got <= 0 || got > size - done) break;
        if (memcmp(block, (const uint8_t *)bytes + done, (size_t)got) != 0) break;
        done += got;
    } while (got == wanted);
    int64_t closed = ls_io_close(io, (int32_t)fd);
    if (got < 0) return got;
    return closed < 0 ? closed : got < wanted && done == size;
}

/* Copy through memory what the kernel cannot copy by itself. */
static int64_t copy_through_memory(ls_io *io, int32_t source, int64_t source_position,
                                   int32_t target, int64_t target_position, int64_t size) {
    uint8_t block[32768];
    int64_t done = 0;
    while (done < size) {
        int64_t got = ls_io_read_all(io, source, block, at_most(size - done, (int64_t)sizeof block),
                                     source_position + done);
        if (got < 0) return got;
        if (got == 0) break;
        int64_t written = ls_io_write_all(io, target, block, got, target_position + done);
        if (written < 0) return written;
        done += got;
    }
    return done;
}

int64_t ls_io_copy_all(ls_io *io, int32_t source, int64_t source_position, int32_t target,
                       int64_t target_position, int64_t size) {
    if (!is_range(source_position, size) || !is_range(target_position, size)) return -EINVAL;
    int64_t done = 0;
    while (done < size) {
        int64_t copied = ls_io_copy_file_range(io, source, source_position + done, target,
                                               target_position + done, size - done);
        /* Old kernels, other file systems, overlapping ranges of one file and files that have no
         * such operation. */
        if (copied == -ENOSYS || copied == -EXDEV || copied == -EOPNOTSUPP || copied == -EINVAL) {
            copied = copy_through_memory(io, source, source_position + done, target,
                                         target_position + done, size - done);
            return copied < 0 ? copied : done + copied;
        }
        if (copied < 0) return copied;
        if (copied == 0) break;
        done += copied;
    }
    return done;
}
