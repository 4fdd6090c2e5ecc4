/*
 * ls_io_sim.c: the operations of the simulated io.
 *
 * Each does the real thing after it was written to the journal. fdatasync and fsync_dir only empty
 * the journal: what is durable is decided here, not by the device below.
 */
#include "ls_io_sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sim *ls_sim_of(ls_io *io) {
    return (struct sim *)io;
}

/*
 * How an operation begins. Counts it if it changes something; at the crash point *dies: then it may
 * or may not be done, and the caller is told LS_E_CRASHED in any case. Ends with ls_sim_leave().
 */
int64_t ls_sim_enter(struct sim *sim, bool *dies) {
    (void)pthread_mutex_lock(&sim->mutex);
    if (atomic_load_explicit(&sim->crashed, memory_order_relaxed)) {
        (void)pthread_mutex_unlock(&sim->mutex);
        return LS_E_CRASHED;
    }
    sim->operations += 1;
    *dies = sim->operations == sim->crash_at;
    if (*dies) atomic_store(&sim->crashed, 1);
    return 0;
}

int64_t ls_sim_leave(struct sim *sim, bool dies, int64_t result) {
    (void)pthread_mutex_unlock(&sim->mutex);
    return dies ? LS_E_CRASHED : result;
}

/* Whether the operation in which the crash comes is still done. */
bool ls_sim_is_done(struct sim *sim, bool dies) {
    return !dies || ls_sim_random(sim, 2) == 0;
}

/* ---- names ---------------------------------------------------------------------------------- */

/* Open without O_TRUNC, which is done through the journal; a new file is a change of its directory. */
static int64_t open_changing(struct sim *sim, const char *path, int32_t flags, int32_t mode) {
    struct sim_name *name = NULL;
    if (flags & O_CREAT) {
        int64_t failure = ls_sim_find_name(sim, path, &name);
        if (failure < 0) return failure;
    }
    int64_t fd = ls_io_real_table.open(&sim->io, path, flags & ~O_TRUNC, mode);
    if (fd < 0) return fd;

    int64_t result = 0;
    if (name != NULL && name->current == NULL) {
        struct sim_file *file;
        result = ls_sim_find_fd(sim, (int)fd, &file);
        if (result == 0) result = ls_sim_add_change(sim, SIM_SET, NULL, name, file);
    } else if (flags & O_TRUNC) {
        result = ls_sim_truncate_fd(sim, (int32_t)fd, 0);
    }
    if (result < 0) (void)close((int)fd);
    return result < 0 ? result : fd;
}

/* Remember a descriptor for the crash. A failure to do so is none of the caller's. */
static void remember_fd(struct sim *sim, int fd) {
    struct stat status;
    struct sim_open_fd *open_fd = malloc(sizeof *open_fd);
    if (open_fd == NULL || fstat(fd, &status) < 0) {
        free(open_fd);
        return;
    }
    *open_fd = (struct sim_open_fd){.next = sim->open_fds,
                                    .device = (uint64_t)status.st_dev,
                                    .inode = (uint64_t)status.st_ino,
                                    .fd = fd};
    sim->open_fds = open_fd;
}

/* Let all descriptors lead nowhere, as the end of their process would: record locks end with it.
 * The numbers stay taken until their owners close them. */
static void disconnect_fds(struct sim *sim) {
    int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (sim->open_fds != NULL) {
        struct sim_open_fd *open_fd = sim->open_fds;
        sim->open_fds = open_fd->next;
        struct stat status;
        if (nowhere >= 0 && fstat(open_fd->fd, &status) == 0 &&
            open_fd->device == (uint64_t)status.st_dev &&
            open_fd->inode == (uint64_t)status.st_ino && dup2(nowhere, open_fd->fd) >= 0) {
            (void)fcntl(open_fd->fd, F_SETFD, FD_CLOEXEC);
        }
        free(open_fd);
    }
    if (nowhere >= 0) (void)close(nowhere);
}

static int64_t sim_open(ls_io *io, const char *path, int32_t flags, int32_t mode) {
    struct sim *sim = ls_sim_of(io);
    if (!(flags & (O_CREAT | O_TRUNC))) {
        if (atomic_load(&sim->crashed)) return LS_E_CRASHED;
        int64_t fd = ls_io_real_table.open(io, path, flags, mode);
        (void)pthread_mutex_lock(&sim->mutex);
        if (fd >= 0) remember_fd(sim, (int)fd);
        (void)pthread_mutex_unlock(&sim->mutex);
        return fd;
    }
    bool dies;
    int64_t result = ls_sim_enter(sim, &dies);
    if (result < 0) return result;
    if (ls_sim_is_done(sim, dies)) {
        result = open_changing(sim, path, flags, mode);
        if (result >= 0 && !dies) remember_fd(sim, (int)result);
        if (result >= 0 && dies) (void)close((int)result);
        ls_sim_sweep(sim);
    }
    return ls_sim_leave(sim, dies, result);
}

/* Works after the crash too: descriptors have to be given back. */
static int64_t sim_close(ls_io *io, int32_t fd) {
    struct sim *sim = ls_sim_of(io);
    (void)pthread_mutex_lock(&sim->mutex);
    for (struct sim_open_fd **link = &sim->open_fds; *link != NULL; link = &(*link)->next) {
        struct sim_open_fd *open_fd = *link;
        if (open_fd->fd == fd) {
            *link = open_fd->next;
            free(open_fd);
            break;
        }
    }
    (void)pthread_mutex_unlock(&sim->mutex);
    return ls_io_real_table.close(io, fd);
}

static int64_t sim_fsync_dir(ls_io *io, const char *path) {
    struct sim *sim = ls_sim_of(io);
    bool dies;
    int64_t result = ls_sim_enter(sim, &dies);
    if (result < 0) return result;
    struct sim_file *directory;
    result = ls_sim_find_path(sim, AT_FDCWD, path, &directory);
    if (result == 0 && !directory->is_directory) result = -ENOTDIR;
    if (result == 0 && !dies) ls_sim_sync_directory(sim, directory);
    ls_sim_sweep(sim);
    return ls_sim_leave(sim, dies, result);
}

/* The changes of one name or two; `source` is NULL for the operations that have one path. */
enum sim_action { SIM_DO_RENAME, SIM_DO_LINK, SIM_DO_UNLINK, SIM_DO_MKDIR, SIM_DO_RMDIR };

static int64_t act(struct sim *sim, enum sim_action action, const char *source, const char *target,
                   int32_t mode) {
    struct sim_name *from = NULL;
    struct sim_name *to = NULL;
    int64_t result = source == NULL ? 0 : ls_sim_find_name(sim, source, &from);
    if (result == 0) result = ls_sim_find_name(sim, target, &to);
    if (result < 0) return result;

    const struct ls_io_table *real = &ls_io_real_table;
    switch (action) {
        case SIM_DO_RENAME:
            result = real->rename(&sim->io, source, target);
            /* Two names of one file stay as they are. */
            if (result < 0 || from->current == to->current) return result;
            return ls_sim_add_change(sim, SIM_RENAME, from, to, from->current);
        case SIM_DO_LINK:
            result = real->link(&sim->io, source, target);
            return result < 0 ? result : ls_sim_add_change(sim, SIM_SET, NULL, to, from->current);
        case SIM_DO_UNLINK:
            result = real->unlink(&sim->io, target);
            return result < 0 ? result : ls_sim_add_change(sim, SIM_REMOVE, NULL, to, to->current);
        case SIM_DO_MKDIR: {
            struct sim_file *directory;
            result = real->mkdir(&sim->io, target, mode);
            if (result == 0) result = ls_sim_find_path(sim, AT_FDCWD, target, &directory);
            return result < 0 ? result : ls_sim_add_change(sim, SIM_SET, NULL, to, directory);
        }
        default:
            result = real->rmdir(&sim->io, target);
            return result < 0 ? result : ls_sim_add_change(sim, SIM_REMOVE, NULL, to, to->current);
    }
}

static int64_t change_names(ls_io *io, enum sim_action action, const char *source,
                            const char *target, int32_t mode) {
    struct sim *sim = ls_sim_of(io);
    bool dies;
    int64_t result = ls_sim_enter(sim, &dies);
    if (result < 0) return result;
    if (ls_sim_is_done(sim, dies)) {
        result = act(sim, action, source, target, mode);
        ls_sim_sweep(sim);
    }
    return ls_sim_leave(sim, dies, result);
}

static int64_t sim_rename(ls_io *io, const char *source, const char *target) {
    return change_names(io, SIM_DO_RENAME, source, target, 0);
}

static int64_t sim_link(ls_io *io, const char *source, const char *target) {
    return change_names(io, SIM_DO_LINK, source, target, 0);
}

static int64_t sim_unlink(ls_io *io, const char *path) {
    return change_names(io, SIM_DO_UNLINK, NULL, path, 0);
}

static int64_t sim_mkdir(ls_io *io, const char *path, int32_t mode) {
    return change_names(io, SIM_DO_MKDIR, NULL, path, mode);
}

static int64_t sim_rmdir(ls_io *io, const char *path) {
    return change_names(io, SIM_DO_RMDIR, NULL, path, 0);
}

/* Times are not simulated: nothing may depend on them (DESIGN.md D5). */
static int64_t sim_set_modified(ls_io *io, const char *path, int64_t modified_ms) {
    struct sim *sim = ls_sim_of(io);
    bool dies;
    int64_t result = ls_sim_enter(sim, &dies);
    if (result < 0) return result;
    if (ls_sim_is_done(sim, dies)) result = ls_io_real_table.set_modified(io, path, modified_ms);
    return ls_sim_leave(sim, dies, result);
}

/* ---- life ----------------------------------------------------------------------------------- */

/* Forget the journal: everything that is there stays. */
static void forget_all(struct sim *sim) {
    while (sim->changes != NULL) {
        struct sim_change *change = sim->changes;
        sim->changes = change->next;
        free(change);
    }
    for (struct sim_name *name = sim->names; name != NULL; name = name->next) {
        name->durable = name->current;
    }
    for (struct sim_file *file = sim->files; file != NULL; file = file->next)
        ls_sim_forget_pages(file);
    ls_sim_sweep(sim);
}

static void sim_destroy(ls_io *io) {
    struct sim *sim = ls_sim_of(io);
    while (sim->mappings != NULL) {
        struct sim_mapping *mapping = sim->mappings;
        sim->mappings = mapping->next;
        free(mapping);
    }
    forget_all(sim);
    while (sim->open_fds != NULL) {
        struct sim_open_fd *open_fd = sim->open_fds;
        sim->open_fds = open_fd->next;
        free(open_fd);
    }
    (void)pthread_mutex_destroy(&sim->mutex);
    free(sim);
}

static const struct ls_io_table SIM_TABLE = {
    .open = sim_open,
    .close = sim_close,
    .pwrite = ls_sim_pwrite,
    .pwritev = ls_sim_pwritev,
    .pread = ls_sim_pread,
    .fallocate = ls_sim_fallocate,
    .ftruncate = ls_sim_ftruncate,
    .fdatasync = ls_sim_fdatasync,
    .fsync_dir = sim_fsync_dir,
    .rename = sim_rename,
    .link = sim_link,
    .unlink = sim_unlink,
    .mkdir = sim_mkdir,
    .rmdir = sim_rmdir,
    .copy_file_range = ls_sim_copy_file_range,
    .sendfile = ls_sim_sendfile,
    .map = ls_sim_map,
    .unmap = ls_sim_unmap,
    .stored = ls_sim_stored,
    .set_modified = sim_set_modified,
    .destroy = sim_destroy,
};

ls_io *ls_io_sim_new(uint64_t seed, int64_t crash_at, int32_t faults) {
    struct sim *sim = calloc(1, sizeof *sim);
    if (sim == NULL) return NULL;
    ls_io_init(&sim->io, &SIM_TABLE);
    if (pthread_mutex_init(&sim->mutex, NULL) != 0) {
        free(sim);
        return NULL;
    }
    atomic_init(&sim->crashed, 0);
    sim->random = seed;
    sim->crash_at = crash_at;
    sim->faults = faults;
    return &sim->io;
}

int64_t ls_io_sim_operations(ls_io *io) {
    struct sim *sim = ls_sim_of(io);
    (void)pthread_mutex_lock(&sim->mutex);
    int64_t operations = sim->operations;
    (void)pthread_mutex_unlock(&sim->mutex);
    return operations;
}

int64_t ls_io_sim_set_crash_at(ls_io *io, int64_t crash_at) {
    struct sim *sim = ls_sim_of(io);
    (void)pthread_mutex_lock(&sim->mutex);
    sim->crash_at = crash_at;
    (void)pthread_mutex_unlock(&sim->mutex);
    return 0;
}

int64_t ls_io_sim_unsynced(ls_io *io) {
    struct sim *sim = ls_sim_of(io);
    int64_t count = 0;
    (void)pthread_mutex_lock(&sim->mutex);
    for (struct sim_file *file = sim->files; file != NULL; file = file->next) {
        if (file->is_unsynced &&
            (file->page_count > 0 || ls_sim_file_size(file) != file->durable_size))
            count += 1;
    }
    for (struct sim_change *change = sim->changes; change != NULL; change = change->next)
        count += 1;
    (void)pthread_mutex_unlock(&sim->mutex);
    return count;
}

int64_t ls_io_sim_has_crashed(ls_io *io) {
    return atomic_load(&ls_sim_of(io)->crashed);
}

int64_t ls_io_sim_crash(ls_io *io, int32_t power_loss) {
    struct sim *sim = ls_sim_of(io);
    (void)pthread_mutex_lock(&sim->mutex);
    atomic_store(&sim->crashed, 1);
    int64_t result = power_loss ? ls_sim_lose_power(sim) : 0;
    disconnect_fds(sim);
    forget_all(sim);
    (void)pthread_mutex_unlock(&sim->mutex);
    return result;
}
