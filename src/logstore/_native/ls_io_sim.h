/*
 * ls_io_sim.h: what the simulated io remembers between a change and its sync.
 *
 * The files are real and always hold the newest state, so reading needs no simulation. The journal
 * holds how to go back: the durable bytes of each page touched since its file's last sync, the
 * durable size, and each change of a directory entry since its directory's last sync. A crash
 * decides, by the seed, what of it reached the device, and rewrites the real files so.
 *
 * Everything here is under the mutex of struct sim.
 */
#ifndef LS_IO_SIM_H
#define LS_IO_SIM_H

#include <pthread.h>
#include <sys/stat.h>

#include "ls_io.h"

#define SIM_PAGE_BYTES   4096
#define SIM_SECTOR_BYTES 512

/* One page with changes that are not synced. */
struct sim_page {
    int64_t index;    /* position / SIM_PAGE_BYTES */
    uint8_t *before;  /* its durable bytes; NULL: zeros, it lay beyond the durable size */
    uint8_t *written; /* bitmap of the bytes written since; NULL: all of them */
};

/* A file or directory that something here refers to. */
struct sim_file {
    struct sim_file *next;
    uint64_t device;
    uint64_t inode;
    int fd; /* our own, which keeps the inode while the journal needs it */
    bool is_directory;
    bool is_unsynced;       /* of a file's data and size; what follows is set then */
    int64_t durable_size;   /* bytes */
    int64_t smallest_size;  /* since the last sync */
    struct sim_page *pages; /* ascending by index */
    int64_t page_count;
    int64_t page_room;
    bool is_needed;             /* scratch of the sweep */
    struct sim_file *aside_dir; /* crash only: where the file waits for its place, or NULL */
    char aside[32];
};

/* A directory entry that was changed. */
struct sim_name {
    struct sim_name *next;
    struct sim_file *directory;
    struct sim_file *durable; /* what it names on the device; NULL: nothing */
    struct sim_file *current; /* what it names now */
    struct sim_file *chosen;  /* crash only: what it will name */
    bool is_needed;           /* scratch of the sweep */
    char name[];
};

enum sim_change_kind { SIM_SET, SIM_REMOVE, SIM_RENAME };

/* A change of entries that is not synced: atomic, kept or lost as a whole. In order of time. */
struct sim_change {
    struct sim_change *next;
    enum sim_change_kind kind;
    struct sim_name *source; /* SIM_RENAME only */
    struct sim_name *target;
    struct sim_file *file;
};

/* A descriptor that was opened here and is not closed; the inode guards against a stranger's. */
struct sim_open_fd {
    struct sim_open_fd *next;
    uint64_t device;
    uint64_t inode;
    int fd;
};

/* A mapping that is stored into, with its bytes before the stores that were not reported yet. */
struct sim_mapping {
    struct sim_mapping *next;
    struct sim_file *file;
    uintptr_t address;
    int64_t size;
    uint8_t shadow[];
};

struct sim {
    ls_io io;
    pthread_mutex_t mutex;
    atomic_int crashed;
    int32_t faults; /* enum ls_io_sim_fault */
    uint64_t random;
    int64_t operations;
    int64_t crash_at;
    struct sim_file *files;
    struct sim_name *names;
    struct sim_change *changes;
    struct sim_mapping *mappings;
    struct sim_open_fd *open_fds;
};

/* How every operation begins and ends (ls_io_sim.c). */
struct sim *ls_sim_of(ls_io *io);
int64_t ls_sim_enter(struct sim *sim, bool *dies);
int64_t ls_sim_leave(struct sim *sim, bool dies, int64_t result);
bool ls_sim_is_done(struct sim *sim, bool dies);

/* Operations (ls_io_sim_data.c). */
int64_t ls_sim_pwritev(ls_io *io, int32_t fd, const struct ls_io_span *spans, int32_t count,
                       int64_t position);
int64_t ls_sim_pwrite(ls_io *io, int32_t fd, const void *bytes, int64_t size, int64_t position);
int64_t ls_sim_pread(ls_io *io, int32_t fd, void *bytes, int64_t size, int64_t position);
int64_t ls_sim_ftruncate(ls_io *io, int32_t fd, int64_t size);
int64_t ls_sim_fallocate(ls_io *io, int32_t fd, int64_t position, int64_t size);
int64_t ls_sim_fdatasync(ls_io *io, int32_t fd);
int64_t ls_sim_sendfile(ls_io *io, int32_t socket, int32_t fd, int64_t position, int64_t size);
int64_t ls_sim_copy_file_range(ls_io *io, int32_t source, int64_t source_position, int32_t target,
                               int64_t target_position, int64_t size);
int64_t ls_sim_map(ls_io *io, int32_t fd, int64_t size, int32_t flags, uintptr_t *address);
int64_t ls_sim_unmap(ls_io *io, uintptr_t address, int64_t size);
int64_t ls_sim_stored(ls_io *io, uintptr_t address, int64_t position, int64_t size);
int64_t ls_sim_truncate_fd(struct sim *sim, int32_t fd, int64_t size);

/* Files (ls_io_sim_files.c). -errno on failure. */
int64_t ls_sim_find_fd(struct sim *sim, int fd, struct sim_file **file);
int64_t ls_sim_find_path(struct sim *sim, int directory_fd, const char *path,
                         struct sim_file **file);
int64_t ls_sim_journal_write(struct sim_file *file, int64_t position, int64_t size,
                             const struct sim_mapping *mapping);
int64_t ls_sim_journal_truncate(struct sim_file *file, int64_t size);
void ls_sim_forget_pages(struct sim_file *file);
void ls_sim_sweep(struct sim *sim);
int64_t ls_sim_file_size(const struct sim_file *file);

/* Names (ls_io_sim_names.c). */
int64_t ls_sim_find_name(struct sim *sim, const char *path, struct sim_name **name);
int64_t ls_sim_add_change(struct sim *sim, enum sim_change_kind kind, struct sim_name *source,
                          struct sim_name *target, struct sim_file *file);
void ls_sim_sync_directory(struct sim *sim, const struct sim_file *directory);
void ls_sim_choose_names(struct sim *sim, bool keep_all, bool drop_all, bool in_order);

/* The crash (ls_io_sim_crash.c). */
uint64_t ls_sim_random(struct sim *sim, uint64_t bound); /* 0 ... bound - 1 */
int64_t ls_sim_lose_power(struct sim *sim);
int64_t ls_sim_rebuild_names(struct sim *sim); /* ls_io_sim_rebuild.c */

#endif
