/*
 * ls_stretches.c: where in a log's files the batches are that were put into the offset map, so that
 * the walk which copies passes those of which nothing stays. Contract: logstore.h.
 *
 * What is passed was read, and its CRC was right, when its records were put; it goes because each of
 * its offsets is superseded. An offset that no record has is not, so nothing unseen is passed.
 */
#include "ls_offset_map.h"

static struct ls_stretch *stretches_of(const struct ls_offset_map *map) {
    return (struct ls_stretch *)map->stretches;
}

/* Make one stretch of two neighbours; false: they are none, or too large. */
static bool join(const struct ls_offset_map *map, struct ls_stretch *first,
                 const struct ls_stretch *second) {
    if (first->segment != second->segment || first->position + first->size != second->position ||
        first->end_offset != second->base_offset ||
        first->size + second->size > map->stretch_bytes) {
        return false;
    }
    first->size += second->size;
    first->end_offset = second->end_offset;
    return true;
}

/* Have room for one more by making stretches larger; false: there is none. */
static bool make_room(struct ls_offset_map *map) {
    enum { BYTES_MAX = 1 << 30 };
    struct ls_stretch *stretches = stretches_of(map);
    while (map->stretch_count == map->stretches_max) {
        if (map->stretch_count < 2 || map->stretch_bytes >= BYTES_MAX) return false;
        map->stretch_bytes *= 2;
        int64_t last = 0;
        for (int64_t index = 1; index < map->stretch_count; ++index)
            if (!join(map, stretches + last, stretches + index))
                stretches[++last] = stretches[index];
        map->stretch_count = last + 1;
    }
    return true;
}

static void note(struct ls_offset_map *map, const struct ls_stretch *batch) {
    struct ls_stretch *stretches = stretches_of(map);
    if (map->stretch_count > 0 && join(map, stretches + map->stretch_count - 1, batch)) return;
    if (make_room(map)) stretches[map->stretch_count++] = *batch;
}

void ls_note_stretches(struct ls_offset_map *map, const struct ls_pieces *pieces, int64_t size) {
    if (map->superseded_count == 0) return; /* Nothing would ever be passed. */
    const uint8_t *piece = (const uint8_t *)pieces->buffer;
    struct ls_stretch batch = {.segment = pieces->segment};
    for (int64_t done = 0; done < size; done += batch.size) {
        const uint8_t *at = piece + done;
        batch.position = pieces->position + done;
        batch.size = LS_LOG_OVERHEAD + (int64_t)(int32_t)ls_load_be32(at + LS_LENGTH_AT);
        batch.base_offset = (int64_t)ls_load_be64(at + LS_BASE_OFFSET_AT);
        batch.end_offset =
            batch.base_offset + (int32_t)ls_load_be32(at + LS_LAST_OFFSET_DELTA_AT) + 1;
        note(map, &batch);
    }
}

/* Whether every offset of [first, end), counted from the map's base, is superseded. */
static bool are_superseded(const struct ls_offset_map *map, int64_t first, int64_t end) {
    const uint64_t *words = (const uint64_t *)map->superseded;
    int64_t last = end - 1;
    uint64_t of_first = ~(uint64_t)0 << (first & 63);
    uint64_t of_last = ~(uint64_t)0 >> (63 - (last & 63));
    int64_t word = first >> 6;
    int64_t last_word = last >> 6;
    if (word == last_word) return (words[word] & of_first & of_last) == (of_first & of_last);
    if ((words[word] & of_first) != of_first) return false;
    while (++word < last_word)
        if (words[word] != ~(uint64_t)0) return false;
    return (words[word] & of_last) == of_last;
}

static bool is_passed(const struct ls_offset_map *map, const struct ls_cleaning *cleaning,
                      const struct ls_stretch *stretch) {
    int64_t first = stretch->base_offset - map->base_offset;
    int64_t end = stretch->end_offset - map->base_offset;
    if (first < 0 || first >= end || end > map->superseded_count) return false;
    return are_superseded(map, first, end) &&
           !ls_has_kept_end(cleaning, stretch->base_offset, stretch->end_offset - 1);
}

/* The first stretch at or behind the position of the pieces. */
static int64_t find(const struct ls_offset_map *map, const struct ls_pieces *pieces) {
    const struct ls_stretch *stretches = stretches_of(map);
    int64_t low = 0;
    int64_t high = map->stretch_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const struct ls_stretch *stretch = stretches + middle;
        if (stretch->segment < pieces->segment ||
            (stretch->segment == pieces->segment && stretch->position < pieces->position)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

int64_t ls_pass_stretches(const struct ls_offset_map *map, const struct ls_cleaning *cleaning,
                          struct ls_pieces *pieces, struct ls_cleaned *cleaned) {
    const struct ls_stretch *stretch = stretches_of(map) + find(map, pieces);
    const struct ls_stretch *end = stretches_of(map) + map->stretch_count;
    for (; stretch < end && stretch->segment == pieces->segment; ++stretch) {
        if (stretch->position >= pieces->position + pieces->buffer_size) break;
        if (!is_passed(map, cleaning, stretch)) continue;
        if (stretch->position > pieces->position) return stretch->position;
        pieces->position += stretch->size;
        cleaned->bytes_read += stretch->size;
        cleaned->records_read += stretch->end_offset - stretch->base_offset;
    }
    return pieces->end;
}
