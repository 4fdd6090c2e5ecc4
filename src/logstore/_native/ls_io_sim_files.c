/*
 * ls_io_sim_files.c: the simulated io's journal of data and sizes.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ls_io_sim.h"

int64_t ls_sim_file_size(const struct sim_file *file) {
    struct stat status;
    return fstat(file->fd, &status) < 0 ? -(int64_t)errno : (int64_t)status.st_size;
}

/* Take over `fd`; it is closed if the file is known already, or on failure. */
static int64_t adopt(struct sim *sim, int fd, struct sim_file **found) {
    struct stat status;
    if (fstat(fd, &status) < 0) {
        int64_t failure = -(int64_t)errno;
        (void)close(fd);
        return failure;
    }
    for (struct sim_file *file = sim->files; file != NULL; file = file->next) {
        if (file->device == (uint64_t)status.st_dev && file->inode == (uint64_t)status.st_ino) {
            (void)close(fd);
            *found = file;
            return 0;
        }
    }
    struct sim_file *file = calloc(1, sizeof *file);
    if (file == NULL) {
        (void)close(fd);
        return -ENOMEM;
    }
    file->device = (uint64_t)status.st_dev;
    file->inode = (uint64_t)status.st_ino;
    file->fd = fd;
    file->is_directory = S_ISDIR(status.st_mode);
    file->next = sim->files;
    sim->files = file;
    *found = file;
    return 0;
}

int64_t ls_sim_find_path(struct sim *sim, int directory_fd, const char *path,
                         struct sim_file **file) {
    /* For writing if possible: the crash rewrites what was written. */
    int fd = openat(directory_fd, path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) fd = openat(directory_fd, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    return fd < 0 ? -(int64_t)errno : adopt(sim, fd, file);
}

int64_t ls_sim_find_fd(struct sim *sim, int fd, struct sim_file **file) {
    struct stat status;
    if (fstat(fd, &status) < 0) return -(int64_t)errno;
    for (*file = sim->files; *file != NULL; *file = (*file)->next) {
        if ((*file)->device == (uint64_t)status.st_dev && (*file)->inode == (uint64_t)status.st_ino)
            return 0;
    }
    /* Opened anew, not duplicated: a duplicate would keep a record lock after the owner's close. */
#if defined(F_GETPATH)
    char path[1024];
    if (fcntl(fd, F_GETPATH, path) < 0) return -(int64_t)errno;
#else
    char path[32];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
#endif
    return ls_sim_find_path(sim, AT_FDCWD, path, file);
}

/* Start a round of changes: what is there now is durable. */
static int64_t begin(struct sim_file *file) {
    if (file->is_unsynced) return 0;
    int64_t size = ls_sim_file_size(file);
    if (size < 0) return size;
    file->is_unsynced = true;
    file->durable_size = size;
    file->smallest_size = size;
    return 0;
}

/* Index of the first page at or after `index`. */
static int64_t lower_bound(const struct sim_file *file, int64_t index) {
    int64_t low = 0;
    int64_t high = file->page_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (file->pages[middle].index < index) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The durable bytes of a page that was not touched yet: from the file, or before reported stores. */
static int64_t read_before(const struct sim_file *file, int64_t index,
                           const struct sim_mapping *mapping, uint8_t *before) {
    int64_t start = index * SIM_PAGE_BYTES;
    memset(before, 0, SIM_PAGE_BYTES);
    ssize_t got = pread(file->fd, before, SIM_PAGE_BYTES, (off_t)start);
    if (got < 0) return -(int64_t)errno;
    if (mapping != NULL && start < mapping->size) {
        int64_t size = mapping->size - start;
        if (size > SIM_PAGE_BYTES) size = SIM_PAGE_BYTES;
        memcpy(before, mapping->shadow + start, (size_t)size);
    }
    return 0;
}

/* The journal's page `index`, made if it is not there. NULL: `failure` is set. */
static struct sim_page *find_page(struct sim_file *file, int64_t index,
                                  const struct sim_mapping *mapping, int64_t *failure) {
    int64_t slot = lower_bound(file, index);
    if (slot < file->page_count && file->pages[slot].index == index) return &file->pages[slot];

    if (file->page_count == file->page_room) {
        int64_t room = file->page_room == 0 ? 16 : file->page_room * 2;
        struct sim_page *pages = realloc(file->pages, (size_t)room * sizeof *pages);
        if (pages == NULL) {
            *failure = -ENOMEM;
            return NULL;
        }
        file->pages = pages;
        file->page_room = room;
    }
    struct sim_page page = {.index = index, .written = calloc(1, SIM_PAGE_BYTES / 8)};
    bool has_before = index * SIM_PAGE_BYTES < file->durable_size;
    if (has_before) page.before = malloc(SIM_PAGE_BYTES);
    *failure = page.written == NULL || (has_before && page.before == NULL) ? -ENOMEM : 0;
    if (*failure == 0 && has_before) *failure = read_before(file, index, mapping, page.before);
    if (*failure < 0) {
        free(page.written);
        free(page.before);
        return NULL;
    }
    struct sim_page *place = &file->pages[slot];
    memmove(place + 1, place, (size_t)(file->page_count - slot) * sizeof *place);
    *place = page;
    file->page_count += 1;
    return place;
}

/* Mark bytes [from, end) of a page as written. */
static void mark(struct sim_page *page, int64_t from, int64_t end) {
    if (page->written == NULL) return;
    if (from == 0 && end == SIM_PAGE_BYTES) {
        free(page->written);
        page->written = NULL;
        return;
    }
    for (int64_t i = from; i < end; i++) {
        page->written[i / 8] = (uint8_t)(page->written[i / 8] | 1U << (i % 8));
    }
}

/*
 * Remember what stands in [position, position + size) before it is written. With a `mapping`, the
 * bytes were stored already and its shadow has what was there.
 */
int64_t ls_sim_journal_write(struct sim_file *file, int64_t position, int64_t size,
                             const struct sim_mapping *mapping) {
    int64_t failure = begin(file);
    if (failure < 0) return failure;
    int64_t end = position + size;
    while (position < end) {
        int64_t index = position / SIM_PAGE_BYTES;
        int64_t page_end = (index + 1) * SIM_PAGE_BYTES;
        int64_t until = end < page_end ? end : page_end;
        struct sim_page *page = find_page(file, index, mapping, &failure);
        if (page == NULL) return failure;
        mark(page, position - index * SIM_PAGE_BYTES, until - index * SIM_PAGE_BYTES);
        position = until;
    }
    return 0;
}

/* Remember the durable bytes that a new size cuts off. */
int64_t ls_sim_journal_truncate(struct sim_file *file, int64_t size) {
    int64_t failure = begin(file);
    if (failure < 0) return failure;
    int64_t end = ls_sim_file_size(file);
    if (end < 0) return end;
    if (end > file->durable_size)
        end = file->durable_size; /* Beyond it there is nothing to keep. */
    for (int64_t position = size; position < end;) {
        int64_t index = position / SIM_PAGE_BYTES;
        if (find_page(file, index, NULL, &failure) == NULL) return failure;
        position = (index + 1) * SIM_PAGE_BYTES;
    }
    if (size < file->smallest_size) file->smallest_size = size;
    return 0;
}

void ls_sim_forget_pages(struct sim_file *file) {
    for (int64_t i = 0; i < file->page_count; i++) {
        free(file->pages[i].before);
        free(file->pages[i].written);
    }
    free(file->pages);
    file->pages = NULL;
    file->page_count = 0;
    file->page_room = 0;
    file->is_unsynced = false;
}

/* Forget names and files that nothing refers to any more. */
void ls_sim_sweep(struct sim *sim) {
    for (struct sim_file *file = sim->files; file != NULL; file = file->next) {
        file->is_needed = file->is_unsynced;
    }
    for (struct sim_name *name = sim->names; name != NULL; name = name->next) {
        name->is_needed = false;
    }
    for (struct sim_change *change = sim->changes; change != NULL; change = change->next) {
        change->target->is_needed = true;
        if (change->source != NULL) change->source->is_needed = true;
        change->file->is_needed = true;
    }
    for (struct sim_mapping *mapping = sim->mappings; mapping != NULL; mapping = mapping->next) {
        mapping->file->is_needed = true;
    }
    for (struct sim_name **link = &sim->names; *link != NULL;) {
        struct sim_name *name = *link;
        if (name->is_needed) {
            name->directory->is_needed = true;
            if (name->durable != NULL) name->durable->is_needed = true;
            if (name->current != NULL) name->current->is_needed = true;
            link = &name->next;
        } else {
            assert(name->durable == name->current);
            *link = name->next;
            free(name);
        }
    }
    for (struct sim_file **link = &sim->files; *link != NULL;) {
        struct sim_file *file = *link;
        if (file->is_needed) {
            link = &file->next;
        } else {
            *link = file->next;
            (void)close(file->fd);
            free(file->pages);
            free(file);
        }
    }
}
