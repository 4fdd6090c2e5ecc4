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

#include "ls_internal.h"
#include "ls_io.h"

/* An empty file, whose name nobody has or only what is in nobody's use. The fd, or an error. */
static int64_t create_file(ls_io *io, const char *path) {
    int64_t fd = ls_io_open(io, path, O_RDWR | O_CREAT | O_EXCL, LS_FILE_MODE);
    if (fd != -EEXIST) return fd;
    int64_t result = ls_io_unlink(io, path);
    if (result < 0) return result;
    return ls_io_open(io, path, O_RDWR | O_CREAT | O_EXCL, LS_FILE_MODE);
}

int64_t ls_io_create_indexes(ls_io *io, const char *timeindex, const char *index, int32_t fds[2]) {
    int64_t timeindex_fd = create_file(io, timeindex);
    if (timeindex_fd < 0) return timeindex_fd;
    int64_t index_fd = create_file(io, index);
    if (index_fd < 0) {
        (void)ls_io_unlink(io, timeindex);
        (void)ls_io_close(io, (int32_t)timeindex_fd);
        return index_fd;
    }
    fds[0] = (int32_t)index_fd;
    fds[1] = (int32_t)timeindex_fd;
    return 0;
}

/* 1: there is something behind `size`. LS_E_SLOW: and it may not be cut. 0, or an error. */
static int64_t must_cut(int32_t fd, int64_t size, bool is_shared_whole) {
    struct stat status;
    if (fstat(fd, &status) < 0) return -errno;
    if (status.st_size <= size) return 0;
    return is_shared_whole && status.st_nlink > 1 ? LS_E_SLOW : 1;
}

int64_t ls_io_seal_segment(ls_io *io, const struct ls_segment *segment) {
    int64_t index_bytes = segment->offset_entry_count * LS_OFFSET_ENTRY_BYTES;
    int64_t timeindex_bytes = segment->time_entry_count * LS_TIME_ENTRY_BYTES;
    bool has_last_entry = segment->max_timestamp > segment->last_time_entry_timestamp;
    int64_t sealed_bytes = timeindex_bytes + (has_last_entry ? LS_TIME_ENTRY_BYTES : 0);
    int64_t cut_index = must_cut(segment->index_fd, index_bytes, true);
    if (cut_index < 0) return cut_index;
    int64_t cut_timeindex = must_cut(segment->timeindex_fd, sealed_bytes, true);
    if (cut_timeindex < 0) return cut_timeindex;
    int64_t cut_log = must_cut(segment->log_fd, segment->size_bytes, false);
    if (cut_log < 0) return cut_log;

    int64_t result = 0;
    if (has_last_entry) {
        int64_t relative_offset = segment->offset_of_max_timestamp - segment->base_offset;
        uint8_t entry[LS_TIME_ENTRY_BYTES];
        ls_store_be64(entry, (uint64_t)segment->max_timestamp);
        ls_store_be32(entry + 8, (uint32_t)relative_offset);
        result = ls_io_write_all(io, segment->timeindex_fd, entry, sizeof entry, timeindex_bytes);
    }
    if (result >= 0 && cut_index) result = ls_io_ftruncate(io, segment->index_fd, index_bytes);
    if (result >= 0 && cut_timeindex) {
        result = ls_io_ftruncate(io, segment->timeindex_fd, sealed_bytes);
    }
    if (result >= 0 && cut_log) {
        result = ls_io_ftruncate(io, segment->log_fd, segment->size_bytes);
    }
    return result < 0 ? result : 0;
}

int64_t ls_io_fdatasync_together(ls_io *io, const int32_t *fds, int32_t count, int32_t *flushed) {
    *flushed = 0;
    int32_t begun = 0;
    int64_t begin_result = 0;
    while (count > 1 && begun < count && begin_result >= 0) {
        begin_result = ls_io_start_writeback(io, fds[begun]);
        if (begin_result >= 0) begun += 1;
    }
    if (count == 1) begun = 1;
    for (; *flushed < begun; *flushed += 1) {
        int64_t result = ls_io_fdatasync(io, fds[*flushed]);
        if (result < 0) return result;
    }
    return begin_result < 0 ? begin_result : 0;
}

int64_t ls_io_put_file(ls_io *io, const char *path, const void *bytes, int64_t size, bool sync) {
    int64_t fd = ls_io_open(io, path, O_WRONLY | O_CREAT | O_EXCL, LS_FILE_MODE);
    if (fd == -EEXIST) {
        struct stat status;
        if (stat(path, &status) == 0 && status.st_nlink > 1) {
            int64_t unlinked = ls_io_unlink(io, path);
            if (unlinked < 0) return unlinked;
        }
        fd = ls_io_open(io, path, O_WRONLY | O_CREAT | O_TRUNC, LS_FILE_MODE);
    }
    if (fd < 0) return fd;
    int64_t result = ls_io_write_all(io, (int32_t)fd, bytes, size, 0);
    if (result >= 0 && sync) result = ls_io_fdatasync(io, (int32_t)fd);
    int64_t closed = ls_io_close(io, (int32_t)fd);
    if (result < 0) return result;
    return closed < 0 ? closed : 0;
}
