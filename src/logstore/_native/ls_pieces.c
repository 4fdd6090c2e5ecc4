/*
 * ls_pieces.c: batches of a file, read piece by piece, for the two walks of the cleaner: a call for
 * many pieces, as what is between two calls costs as much as a tenth of a piece. Contract:
 * logstore.h.
 */
#include "ls_offset_map.h"

/*
 * Read the next piece, up to `until`. Returns 1: it is held; 0: none is left, or the file ends inside
 * of it, and nothing is held; or < 0.
 */
static int64_t next_piece(ls_io *io, struct ls_pieces *pieces, int64_t until) {
    int64_t size = until - pieces->position;
    if (size > pieces->buffer_size) size = pieces->buffer_size;
    pieces->held_at = pieces->held_size = 0;
    if (size <= 0 || pieces->position >= pieces->pause) return 0;
    int64_t got = ls_io_read_all(io, pieces->fd, (void *)pieces->buffer, size, pieces->position);
    if (got < size) return got < 0 ? got : 0;
    pieces->held_size = size;
    pieces->bytes_read += size;
    return 1;
}

/* Take bytes of the piece. Returns whether the next one is to be read. */
static bool take(struct ls_pieces *pieces, int64_t size, int32_t stop) {
    pieces->position += size;
    pieces->held_at += size;
    pieces->held_size -= size;
    return stop == LS_CLEAN_END || (stop == LS_CLEAN_TORN && size > 0);
}

int64_t ls_map_file(struct ls_offset_map *map, ls_io *io, struct ls_pieces *pieces,
                    int64_t start_offset, struct ls_mapped *mapped) {
    *mapped = (struct ls_mapped){.stop = LS_CLEAN_END};
    bool goes_on = true;
    while (goes_on) {
        int64_t status = next_piece(io, pieces, pieces->end);
        if (status <= 0) return status;
        struct ls_mapped piece;
        ls_map_batches(map, pieces->buffer, pieces->held_size, start_offset, 0, INT64_MAX, &piece);
        mapped->bytes_read += piece.bytes_read;
        mapped->records_read += piece.records_read;
        mapped->null_keys += piece.null_keys;
        mapped->stop = piece.stop;
        ls_note_stretches(map, pieces, piece.bytes_read);
        goes_on = take(pieces, piece.bytes_read, piece.stop);
    }
    return 0;
}

int64_t ls_clean_file(const struct ls_offset_map *map, const struct ls_cleaning *cleaning,
                      ls_io *io, struct ls_pieces *pieces, uintptr_t out, int64_t out_size,
                      uintptr_t runs, int64_t runs_max, struct ls_cleaned *cleaned) {
    *cleaned = (struct ls_cleaned){.stop = LS_CLEAN_END};
    bool goes_on = true;
    while (goes_on) {
        int64_t until = ls_pass_stretches(map, cleaning, pieces, cleaned);
        int64_t status = next_piece(io, pieces, until);
        if (status <= 0) return status;
        struct ls_cleaned piece;
        int64_t written = cleaned->bytes_written;
        ls_clean_batches(map, cleaning, pieces->buffer, pieces->held_size, 0, INT64_MAX,
                         out + (uintptr_t)written, out_size - written, runs, runs_max, &piece);
        cleaned->bytes_read += piece.bytes_read;
        cleaned->bytes_written += piece.bytes_written;
        cleaned->records_read += piece.records_read;
        cleaned->records_retained += piece.records_retained;
        cleaned->records_invalid += piece.records_invalid;
        cleaned->stop = piece.stop;
        goes_on = take(pieces, piece.bytes_read, piece.stop);
    }
    return 0;
}
