/*
 * ls_io_sim_data.c: the simulated io's operations on data, sizes and mappings.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "ls_io_sim.h"

/* How much of a write is done: all, unless the crash comes. */
static int64_t done_bytes(struct sim *sim, bool dies, int64_t size) {
    if (!dies) return size;
    switch (ls_sim_random(sim, 3)) {
        case 0:
            return 0;
        case 1:
            return size;
        default:
            return (int64_t)ls_sim_random(sim, (uint64_t)size + 1);
    }
}

/* ---- data ----------------------------------------------------------------------------------- */

static bool is_writable(int fd) {
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
}

/* After a write into a file that is mapped for stores: the shadows follow. */
static void refresh_shadows(struct sim *sim, const struct sim_file *file, int64_t position,
                            int64_t size) {
    for (struct sim_mapping *mapping = sim->mappings; mapping != NULL; mapping = mapping->next) {
        if (mapping->file != file || position >= mapping->size) continue;
        int64_t inside = mapping->size - position < size ? mapping->size - position : size;
        memcpy(mapping->shadow + position, (const uint8_t *)mapping->address + position,
               (size_t)inside);
    }
}

static int64_t write_spans(struct sim *sim, int32_t fd, const struct ls_io_span *spans,
                           int32_t count, int64_t position, int64_t size) {
    if (!is_writable(fd)) return -EBADF;
    struct sim_file *file;
    int64_t failure = ls_sim_find_fd(sim, fd, &file);
    if (failure == 0) failure = ls_sim_journal_write(file, position, size, NULL);
    if (failure < 0) return failure;

    int64_t done = 0;
    for (int32_t i = 0; i < count && done < size; i++) {
        int64_t part = spans[i].size < size - done ? spans[i].size : size - done;
        if (part == 0) continue;
        int64_t written = ls_io_real_table.pwrite(&sim->io, fd, (const void *)spans[i].bytes, part,
                                                  position + done);
        if (written < 0) return done > 0 ? done : written;
        done += written;
        if (written < part) break;
    }
    refresh_shadows(sim, file, position, done);
    return done;
}

int64_t ls_sim_pwritev(ls_io *io, int32_t fd, const struct ls_io_span *spans, int32_t count,
                       int64_t position) {
    struct sim *sim = ls_sim_of(io);
    bool dies;
    int64_t result = ls_sim_enter(sim, &dies);
    if (result < 0) return result;
    int64_t size = 0;
    for (int32_t i = 0; i < count; i++)
        size += spans[i].size;
    size = done_bytes(sim, dies, size);
    return ls_sim_leave(sim, dies, write_spans(sim, fd, spans, count, position, size));
}

int64_t ls_sim_pwrite(ls_io *io, int32_t fd, const void *bytes, int64_t size, int64_t position) {
    struct ls_io_span span = {.bytes = (uintptr_t)bytes, .size = size};
    return ls_sim_pwritev(io, fd, &span, 1, position);
}

int64_t ls_sim_pread(ls_io *io, int32_t fd, void *bytes, int64_t size, int64_t position) {
    if (atomic_load(&ls_sim_of(io)->crashed)) return LS_E_CRASHED;
    return ls_io_real_table.pread(io, fd, bytes, size, position);
}

int64_t ls_sim_truncate_fd(struct sim *sim, int32_t fd, int64_t size) {
    if (!is_writable(fd)) return -EINVAL; /* What the system says to that. */
    struct sim_file *file;
    int64_t failure = ls_sim_find_fd(sim, fd, &file);
    if (failure == 0) failure = ls_sim_journal_truncate(file, size);
    return failure < 0 ? failure : ls_io_real_table.ftruncate(&sim->io, fd, size);
}

int64_t ls_sim_ftruncate(ls_io *io, int32_t fd, int64_t size) {
    struct sim *sim = ls_sim_of(io);
    bool dies;
    int64_t result = ls_sim_enter(sim, &dies);
    if (result < 0) return result;
    if (ls_sim_is_done(sim, dies)) result = ls_sim_truncate_fd(sim, fd, size);
    return ls_sim_leave(sim, dies, result);
}

/* Reserved blocks hold nothing that could be lost. */
int64_t ls_sim_fallocate(ls_io *io, int32_t fd, int64_t position, int64_t size) {
    struct sim *sim = ls_sim_of(io);
    bool dies;
    int64_t result = ls_sim_enter(sim, &dies);
    if (result < 0) return result;
    return ls_sim_leave(sim, dies, ls_io_real_table.fallocate(io, fd, position, size));
}

int64_t ls_sim_fdatasync(ls_io *io, int32_t fd) {
    struct sim *sim = ls_sim_of(io);
    bool dies;
    int64_t result = ls_sim_enter(sim, &dies);
    if (result < 0) return result;
    struct sim_file *file;
    result = ls_sim_find_fd(sim, fd, &file);
    /* A crash during the sync leaves everything open: each page is kept or lost by chance. */
    if (result == 0 && !dies) {
        ls_sim_forget_pages(file);
        ls_sim_sweep(sim);
    }
    return ls_sim_leave(sim, dies, result);
}

/* The caller falls back to pread and pwrite, which are simulated. */
int64_t ls_sim_copy_file_range(ls_io *io, int32_t source, int64_t source_position, int32_t target,
                               int64_t target_position, int64_t size) {
    (void)source, (void)source_position, (void)target, (void)target_position, (void)size;
    return atomic_load(&ls_sim_of(io)->crashed) ? LS_E_CRASHED : -ENOSYS;
}

/* The caller falls back to pread, which is simulated. */
int64_t ls_sim_sendfile(ls_io *io, int32_t socket, int32_t fd, int64_t position, int64_t size) {
    (void)socket, (void)fd, (void)position, (void)size;
    return atomic_load(&ls_sim_of(io)->crashed) ? LS_E_CRASHED : -ENOSYS;
}

/* ---- mappings ------------------------------------------------------------------------------- */

int64_t ls_sim_map(ls_io *io, int32_t fd, int64_t size, int32_t flags, uintptr_t *address) {
    struct sim *sim = ls_sim_of(io);
    if (atomic_load(&sim->crashed)) return LS_E_CRASHED;
    if (!(flags & LS_IO_MAP_STORE)) return ls_io_real_table.map(io, fd, size, flags, address);

    (void)pthread_mutex_lock(&sim->mutex);
    struct sim_file *file = NULL;
    struct sim_mapping *mapping = malloc(sizeof *mapping + (size_t)size);
    int64_t result = mapping == NULL ? -ENOMEM : ls_sim_find_fd(sim, fd, &file);
    int64_t file_size = result < 0 ? result : ls_sim_file_size(file);
    /* Its end must not lie beyond the file's: the shadow is read through the mapping. */
    if (result == 0 && file_size < size) result = -EINVAL;
    if (result == 0) result = ls_io_real_table.map(io, fd, size, flags, address);
    if (result == 0) {
        mapping->file = file;
        mapping->address = *address;
        mapping->size = size;
        memcpy(mapping->shadow, (const void *)*address, (size_t)size);
        mapping->next = sim->mappings;
        sim->mappings = mapping;
    } else {
        free(mapping);
    }
    (void)pthread_mutex_unlock(&sim->mutex);
    return result;
}

/* Works after the crash too: memory has to be given back. */
int64_t ls_sim_unmap(ls_io *io, uintptr_t address, int64_t size) {
    struct sim *sim = ls_sim_of(io);
    (void)pthread_mutex_lock(&sim->mutex);
    for (struct sim_mapping **link = &sim->mappings; *link != NULL; link = &(*link)->next) {
        struct sim_mapping *mapping = *link;
        if (mapping->address == address) {
            *link = mapping->next;
            free(mapping);
            break;
        }
    }
    (void)pthread_mutex_unlock(&sim->mutex);
    return ls_io_real_table.unmap(io, address, size);
}

int64_t ls_sim_stored(ls_io *io, uintptr_t address, int64_t position, int64_t size) {
    struct sim *sim = ls_sim_of(io);
    bool dies;
    int64_t result = ls_sim_enter(sim, &dies);
    if (result < 0) return result;
    struct sim_mapping *mapping = sim->mappings;
    while (mapping != NULL && mapping->address != address)
        mapping = mapping->next;
    if (mapping == NULL || position + size > mapping->size) return ls_sim_leave(sim, dies, -EINVAL);
    /* The stores have happened, whether the crash lets them be reported or not. */
    result = ls_sim_journal_write(mapping->file, position, size, mapping);
    if (result == 0) refresh_shadows(sim, mapping->file, position, size);
    return ls_sim_leave(sim, dies, result);
}
