/*
 * ls_io_segment.c: the small files that come with a segment, several steps of a roll in one call: with
 * segments of a megabyte a line of Python for each is what a roll costs.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ls_io.h"

enum { FILE_MODE = 0666 };

static void delete_new_file(ls_io *io, const char *path, int32_t fd) {
    (void)ls_io_unlink(io, path);
    (void)ls_io_close(io, fd);
}

/* A file of this size, whose name nobody has or only what is in nobody's use. The fd, or an error. */
static int64_t create_file(ls_io *io, const char *path, int64_t size) {
    int64_t fd = ls_io_open(io, path, O_RDWR | O_CREAT | O_EXCL, FILE_MODE);
    if (fd == -EEXIST) {
        int64_t result = ls_io_unlink(io, path);
        if (result < 0) return result;
        fd = ls_io_open(io, path, O_RDWR | O_CREAT | O_EXCL, FILE_MODE);
    }
    if (fd < 0) return fd;
    int64_t result = ls_io_ftruncate(io, (int32_t)fd, size);
    if (result < 0) {
        delete_new_file(io, path, (int32_t)fd);
        return result;
    }
    return fd;
}

int64_t ls_io_create_indexes(ls_io *io, const char *timeindex, int64_t timeindex_bytes,
                             const char *index, int64_t index_bytes, int32_t fds[2]) {
    assert(timeindex_bytes > 0 && index_bytes > 0);
    int64_t timeindex_fd = create_file(io, timeindex, timeindex_bytes);
    if (timeindex_fd < 0) return timeindex_fd;
    int64_t index_fd = create_file(io, index, index_bytes);
    if (index_fd < 0) {
        delete_new_file(io, timeindex, (int32_t)timeindex_fd);
        return index_fd;
    }
    fds[0] = (int32_t)index_fd;
    fds[1] = (int32_t)timeindex_fd;
    return 0;
}

static int64_t has_other_names(int32_t fd) {
    struct stat status;
    if (fstat(fd, &status) < 0) return -errno;
    return status.st_nlink > 1;
}

/* Cut what lies behind `size`, if there is anything. */
static int64_t cut(ls_io *io, int32_t fd, int64_t size) {
    struct stat status;
    if (fstat(fd, &status) < 0) return -errno;
    return status.st_size > size ? ls_io_ftruncate(io, fd, size) : 0;
}

int64_t ls_io_seal_segment(ls_io *io, const struct ls_sealing *sealing) {
    int64_t timeindex_bytes = sealing->timeindex_bytes;
    int64_t result = has_other_names(sealing->index_fd);
    if (result == 0) result = has_other_names(sealing->timeindex_fd);
    if (result != 0) return result < 0 ? result : LS_E_SLOW;
    if (sealing->time_entry_bytes > 0) {
        result = ls_io_write_all(io, sealing->timeindex_fd, sealing->time_entry,
                                 sealing->time_entry_bytes, timeindex_bytes);
        timeindex_bytes += sealing->time_entry_bytes;
    }
    if (result >= 0) result = ls_io_ftruncate(io, sealing->index_fd, sealing->index_bytes);
    if (result >= 0) result = ls_io_ftruncate(io, sealing->timeindex_fd, timeindex_bytes);
    if (result >= 0) result = cut(io, sealing->log_fd, sealing->log_bytes);
    return result < 0 ? result : 0;
}

int64_t ls_io_put_file(ls_io *io, const char *path, const void *bytes, int64_t size, bool sync) {
    int64_t fd = ls_io_open(io, path, O_WRONLY | O_CREAT | O_TRUNC, FILE_MODE);
    if (fd < 0) return fd;
    int64_t result = ls_io_write_all(io, (int32_t)fd, bytes, size, 0);
    if (result >= 0 && sync) result = ls_io_fdatasync(io, (int32_t)fd);
    int64_t closed = ls_io_close(io, (int32_t)fd);
    if (result < 0) return result;
    return closed < 0 ? closed : 0;
}
