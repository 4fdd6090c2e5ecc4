/*
 * ls_io_sim_names.c: the simulated io's journal of directory entries.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "ls_io_sim.h"

/*
 * The journal's entry for `path`, made if it is not there: what it names now is then durable.
 * Directories are known by their inode, so that renaming one leaves its entries in place.
 */
int64_t ls_sim_find_name(struct sim *sim, const char *path, struct sim_name **found) {
    size_t size = strlen(path);
    while (size > 1 && path[size - 1] == '/')
        size -= 1;
    size_t start = size;
    while (start > 0 && path[start - 1] != '/')
        start -= 1;
    size_t name_size = size - start;
    if (name_size == 0) return -EINVAL;

    char *parent = start == 0 ? strdup(".") : strndup(path, start);
    if (parent == NULL) return -ENOMEM;
    struct sim_file *directory;
    int64_t failure = ls_sim_find_path(sim, AT_FDCWD, parent, &directory);
    free(parent);
    if (failure < 0) return failure;

    for (struct sim_name *name = sim->names; name != NULL; name = name->next) {
        if (name->directory == directory && strlen(name->name) == name_size &&
            memcmp(name->name, path + start, name_size) == 0) {
            *found = name;
            return 0;
        }
    }
    struct sim_name *name = calloc(1, sizeof *name + name_size + 1);
    if (name == NULL) return -ENOMEM;
    name->directory = directory;
    memcpy(name->name, path + start, name_size);
    failure = ls_sim_find_path(sim, directory->fd, name->name, &name->current);
    if (failure < 0 && failure != -ENOENT) {
        free(name);
        return failure;
    }
    name->durable = name->current;
    name->next = sim->names;
    sim->names = name;
    *found = name;
    return 0;
}

/* Let entries name what a change makes them name. */
static void apply(const struct sim_change *change, bool durably) {
    struct sim_file *file = change->kind == SIM_REMOVE ? NULL : change->file;
    if (durably) {
        if (change->source != NULL) change->source->durable = NULL;
        change->target->durable = file;
    } else {
        if (change->source != NULL) change->source->current = NULL;
        change->target->current = file;
    }
}

/* Record a change that has just been made to the real directory. */
int64_t ls_sim_add_change(struct sim *sim, enum sim_change_kind kind, struct sim_name *source,
                          struct sim_name *target, struct sim_file *file) {
    struct sim_change *change = calloc(1, sizeof *change);
    if (change == NULL) return -ENOMEM;
    *change = (struct sim_change){.kind = kind, .source = source, .target = target, .file = file};
    struct sim_change **end = &sim->changes;
    while (*end != NULL)
        end = &(*end)->next;
    *end = change;
    apply(change, false);
    return 0;
}

static bool touches_needed(const struct sim_change *change) {
    return change->target->directory->is_needed ||
           (change->source != NULL && change->source->directory->is_needed);
}

/*
 * Make the entries of `directory` durable. A rename from or to another directory is one change, so
 * it takes the changes of that one along: a little more than must be durable, never less.
 */
void ls_sim_sync_directory(struct sim *sim, const struct sim_file *directory) {
    for (struct sim_file *file = sim->files; file != NULL; file = file->next) {
        file->is_needed = file == directory;
    }
    bool is_complete = false;
    while (!is_complete) {
        is_complete = true;
        for (struct sim_change *change = sim->changes; change != NULL; change = change->next) {
            if (change->source == NULL || !touches_needed(change)) continue;
            if (change->source->directory->is_needed && change->target->directory->is_needed)
                continue;
            change->source->directory->is_needed = true;
            change->target->directory->is_needed = true;
            is_complete = false;
        }
    }
    for (struct sim_change **link = &sim->changes; *link != NULL;) {
        struct sim_change *change = *link;
        if (touches_needed(change)) {
            apply(change, true);
            *link = change->next;
            free(change);
        } else {
            link = &change->next;
        }
    }
}

/*
 * Choose which changes reached the device. Each alone, or in order up to some moment. A change that
 * stands on a lost one (the rename of a file whose creation was lost) is lost too.
 */
void ls_sim_choose_names(struct sim *sim, bool keep_all, bool drop_all, bool in_order) {
    for (struct sim_name *name = sim->names; name != NULL; name = name->next) {
        name->chosen = name->durable;
    }
    uint64_t count = 0;
    for (struct sim_change *change = sim->changes; change != NULL; change = change->next)
        count += 1;
    uint64_t kept = in_order ? ls_sim_random(sim, count + 1) : 0;

    uint64_t index = 0;
    for (struct sim_change *change = sim->changes; change != NULL; change = change->next, index++) {
        bool keep = in_order ? index < kept : ls_sim_random(sim, 2) == 0;
        if (drop_all || (!keep && !keep_all)) continue;
        struct sim_name *from = change->kind == SIM_RENAME ? change->source : change->target;
        if (change->kind != SIM_SET) {
            if (from->chosen != change->file) continue;
            from->chosen = NULL;
        }
        if (change->kind != SIM_REMOVE) change->target->chosen = change->file;
    }
}
