/*
 * ls_io_real.c: the operating system's own files. No state but the counters of the head.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "ls_io.h"

#if LS_LINUX
#include <sys/sendfile.h>
#include <sys/syscall.h>
#elif defined(__APPLE__)
#include <sys/socket.h>
#endif

/* The result of a system call in our convention. */
static inline int64_t answer(int64_t result) {
    return result < 0 ? -(int64_t)errno : result;
}

static int64_t real_open(ls_io *io, const char *path, int32_t flags, int32_t mode) {
    (void)io;
    return answer(open(path, flags, (mode_t)mode));
}

static int64_t real_close(ls_io *io, int32_t fd) {
    (void)io;
    return answer(close(fd));
}

static int64_t real_pwrite(ls_io *io, int32_t fd, const void *bytes, int64_t size,
                           int64_t position) {
    (void)io;
    return answer(pwrite(fd, bytes, (size_t)size, (off_t)position));
}

static int64_t real_pwritev(ls_io *io, int32_t fd, const struct ls_io_span *spans, int32_t count,
                            int64_t position) {
    (void)io;
    struct iovec pieces[LS_IO_SPANS_MAX];
    for (int32_t i = 0; i < count; i++) {
        pieces[i] =
            (struct iovec){.iov_base = (void *)spans[i].bytes, .iov_len = (size_t)spans[i].size};
    }
    return answer(pwritev(fd, pieces, count, (off_t)position));
}

static int64_t real_pread(ls_io *io, int32_t fd, void *bytes, int64_t size, int64_t position) {
    (void)io;
    return answer(pread(fd, bytes, (size_t)size, (off_t)position));
}

static int64_t real_fallocate(ls_io *io, int32_t fd, int64_t position, int64_t size) {
    (void)io;
#if LS_LINUX
    return answer(fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)position, (off_t)size));
#elif defined(F_PREALLOCATE)
    /* Counted from the end of what is allocated. */
    struct stat status;
    if (fstat(fd, &status) < 0) return -(int64_t)errno;
    int64_t allocated = (int64_t)status.st_blocks * 512;
    if (position + size <= allocated) return 0;
    fstore_t store = {.fst_flags = F_ALLOCATEALL,
                      .fst_posmode = F_PEOFPOSMODE,
                      .fst_offset = 0,
                      .fst_length = (off_t)(position + size - allocated)};
    return answer(fcntl(fd, F_PREALLOCATE, &store));
#else
    (void)fd, (void)position, (void)size;
    return -EOPNOTSUPP;
#endif
}

static int64_t real_ftruncate(ls_io *io, int32_t fd, int64_t size) {
    (void)io;
    return answer(ftruncate(fd, (off_t)size));
}

static int64_t real_fdatasync(ls_io *io, int32_t fd) {
    (void)io;
#if defined(F_FULLFSYNC)
    /* fsync leaves the data in the drive's cache; some file systems have nothing better. */
    if (fcntl(fd, F_FULLFSYNC) == 0) return 0;
    if (errno != ENOTSUP && errno != EINVAL && errno != ENOTTY) return -(int64_t)errno;
    return answer(fsync(fd));
#else
    return answer(fdatasync(fd));
#endif
}

#if LS_LINUX
static int64_t real_start_writeback(ls_io *io, int32_t fd) {
    (void)io;
    int64_t result = answer(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE));
    return result == -ENOSYS || result == -EINVAL || result == -ESPIPE ? 0 : result;
}
#endif

static int64_t real_fsync_dir(ls_io *io, const char *path) {
    (void)io;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return -(int64_t)errno;
    int64_t result = answer(fsync(fd));
    (void)close(fd);
    /* Some network file systems have no fsync of a directory: their entries are durable at once. */
    return result == -EINVAL || result == -ENOTSUP ? 0 : result;
}

static int64_t real_rename(ls_io *io, const char *source, const char *target) {
    (void)io;
    return answer(rename(source, target));
}

static int64_t real_link(ls_io *io, const char *source, const char *target) {
    (void)io;
    return answer(link(source, target));
}

static int64_t real_unlink(ls_io *io, const char *path) {
    (void)io;
    return answer(unlink(path));
}

static int64_t real_mkdir(ls_io *io, const char *path, int32_t mode) {
    (void)io;
    return answer(mkdir(path, (mode_t)mode));
}

static int64_t real_rmdir(ls_io *io, const char *path) {
    (void)io;
    return answer(rmdir(path));
}

static int64_t real_copy_file_range(ls_io *io, int32_t source, int64_t source_position,
                                    int32_t target, int64_t target_position, int64_t size) {
    (void)io;
#if LS_LINUX && defined(SYS_copy_file_range)
    /* By number: glibc's wrapper is younger than the oldest one that a wheel may meet. */
    int64_t from = source_position;
    int64_t to = target_position;
    return answer(syscall(SYS_copy_file_range, source, &from, target, &to, (size_t)size, 0U));
#else
    (void)source, (void)source_position, (void)target, (void)target_position, (void)size;
    return -ENOSYS;
#endif
}

static int64_t real_sendfile(ls_io *io, int32_t socket, int32_t fd, int64_t position,
                             int64_t size) {
    (void)io;
#if LS_LINUX
    off_t from = position;
    return answer(sendfile(socket, fd, &from, (size_t)size));
#elif defined(__APPLE__) && !defined(LS_PORTABLE)
    off_t sent = size; /* 0 would be all; a socket that takes only a part is no error here */
    if (size == 0) return 0;
    return sendfile(fd, socket, position, &sent, NULL, 0) == 0 || sent > 0 ? sent : -(int64_t)errno;
#else
    (void)socket, (void)fd, (void)position, (void)size;
    return -ENOSYS;
#endif
}

static int64_t real_map(ls_io *io, int32_t fd, int64_t size, int32_t flags, uintptr_t *address) {
    (void)io;
    int protection = PROT_READ | ((flags & LS_IO_MAP_STORE) ? PROT_WRITE : 0);
    void *mapping = mmap(NULL, (size_t)size, protection, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED) return -(int64_t)errno;
    *address = (uintptr_t)mapping;
    return 0;
}

static int64_t real_unmap(ls_io *io, uintptr_t address, int64_t size) {
    (void)io;
    return answer(munmap((void *)address, (size_t)size));
}

static int64_t real_stored(ls_io *io, uintptr_t address, int64_t position, int64_t size) {
    (void)io, (void)address, (void)position, (void)size;
    return 0;
}

static int64_t real_set_modified(ls_io *io, const char *path, int64_t modified_ms) {
    (void)io;
    int64_t seconds = modified_ms / 1000;
    int64_t rest = modified_ms % 1000;
    if (rest < 0) { /* Before 1970: nanoseconds still count upwards. */
        seconds -= 1;
        rest += 1000;
    }
    struct timespec times[2];
    times[0].tv_sec = (time_t)seconds;
    times[0].tv_nsec = (long)(rest * 1000000);
    times[1] = times[0];
    return answer(utimensat(AT_FDCWD, path, times, 0));
}

static void real_destroy(ls_io *io) {
    free(io);
}

const struct ls_io_table ls_io_real_table = {
    .open = real_open,
    .close = real_close,
    .pwrite = real_pwrite,
    .pwritev = real_pwritev,
    .pread = real_pread,
    .fallocate = real_fallocate,
    .ftruncate = real_ftruncate,
    .fdatasync = real_fdatasync,
#if LS_LINUX
    .start_writeback = real_start_writeback,
#endif
    .fsync_dir = real_fsync_dir,
    .rename = real_rename,
    .link = real_link,
    .unlink = real_unlink,
    .mkdir = real_mkdir,
    .rmdir = real_rmdir,
    .copy_file_range = real_copy_file_range,
    .sendfile = real_sendfile,
    .map = real_map,
    .unmap = real_unmap,
    .stored = real_stored,
    .set_modified = real_set_modified,
    .destroy = real_destroy,
};

ls_io *ls_io_real_new(void) {
    ls_io *io = malloc(sizeof *io);
    if (io != NULL) ls_io_init(io, &ls_io_real_table);
    return io;
}
