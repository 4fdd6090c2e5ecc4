/*
 * ls_io_lock.c: the record lock of a file, which says who writes a log.
 *
 * Source: DESIGN.md D3.
 */
#include <errno.h>
#include <fcntl.h>

#include "ls_io.h"

/* Where locks belong to the process, writer_lock.py knows which ones this process holds. */
#if defined(F_OFD_SETLK) && !defined(LS_PORTABLE)
#define SET_LOCK     F_OFD_SETLK
#define GET_LOCK     F_OFD_GETLK
#define ARE_OF_FILES true
#else
#define SET_LOCK     F_SETLK
#define GET_LOCK     F_GETLK
#define ARE_OF_FILES false
#endif

bool ls_io_locks_are_of_files(void) {
    return ARE_OF_FILES;
}

/* A lock changes no file, so every io takes it from the system. */
static int64_t set_lock(int32_t fd, short type) {
    struct flock whole = {.l_type = type, .l_whence = SEEK_SET, .l_start = 0, .l_len = 0};
    int result;
    do {
        result = fcntl(fd, SET_LOCK, &whole);
    } while (result < 0 && errno == EINTR);
    if (result == 0) return 0;
    return errno == EACCES ? -EAGAIN : -errno;
}

int64_t ls_io_lock(ls_io *io, int32_t fd) {
    (void)io;
    return set_lock(fd, F_WRLCK);
}

int64_t ls_io_is_locked(ls_io *io, int32_t fd) {
    (void)io;
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 0};
    if (fcntl(fd, GET_LOCK, &whole) < 0) return -errno;
    return whole.l_type != F_UNLCK;
}

int64_t ls_io_unlock(ls_io *io, int32_t fd) {
    (void)io;
    return set_lock(fd, F_UNLCK);
}
