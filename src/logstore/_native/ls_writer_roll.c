/*
 * ls_writer_roll.c: what a roll does with files, in one call: with segments of a megabyte the Python
 * around each of its dozen system calls would be what a roll costs. When to roll, and what becomes of
 * an error, is Python's. Contract: logstore.h. Source of the rules: Kafka LocalLog.roll; spec 5.8.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ls_writer.h"

enum { SUFFIX_BYTES_MAX = 16 };

/* The names of a segment's files, one at a time. */
struct names {
    char path[PATH_MAX + SUFFIX_BYTES_MAX];
    size_t stem_size;
};

static const char *name(struct names *names, const char *suffix) {
    strcpy(names->path + names->stem_size, suffix);
    return names->path;
}

/* The .log file, whose name nobody may have, and no .txnindex beside it. The fd, or an error. */
static int64_t make_log(ls_io *io, struct names *names) {
    int64_t fd = ls_io_open(io, name(names, ".log"), O_RDWR | O_CREAT | O_EXCL, LS_FILE_MODE);
    if (fd < 0) return fd;
    int64_t result = 0;
    if (access(name(names, ".txnindex"), F_OK) == 0) { /* In nobody's use. */
        result = ls_io_unlink(io, names->path);
    } else if (errno != ENOENT) {
        result = -(int64_t)errno;
    }
    if (result >= 0) return fd;
    (void)ls_io_close(io, (int32_t)fd);
    (void)ls_io_unlink(io, name(names, ".log"));
    return result;
}

static int64_t make_indexes(ls_io *io, struct names *names, struct ls_segment *next) {
    struct names others = *names;
    int32_t fds[2];
    int64_t result =
        ls_io_create_indexes(io, name(names, ".timeindex"), name(&others, ".index"), fds);
    if (result < 0) return result;
    next->index_fd = fds[0];
    next->timeindex_fd = fds[1];
    return 0;
}

/* Whether the writer has a segment whose file ends with its last batch. */
static int64_t check_ready(ls_writer *writer) {
    struct ls_segment state;
    int64_t result = ls_writer_state(writer, &state, true);
    if (result < 0) return result;
    return writer->is_dirty ? LS_E_SLOW : 0;
}

int64_t ls_writer_roll(ls_writer *writer, const char *stem, int32_t until, struct ls_segment *old,
                       struct ls_segment *next, int64_t *why) {
    ls_io *io = writer->io;
    struct names names;
    names.stem_size = strlen(stem);
    *why = names.stem_size > PATH_MAX ? -ENAMETOOLONG : check_ready(writer);
    if (*why >= 0) *why = ls_writer_detach(writer, old);
    if (*why < 0) return LS_ROLL_NOTHING;
    memcpy(names.path, stem, names.stem_size);

    *why = ls_io_seal_segment(io, old);
    if (*why < 0) {
        if (*why == LS_E_SLOW) *why = 0;
        return LS_ROLL_DETACHED;
    }
    *why = ls_io_close(io, old->index_fd);
    int64_t closed = ls_io_close(io, old->timeindex_fd);
    if (*why >= 0) *why = closed;
    if (*why < 0 || until == LS_ROLL_SEALED) return LS_ROLL_SEALED;

    int64_t log_fd = make_log(io, &names);
    if (log_fd < 0) {
        *why = log_fd;
        return LS_ROLL_REFUSED;
    }
    next->log_fd = (int32_t)log_fd;
    if (until == LS_ROLL_MADE) return LS_ROLL_MADE;
    *why = make_indexes(io, &names, next);
    if (*why < 0) return LS_ROLL_MADE;
    *why = ls_writer_attach(writer, next);
    if (*why >= 0) return LS_ROLL_ATTACHED;
    (void)ls_io_close(io, next->index_fd);
    (void)ls_io_close(io, next->timeindex_fd);
    return LS_ROLL_MADE;
}
