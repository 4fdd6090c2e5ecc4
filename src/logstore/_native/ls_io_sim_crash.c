/*
 * ls_io_sim_crash.c: what a power loss leaves of data and sizes.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ls_io_sim.h"

/* SplitMix64: any seed is good, the next value needs no warming up. */
static uint64_t next_random(struct sim *sim) {
    sim->random += 0x9E3779B97F4A7C15U;
    uint64_t mixed = sim->random;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9U;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBU;
    return mixed ^ (mixed >> 31);
}

uint64_t ls_sim_random(struct sim *sim, uint64_t bound) {
    return bound <= 1 ? 0 : next_random(sim) % bound;
}

/* How one crash treats everything: all kept, all lost, or each by chance. */
struct style {
    bool keep_all;
    bool drop_all;
    bool in_order; /* of directory entries: those before some moment are kept */
};

enum fate { KEEP, DROP, TEAR, GARBAGE };

static enum fate choose_fate(struct sim *sim, const struct style *style) {
    if (style->keep_all) return KEEP;
    if (style->drop_all) return DROP;
    switch (ls_sim_random(sim, 8)) {
        case 0:
        case 1:
        case 2:
            return (sim->faults & LS_IO_SIM_DROP) ? DROP : KEEP;
        case 3:
            return (sim->faults & LS_IO_SIM_TEAR) ? TEAR : KEEP;
        case 4:
            return (sim->faults & LS_IO_SIM_GARBAGE) ? GARBAGE : KEEP;
        default:
            return KEEP;
    }
}

static bool is_written(const struct sim_page *page, int64_t i) {
    return page->written == NULL || (page->written[i / 8] >> (i % 8) & 1);
}

/*
 * Mix the durable bytes of a page into its newest ones. Garbage comes only where something was
 * written since the sync: the rest of a sector survives a write beside it.
 */
static void apply_fate(struct sim *sim, const struct sim_page *page, enum fate fate,
                       uint8_t *bytes) {
    static const uint8_t ZEROS[SIM_PAGE_BYTES];
    const uint8_t *before = page->before == NULL ? ZEROS : page->before;

    /* A tear: at one byte among those written, or sector by sector. */
    int64_t first = 0;
    int64_t last = SIM_PAGE_BYTES - 1;
    while (first < last && !is_written(page, first))
        first += 1;
    while (last > first && !is_written(page, last))
        last -= 1;
    int64_t cut = first + (int64_t)ls_sim_random(sim, (uint64_t)(last - first + 1));
    bool is_by_sector = ls_sim_random(sim, 3) == 0;
    bool is_head_lost = ls_sim_random(sim, 2) == 0;
    uint64_t lost_sectors = next_random(sim);

    for (int64_t i = 0; i < SIM_PAGE_BYTES; i++) {
        bool is_lost = fate == DROP;
        if (fate == TEAR && is_by_sector) is_lost = lost_sectors >> (i / SIM_SECTOR_BYTES) & 1;
        if (fate == TEAR && !is_by_sector) is_lost = (i < cut) == is_head_lost;
        if (fate == GARBAGE) {
            if (is_written(page, i)) bytes[i] = (uint8_t)next_random(sim);
            is_lost = !is_written(page, i) && is_head_lost;
        }
        if (is_lost) bytes[i] = before[i];
    }
}

/* The durable size, the newest, the smallest between, or any on the way up. */
static int64_t choose_size(struct sim *sim, const struct style *style, const struct sim_file *file,
                           int64_t size) {
    if (style->keep_all) return size;
    if (style->drop_all) return file->durable_size;
    if (!(sim->faults & LS_IO_SIM_SIZE)) return size;
    switch (ls_sim_random(sim, 6)) {
        case 0:
            return file->durable_size;
        case 1:
            return file->smallest_size;
        case 2:
            return file->smallest_size +
                   (int64_t)ls_sim_random(sim, (uint64_t)(size - file->smallest_size) + 1);
        default:
            return size;
    }
}

static int64_t write_page(int fd, const uint8_t *bytes, int64_t start, int64_t end) {
    while (start < end) {
        ssize_t written = pwrite(fd, bytes, (size_t)(end - start), (off_t)start);
        if (written < 0) return -(int64_t)errno;
        bytes += written;
        start += written;
    }
    return 0;
}

/* Copy the first `size` bytes between descriptors. */
static int64_t copy_bytes(int source, int target, int64_t size) {
    uint8_t block[16384];
    for (int64_t position = 0; position < size;) {
        int64_t wanted =
            size - position < (int64_t)sizeof block ? size - position : (int64_t)sizeof block;
        ssize_t got = pread(source, block, (size_t)wanted, (off_t)position);
        if (got <= 0) return got < 0 ? -(int64_t)errno : -EIO;
        int64_t failure = write_page(target, block, position, position + got);
        if (failure < 0) return failure;
        position += got;
    }
    return 0;
}

/*
 * Cut a file by putting a shorter copy in its place: whoever still maps the old one, from before the
 * crash, must not meet the end of it. A file with several names is cut as it is.
 */
static int64_t cut(struct sim_file *file, int64_t size) {
    struct stat status;
    if (fstat(file->fd, &status) < 0) return -(int64_t)errno;
    if (status.st_nlink > 1) return ftruncate(file->fd, (off_t)size) < 0 ? -(int64_t)errno : 0;

    char path[PATH_MAX];
    char copy[PATH_MAX + 8];
    int fd;
    if (status.st_nlink == 0) {
        /* Only the journal has it; what is written anew from it later is this copy. */
        FILE *nameless = tmpfile();
        fd = nameless == NULL ? -1 : dup(fileno(nameless));
        if (nameless != NULL) (void)fclose(nameless);
    } else {
#if defined(F_GETPATH)
        if (fcntl(file->fd, F_GETPATH, path) < 0) return -(int64_t)errno;
#else
        char link[32];
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", file->fd);
        ssize_t length = readlink(link, path, sizeof path - 1);
        if (length < 0) return -(int64_t)errno;
        path[length] = 0;
#endif
        (void)snprintf(copy, sizeof copy, "%s.cut", path);
        fd = open(copy, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, status.st_mode & 07777);
    }
    if (fd < 0) return -(int64_t)errno;
    int64_t failure = copy_bytes(file->fd, fd, size);
    if (failure == 0 && status.st_nlink == 1 && rename(copy, path) < 0) failure = -(int64_t)errno;
    (void)close(file->fd);
    file->fd = fd;
    return failure;
}

static int64_t lose_data(struct sim *sim, const struct style *style, struct sim_file *file) {
    int64_t size = ls_sim_file_size(file);
    if (size < 0) return size;
    if (size < file->smallest_size) file->smallest_size = size;
    int64_t chosen_size = choose_size(sim, style, file, size);

    for (int64_t i = 0; i < file->page_count; i++) {
        const struct sim_page *page = &file->pages[i];
        int64_t start = page->index * SIM_PAGE_BYTES;
        int64_t end = start + SIM_PAGE_BYTES < chosen_size ? start + SIM_PAGE_BYTES : chosen_size;
        enum fate fate = choose_fate(sim, style);
        if (start >= end || fate == KEEP) continue;

        uint8_t bytes[SIM_PAGE_BYTES] = {0};
        ssize_t got = pread(file->fd, bytes, sizeof bytes, (off_t)start);
        if (got < 0) return -(int64_t)errno;
        apply_fate(sim, page, fate, bytes);
        int64_t failure = write_page(file->fd, bytes, start, end);
        if (failure < 0) return failure;
    }
    size = ls_sim_file_size(file);
    if (size < 0) return size;
    if (chosen_size < size) return cut(file, chosen_size);
    return ftruncate(file->fd, (off_t)chosen_size) < 0 ? -(int64_t)errno : 0;
}

int64_t ls_sim_lose_power(struct sim *sim) {
    /* Whole outcomes are frequent enough that rare mixtures do not hide them. */
    struct style style = {0};
    switch (ls_sim_random(sim, 8)) {
        case 0:
            style.keep_all = true;
            break;
        case 1:
            style.drop_all = (sim->faults & LS_IO_SIM_DROP) != 0;
            break;
        default:
            style.in_order = ls_sim_random(sim, 3) == 0;
            break;
    }
    for (struct sim_file *file = sim->files; file != NULL; file = file->next) {
        int64_t failure = file->is_unsynced ? lose_data(sim, &style, file) : 0;
        if (failure < 0) return failure;
    }
    bool keeps_names = style.keep_all || !(sim->faults & LS_IO_SIM_NAMES);
    ls_sim_choose_names(sim, keeps_names, style.drop_all, style.in_order);
    return ls_sim_rebuild_names(sim);
}
