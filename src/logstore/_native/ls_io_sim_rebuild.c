/*
 * ls_io_sim_rebuild.c: rewrites real directories after a simulated power loss, so that every changed
 * entry names what ls_sim_choose_names chose.
 *
 * Entries that change first step aside, under a name of their own in their directory; then each
 * chosen file takes its place; then what still waits aside is deleted. A file without any name left
 * (deleted, and the deletion was lost) is written anew from the descriptor that the journal held.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ls_io_sim.h"

static bool is_alive(const struct sim_file *file) {
    struct stat status;
    return fstat(file->fd, &status) == 0 && status.st_nlink > 0;
}

/* ---- aside ---------------------------------------------------------------------------------- */

static int64_t step_aside(struct sim_name *name, int number) {
    struct sim_file *file = name->current;
    int directory = name->directory->fd;
    name->current = NULL;
    if (file->aside_dir != NULL)
        return unlinkat(directory, name->name, 0) < 0 ? -(int64_t)errno : 0;

    (void)snprintf(file->aside, sizeof file->aside, ".lost-%d", number);
    if (renameat(directory, name->name, directory, file->aside) < 0) return -(int64_t)errno;
    file->aside_dir = name->directory;
    return 0;
}

/* Delete everything in a directory. */
static int64_t empty_directory(int parent, const char *name) {
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (directory == NULL) {
        int64_t failure = -(int64_t)errno;
        if (fd >= 0) (void)close(fd);
        return failure;
    }
    int64_t result = 0;
    const struct dirent *entry;
    while (result == 0 && (entry = readdir(directory)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (unlinkat(fd, entry->d_name, 0) == 0) continue;
        if (errno != EISDIR && errno != EPERM) { /* POSIX: EPERM is for directories too. */
            result = -(int64_t)errno;
        } else {
            result = empty_directory(fd, entry->d_name);
            if (result == 0 && unlinkat(fd, entry->d_name, AT_REMOVEDIR) < 0)
                result = -(int64_t)errno;
        }
    }
    (void)closedir(directory);
    return result;
}

static int64_t delete_aside(struct sim_file *file) {
    int parent = file->aside_dir->fd;
    file->aside_dir = NULL;
    if (!file->is_directory) return unlinkat(parent, file->aside, 0) < 0 ? -(int64_t)errno : 0;
    int64_t result = empty_directory(parent, file->aside);
    if (result == 0 && unlinkat(parent, file->aside, AT_REMOVEDIR) < 0) result = -(int64_t)errno;
    return result;
}

/* ---- into place ----------------------------------------------------------------------------- */

static int64_t copy_bytes(int source, int target) {
    uint8_t block[16384];
    int64_t position = 0;
    for (;;) {
        ssize_t got = pread(source, block, sizeof block, (off_t)position);
        if (got <= 0) return got < 0 ? -(int64_t)errno : 0;
        for (ssize_t done = 0; done < got;) {
            ssize_t written =
                pwrite(target, block + done, (size_t)(got - done), (off_t)(position + done));
            if (written < 0) return -(int64_t)errno;
            done += written;
        }
        position += got;
    }
}

/* Make a file or directory that has no name any more again; the journal's descriptor becomes it. */
static int64_t make_anew(struct sim_file *file, const struct sim_name *name) {
    struct stat status;
    if (fstat(file->fd, &status) < 0) return -(int64_t)errno;
    int directory = name->directory->fd;
    mode_t mode = status.st_mode & 07777;
    int fd;
    if (file->is_directory) {
        if (mkdirat(directory, name->name, mode) < 0) return -(int64_t)errno;
        fd = openat(directory, name->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    } else {
        fd = openat(directory, name->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    }
    if (fd < 0) return -(int64_t)errno;
    int64_t result = file->is_directory ? 0 : copy_bytes(file->fd, fd);
    struct timespec times[2];
#if defined(__APPLE__)
    times[0] = status.st_atimespec;
    times[1] = status.st_mtimespec;
#else
    times[0] = status.st_atim;
    times[1] = status.st_mtim;
#endif
    if (!file->is_directory && result == 0 && futimens(fd, times) < 0) result = -(int64_t)errno;
    (void)close(file->fd);
    file->fd = fd;
    return result;
}

/* A second name for a file that has one already. */
static int64_t link_again(const struct sim *sim, const struct sim_name *name) {
    for (const struct sim_name *other = sim->names; other != NULL; other = other->next) {
        if (other == name || other->current != name->chosen) continue;
        if (linkat(other->directory->fd, other->name, name->directory->fd, name->name, 0) == 0)
            return 0;
    }
#if LS_LINUX
    /* Its name is one that no change has touched. */
    char path[32];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", name->chosen->fd);
    if (linkat(AT_FDCWD, path, name->directory->fd, name->name, AT_SYMLINK_FOLLOW) == 0) return 0;
#endif
    return make_anew(name->chosen, name);
}

static int64_t put_into_place(const struct sim *sim, struct sim_name *name) {
    struct sim_file *file = name->chosen;
    int64_t result;
    if (file->aside_dir != NULL) {
        result = renameat(file->aside_dir->fd, file->aside, name->directory->fd, name->name);
        if (result < 0) return -(int64_t)errno;
        file->aside_dir = NULL;
    } else {
        result = is_alive(file) ? link_again(sim, name) : make_anew(file, name);
        if (result < 0) return result;
    }
    name->current = file;
    return 0;
}

/* ---- all ------------------------------------------------------------------------------------ */

int64_t ls_sim_rebuild_names(struct sim *sim) {
    int64_t result = 0;
    int number = 0;
    for (struct sim_name *name = sim->names; name != NULL; name = name->next) {
        if (name->current == NULL || name->current == name->chosen) continue;
        result = step_aside(name, number++);
        if (result < 0) return result;
    }
    /* Directories first, each after the one it is in; one that stays away takes its entries along. */
    for (bool is_file_round = false;; is_file_round = true) {
        bool is_complete = false;
        while (!is_complete) {
            is_complete = true;
            for (struct sim_name *name = sim->names; name != NULL; name = name->next) {
                if (name->chosen == NULL || name->current == name->chosen) continue;
                if (name->chosen->is_directory == is_file_round) continue;
                if (!is_alive(name->directory)) continue;
                result = put_into_place(sim, name);
                if (result < 0) return result;
                is_complete = false;
            }
        }
        if (is_file_round) break;
    }
    /* A directory that waits may hold others that wait, so a missing one is no failure. */
    for (struct sim_file *file = sim->files; file != NULL; file = file->next) {
        if (file->aside_dir == NULL) continue;
        result = delete_aside(file);
        if (result < 0 && result != -ENOENT) return result;
    }
    return 0;
}
