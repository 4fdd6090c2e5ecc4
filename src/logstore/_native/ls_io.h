/*
 * ls_io.h: what an io is made of. Only ls_io*.c include this; all others call ls_io_* of logstore.h.
 */
#ifndef LS_IO_H
#define LS_IO_H

#include <stdatomic.h>
#include <sys/types.h>

#include "logstore.h"

/* LS_PORTABLE builds with what POSIX alone has, so that its ways can be tested on Linux too. */
#if defined(__linux__) && !defined(LS_PORTABLE)
#define LS_LINUX 1
#else
#define LS_LINUX 0
#endif

/* Linux moves at most 0x7ffff000 bytes a call; macOS refuses more than INT_MAX. */
#define LS_IO_TRANSFER_MAX ((int64_t)1 << 30)

/* Pieces of one gathered write; more are written in several calls. */
#define LS_IO_SPANS_MAX 16

/*
 * One attempt each: no retry, no loop, arguments already checked by ls_io.c. That is where EINTR
 * and short transfers are handled, so that a failing io can produce them.
 */
struct ls_io_table {
    int64_t (*open)(ls_io *io, const char *path, int32_t flags, int32_t mode);
    int64_t (*close)(ls_io *io, int32_t fd);
    int64_t (*pwrite)(ls_io *io, int32_t fd, const void *bytes, int64_t size, int64_t position);
    int64_t (*pwritev)(ls_io *io, int32_t fd, const struct ls_io_span *spans, int32_t count,
                       int64_t position);
    int64_t (*pread)(ls_io *io, int32_t fd, void *bytes, int64_t size, int64_t position);
    int64_t (*fallocate)(ls_io *io, int32_t fd, int64_t position, int64_t size);
    int64_t (*ftruncate)(ls_io *io, int32_t fd, int64_t size);
    int64_t (*fdatasync)(ls_io *io, int32_t fd);
    int64_t (*start_writeback)(ls_io *io, int32_t fd); /* NULL: nothing to begin with */
    int64_t (*fsync_dir)(ls_io *io, const char *path);
    int64_t (*rename)(ls_io *io, const char *source, const char *target);
    int64_t (*link)(ls_io *io, const char *source, const char *target);
    int64_t (*unlink)(ls_io *io, const char *path);
    int64_t (*mkdir)(ls_io *io, const char *path, int32_t mode);
    int64_t (*rmdir)(ls_io *io, const char *path);
    int64_t (*copy_file_range)(ls_io *io, int32_t source, int64_t source_position, int32_t target,
                               int64_t target_position, int64_t size);
    int64_t (*sendfile)(ls_io *io, int32_t socket, int32_t fd, int64_t position, int64_t size);
    int64_t (*map)(ls_io *io, int32_t fd, int64_t size, int32_t flags, uintptr_t *address);
    int64_t (*unmap)(ls_io *io, uintptr_t address, int64_t size);
    int64_t (*stored)(ls_io *io, uintptr_t address, int64_t position, int64_t size);
    int64_t (*set_modified)(ls_io *io, const char *path, int64_t modified_ms);
    void (*destroy)(ls_io *io);
};

/* The head of every io; the simulated and the failing one have more behind it. */
struct ls_io {
    const struct ls_io_table *table;
    atomic_int holders;
    atomic_int counting;
    _Atomic int64_t counts[LS_IO_OP_COUNT];
};

/* The real operations, for the ios that stand on them. */
extern const struct ls_io_table ls_io_real_table;

/* Set up the head. */
void ls_io_init(ls_io *io, const struct ls_io_table *table);

#endif
