/*
 * logstore.h: the native core's interface. What stands between the two CDEF markers is what Python
 * sees (cffi reads it as it is); each function's contract is written here, once.
 *
 * Returns: >= 0 success; -errno (-1 ... -4095) from the kernel; <= -5001 ours (enum ls_error).
 * Damage that a scan finds is a result, not an error. Kernels are pure: no malloc, no locks, no
 * state; memory is the caller's. Handles (ls_io, ls_writer) are made and destroyed explicitly.
 */
#ifndef LOGSTORE_H
#define LOGSTORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CDEF-BEGIN */
enum ls_error {
    LS_E_CORRUPT = -5001,    /* bytes do not parse or fail their CRC */
    LS_E_NO_ROOM = -5002,    /* the caller's buffer is too small */
    LS_E_ROLL = -5003,       /* the segment must roll first; nothing was written */
    LS_E_COMPRESSED = -5004, /* a compressed batch needs the two-step path */
    LS_E_TYPE = -5005,       /* an item of a list has the wrong type; a Python error is set */
    LS_E_SLOW = -5006,       /* the fast path does not apply; use the general one */
    LS_E_POISONED = -5007,   /* an earlier fsync failed */
    LS_E_CLOSED = -5008,     /* the handle is closed */
    LS_E_TOO_LARGE = -5009,  /* a record or batch exceeds a configured bound */
    LS_E_FORKED = -5010,     /* the handle belongs to another process */
    LS_E_LEGACY = -5011,     /* magic 0 or 1 */
    LS_E_CRASHED = -5012,    /* a simulated io reached its crash point */
    LS_E_REFUSED = -5013     /* a record breaks a rule: struct ls_appended says which */
};

/* Why a scan stopped. */
enum ls_stop {
    LS_STOP_END = 0,     /* every byte belongs to a valid batch */
    LS_STOP_TORN = 1,    /* ends inside a batch: as a rule, an unfinished append */
    LS_STOP_INVALID = 2, /* bad magic, length, CRC-32C, record structure or order */
    LS_STOP_FULL = 3,    /* the caller's array is full: go on from valid_bytes */
    LS_STOP_LEGACY = 4   /* a magic 0 or 1 entry: Python continues */
};

/* ---- ls_io: the door to the file system (DESIGN.md D11) ------------------------------------- */
/*
 * A table of functions with a context. Three kinds: the real one, a simulated one that can lose
 * what was not synced, and a failing one that wraps another. An fd is the process's own in all of
 * them. Functions without a word on threads may be called from any thread at any time.
 */
typedef struct ls_io ls_io;

/* The operations that an io counts; ls_io_name gives their names. */
enum ls_io_op {
    LS_IO_OPEN,
    LS_IO_CLOSE,
    LS_IO_PWRITE,
    LS_IO_PWRITEV,
    LS_IO_PREAD,
    LS_IO_FALLOCATE,
    LS_IO_FTRUNCATE,
    LS_IO_FDATASYNC,
    LS_IO_START_WRITEBACK,
    LS_IO_FSYNC_DIR,
    LS_IO_RENAME,
    LS_IO_LINK,
    LS_IO_UNLINK,
    LS_IO_MKDIR,
    LS_IO_RMDIR,
    LS_IO_COPY_FILE_RANGE,
    LS_IO_MAP,
    LS_IO_UNMAP,
    LS_IO_STORED,
    LS_IO_SET_MODIFIED,
    LS_IO_SENDFILE,
    LS_IO_OP_COUNT
};

enum ls_io_map_flag {
    LS_IO_MAP_READ = 1, /* always */
    LS_IO_MAP_STORE = 2 /* shared and writable: every store is reported with ls_io_stored */
};

/* One piece of a gathered write. */
struct ls_io_span {
    uintptr_t bytes;
    int64_t size;
};

/* The operating system's own files. NULL: no memory. It may live as long as the process. */
ls_io *ls_io_real_new(void);
/*
 * Each holder of an io (its maker, a handle, a mapping, an io around it) frees it once; the last one
 * destroys it. Python may collect a handle and its io in any order, so every handle holds its own.
 */
ls_io *ls_io_hold(ls_io *io);
void ls_io_free(ls_io *io);

/* Count operations from now on (tests): one relaxed atomic addition each. Off at first. */
void ls_io_set_counting(ls_io *io, int32_t counting);
int64_t ls_io_count(const ls_io *io, int32_t op);
const char *ls_io_name(int32_t op);

/*
 * One operation each. EINTR is retried; a transfer may be short. Each returns >= 0, -errno, or
 * LS_E_CRASHED from a simulated io. `path` is in the file system's encoding.
 */
/* O_CLOEXEC added; no O_APPEND. */
int64_t ls_io_open(ls_io *io, const char *path, int32_t flags, int32_t mode);
/* The fd is gone in any case. */
int64_t ls_io_close(ls_io *io, int32_t fd);
int64_t ls_io_pwrite(ls_io *io, int32_t fd, const void *bytes, int64_t size, int64_t position);
int64_t ls_io_pwritev(ls_io *io, int32_t fd, const struct ls_io_span *spans, int32_t count,
                      int64_t position);
int64_t ls_io_pread(ls_io *io, int32_t fd, void *bytes, int64_t size, int64_t position);
/* Size kept; -EOPNOTSUPP. */
int64_t ls_io_fallocate(ls_io *io, int32_t fd, int64_t position, int64_t size);
int64_t ls_io_ftruncate(ls_io *io, int32_t fd, int64_t size);
/* Data and size reach the device (F_FULLFSYNC on macOS). */
int64_t ls_io_fdatasync(ls_io *io, int32_t fd);
/*
 * Let the device begin with what fdatasync will wait for: several files are written at the same time,
 * and each sync finds less to do. Promises nothing; 0 where the system knows no such call.
 */
int64_t ls_io_start_writeback(ls_io *io, int32_t fd);
int64_t ls_io_fsync_dir(ls_io *io, const char *path);
int64_t ls_io_rename(ls_io *io, const char *source, const char *target);
int64_t ls_io_link(ls_io *io, const char *source, const char *target);
int64_t ls_io_unlink(ls_io *io, const char *path);
int64_t ls_io_mkdir(ls_io *io, const char *path, int32_t mode);
int64_t ls_io_rmdir(ls_io *io, const char *path);
int64_t ls_io_copy_file_range(ls_io *io, int32_t source, int64_t source_position, int32_t target,
                              int64_t target_position, int64_t size);
/*
 * Bytes of a file to a socket within the kernel. One attempt: -EINTR is the caller's to take, as
 * waiting for a peer has no end; -ENOSYS where nothing but copying is possible.
 */
int64_t ls_io_sendfile(ls_io *io, int32_t socket, int32_t fd, int64_t position, int64_t size);
int64_t ls_io_map(ls_io *io, int32_t fd, int64_t size, int32_t flags, uintptr_t *address);
int64_t ls_io_unmap(ls_io *io, uintptr_t address, int64_t size);
/* Bytes [position, position + size) of a mapping made with LS_IO_MAP_STORE were stored to; call before publishing. */
int64_t ls_io_stored(ls_io *io, uintptr_t address, int64_t position, int64_t size);
/* Mtime, and atime with it. */
int64_t ls_io_set_modified(ls_io *io, const char *path, int64_t modified_ms);

/* Loops over the above until all is done. A write that fails may have written a part. */
/* Size or < 0. */
int64_t ls_io_write_all(ls_io *io, int32_t fd, const void *bytes, int64_t size, int64_t position);
int64_t ls_io_write_all_spans(ls_io *io, int32_t fd, const struct ls_io_span *spans, int32_t count,
                              int64_t position);
/* Short only at the end. */
int64_t ls_io_read_all(ls_io *io, int32_t fd, void *bytes, int64_t size, int64_t position);
/* 1 if these are all the bytes of a file, else 0. */
int64_t ls_io_file_equals(ls_io *io, const char *path, const void *bytes, int64_t size);
/* copy_file_range, or pread and pwrite where that is not possible; short only at the source's end. */
int64_t ls_io_copy_all(ls_io *io, int32_t source, int64_t source_position, int32_t target,
                       int64_t target_position, int64_t size);
/*
 * Give a file new contents, in place: a crash leaves the old ones, the new, or anything in between.
 * One that has a second name leaves it the old ones. `sync`: they survive a power loss on return.
 */
int64_t ls_io_put_file(ls_io *io, const char *path, const void *bytes, int64_t size, bool sync);

/* The files of a segment, several at a time (ls_io_segment.c). */
/*
 * Make the index files of a new segment, empty; those of these names are in nobody's use and are
 * replaced. fds: offset index, time index. After an error neither is there.
 */
int64_t ls_io_create_indexes(ls_io *io, const char *timeindex, const char *index, int32_t fds[2]);

struct ls_segment;
/*
 * Write the last time index entry of a segment that is full, and cut from its three files what is
 * behind their contents. LS_E_SLOW: nothing was done, because there is something in an index that has
 * a second name, and that may not be cut in place. After another error each is as before, or cut.
 */
int64_t ls_io_seal_segment(ls_io *io, const struct ls_segment *segment);

/*
 * fdatasync of several files, all of which the device gets at once. `flushed`: how many are durable,
 * the first ones. An error: why the one behind them is not.
 */
int64_t ls_io_fdatasync_together(ls_io *io, const int32_t *fds, int32_t count, int32_t *flushed);

/*
 * A record lock on the whole file, exclusive, of the open file description (F_OFD_SETLK; of the
 * process where there is none). 0, or -EAGAIN if another holds one, Java's FileLock included.
 */
int64_t ls_io_lock(ls_io *io, int32_t fd);
int64_t ls_io_unlock(ls_io *io, int32_t fd);
/* 1 if another open file holds the lock, else 0; takes nothing, and a read-only fd will do. */
int64_t ls_io_is_locked(ls_io *io, int32_t fd);
/* Whether locks belong to open files: then another fd does not get what this process has. */
bool ls_io_locks_are_of_files(void);

/* ---- ls_io: simulated, for tests (ls_io_sim*.c) --------------------------------------------- */
/* What a power loss may do to what was not synced; without any, all of it is kept. */
enum ls_io_sim_fault {
    LS_IO_SIM_DROP = 1,    /* a page's changes, or everything, is lost */
    LS_IO_SIM_TEAR = 2,    /* a part of a page's changes is lost */
    LS_IO_SIM_GARBAGE = 4, /* the bytes written in a page are anything */
    LS_IO_SIM_SIZE = 8,    /* a size is the old one, the new one, or between */
    LS_IO_SIM_NAMES = 16,  /* changes of directory entries are lost, in any order */
    LS_IO_SIM_ALL = 31
};

/*
 * Real files with a memory of what was not synced. The crash comes in operation `crash_at` (the
 * first is 1; 0: never; only those that change or sync something are counted), which may be done in
 * part; from then on every call fails with LS_E_CRASHED, but for close and unmap. The same seed and
 * calls give the same crash.
 */
ls_io *ls_io_sim_new(uint64_t seed, int64_t crash_at, int32_t faults);
int64_t ls_io_sim_operations(ls_io *io);
int64_t ls_io_sim_set_crash_at(ls_io *io, int64_t crash_at);
int64_t ls_io_sim_has_crashed(ls_io *io);
/* Files and entries with changes that a power loss may take. */
int64_t ls_io_sim_unsynced(ls_io *io);
/*
 * Crash now, if it has not yet, and leave the real files as they would be found afterwards: after a
 * power loss, or, without, after the end of the process alone. Descriptors opened here lead nowhere
 * from then on, so that record locks end, and files are cut by putting shorter ones in their place,
 * so that old mappings stay good. A second crash changes nothing.
 */
int64_t ls_io_sim_crash(ls_io *io, int32_t power_loss);

/* ---- ls_io: failing, for tests (ls_io_fail.c) ----------------------------------------------- */
enum ls_io_fail_op { LS_IO_FAIL_ANY = -1 };

/* An io that does what `inner` does until a rule or the budget says otherwise; it holds inner. */
ls_io *ls_io_fail_new(ls_io *inner);
/*
 * Let the at-th call of `op` from now (1: the next) fail with `error`, or, with error 0, transfer
 * half; for_ever: every later one too. Nothing of a failing call is done, but a close closes.
 * LS_E_NO_ROOM: too many rules.
 */
int64_t ls_io_fail_add(ls_io *io, int32_t op, int32_t error, int64_t at, int32_t for_ever);
int64_t ls_io_fail_clear(ls_io *io); /* of rules; the budget stays */
int64_t ls_io_fail_calls(ls_io *io, int32_t op);
/* Bytes by which files may grow before ENOSPC, -1: any. Cut and deleted bytes are given back. */
int64_t ls_io_fail_set_budget(ls_io *io, int64_t bytes);
int64_t ls_io_fail_budget(ls_io *io);

/* ---- v2 batch headers ----------------------------------------------------------------------- */
/* One parsed header; numpy reads an array of these as a structured dtype (_native.BATCH_DTYPE). */
struct ls_batch {
    int64_t position; /* of its first byte, relative to the scan's `position` argument + start */
    int64_t base_offset;
    int64_t last_offset;    /* base_offset + lastOffsetDelta */
    int64_t base_timestamp; /* or the delete horizon, attribute bit 6 */
    int64_t max_timestamp;
    int64_t producer_id;
    int64_t size_bytes; /* 12 + length */
    int32_t leader_epoch;
    int32_t base_sequence;
    int32_t record_count;
    uint32_t crc;
    int16_t attributes;
    int16_t producer_epoch;
    int8_t magic;
    int8_t crc_ok; /* 1 verified, 0 wrong, -1 not checked */
    int16_t reserved;
};

struct ls_scan {
    int64_t valid_bytes; /* end of the last valid batch, relative to `bytes` */
    int64_t next_offset; /* last valid offset + 1 */
    int64_t batch_count; /* entries written to `batches` */
    int32_t stop;        /* enum ls_stop */
    int32_t reserved;
};

/* ---- columns -------------------------------------------------------------------------------- */
/*
 * Records to encode, as columns. Addresses are uintptr_t so that numpy and Arrow buffers pass
 * without a cast per call; 0 means "this column is absent".
 */
struct ls_columns {
    uintptr_t values;         /* value bytes, contiguous */
    uintptr_t value_offsets;  /* count + 1 int32 or int64, ascending: see offset_width */
    uintptr_t value_validity; /* Arrow bitmap (LSB first), 0: no null value */
    uintptr_t keys;           /* key bytes; 0 and key_offsets 0: every key is null */
    uintptr_t key_offsets;
    uintptr_t key_validity;
    uintptr_t timestamps;     /* int64 ms, count; 0: `timestamp` for all */
    uintptr_t headers;        /* headersCount + headers of each, as the format has them */
    uintptr_t header_offsets; /* count + 1 int64; 0: no headers. A record without bytes has none. */
    int64_t timestamp;        /* used when timestamps == 0 */
    int64_t count;
    int64_t bit_offset;  /* first bit of both validity bitmaps (Arrow slices) */
    int64_t values_size; /* bytes of values, keys, headers: no offset may exceed it */
    int64_t keys_size;
    int64_t headers_size;
    int64_t values_slack; /* bytes readable past values_size; 0 is always right */
    int64_t keys_slack;
    int32_t value_offset_width; /* 4 or 8 */
    int32_t key_offset_width;   /* 4 or 8 */
};

/* What every batch of one encode carries. */
struct ls_batch_fields {
    int64_t base_offset;     /* of the first record */
    int64_t producer_id;     /* -1 none */
    int64_t log_append_time; /* >= 0: LogAppendTime, written as max_timestamp; -1: CreateTime */
    int64_t delete_horizon;  /* >= 0: bit 6 and base_timestamp; -1 none */
    int32_t leader_epoch;
    int32_t base_sequence;  /* -1 none */
    int16_t producer_epoch; /* -1 none */
    int16_t attributes;     /* bits 3 and 6 follow from the two fields above */
    int32_t batch_bytes;    /* target size of a batch, 61 + at least one record */
};

struct ls_encoded {
    int64_t size_bytes;     /* bytes written */
    int64_t record_count;   /* records consumed */
    int64_t base_timestamp; /* of the first record, or delete_horizon */
    int64_t max_timestamp;  /* of these records (-1 at least), or log_append_time */
};

/* ---- kernels: CRC-32C (ls_crc32c.c) --------------------------------------------------------- */
enum ls_crc_variant {
    LS_CRC_TABLE,
    LS_CRC_SSE42,
    LS_CRC_SSE42_3WAY,
    LS_CRC_VPCLMUL,
    LS_CRC_FUSED,
    LS_CRC_ARMV8,
    LS_CRC_VARIANT_COUNT
};

/* CRC-32C of `size` bytes; `crc` is 0 to start, or the result for the bytes before. */
uint32_t ls_crc32c(uint32_t crc, uintptr_t bytes, int64_t size);
/* The same by one variant, for tests. Returns -1 if this machine does not have it. */
int64_t ls_crc32c_with(int32_t variant, uint32_t crc, uintptr_t bytes, int64_t size);

/* ---- kernels: partitioning (ls_murmur2.c) --------------------------------------------------- */
/* Kafka's murmur2 of `size` bytes, >= 0: Utils.murmur2, of which producers use the low 31 bits. */
uint32_t ls_murmur2(uintptr_t bytes, int64_t size);
/*
 * Write the partition of each key of `columns` to `out`, int32 of shape (count,): its murmur2
 * without the sign bit, modulo `partitions` > 0; -1 where the key is null. Returns 0, or
 * LS_E_CORRUPT: offsets descend or exceed the data.
 */
int64_t ls_partition_keys(const struct ls_columns *columns, int32_t partitions, uintptr_t out);
/*
 * Order `count` records by their partitions, int32 in [0, partitions): `order`, int64 of shape
 * (count,), has the indices of partition 0, then those of 1, and so on, each ascending; those of p
 * begin at starts[p], int64 of shape (partitions + 1,). Returns 0, or LS_E_CORRUPT: one is outside.
 */
int64_t ls_group_partitions(uintptr_t partition_numbers, int64_t count, int32_t partitions,
                            uintptr_t starts, uintptr_t order);

/* ---- kernels: compaction (ls_offset_map.c, ls_clean.c, ls_pieces.c, ls_stretches.c) --------- */
/*
 * The last offset of each key: open addressing over the caller's memory, which is all
 * zeros at first. A slot has the key, if that has up to 8 bytes, or 87 bits of its SipHash-2-4-128,
 * beside those that say where it is; and 40 bits of offset, counted from base_offset.
 *
 * While offsets ascend and every record has a key, the map also notes which offsets are superseded,
 * as far as there is memory for it: what a key's later record makes go needs no second look-up. And
 * it notes where in the files the batches were whose CRC was right: of a stretch in which every
 * offset is superseded, nothing needs a second reading.
 */
enum { LS_OFFSET_MAP_ENTRY_BYTES = 16 };
struct ls_offset_map {
    uintptr_t entries;        /* slot_count * LS_OFFSET_MAP_ENTRY_BYTES */
    int64_t slot_count;       /* > 0 */
    int64_t entry_count;      /* keys in the map */
    int64_t entries_max;      /* ls_map_batches stops at this many; <= slot_count */
    int64_t base_offset;      /* none below is put; moved up as long as the map is empty */
    int64_t latest_offset;    /* the greatest offset put or seen; -1 */
    uintptr_t superseded;     /* a bit for each offset from base_offset on, in words of 64 */
    int64_t superseded_count; /* bits there; 0: nothing is known */
    uintptr_t stretches;      /* struct ls_stretch, ascending */
    int64_t stretch_count;
    int64_t stretches_max; /* that there is room for; when it is taken, neighbours become one */
    int64_t stretch_bytes; /* of neighbours that are one, at most; > 0 */
    uint64_t secret[2];    /* of the hash */
};

/* Neighbouring batches of one file, which ls_map_file has put whole. */
struct ls_stretch {
    int64_t segment; /* as the pieces say it */
    int64_t position;
    int64_t size;
    int64_t base_offset;
    int64_t end_offset;
};

/* Whether one more key may be put at this offset; it may be the first and far above the base. */
int64_t ls_offset_map_has_room(struct ls_offset_map *map, int64_t offset);

/* SipHash-2-4 with 128 bits of `size` bytes. */
void ls_siphash128(const uint64_t *secret, uintptr_t bytes, int64_t size, uint64_t *hash);
/*
 * Put one key; LS_E_NO_ROOM: there is no slot left, or the offset is out of reach. An offset that is
 * there is replaced.
 */
int64_t ls_offset_map_put(struct ls_offset_map *map, uintptr_t key, int64_t size, int64_t offset);
/* The last offset put for a key, or -1. */
int64_t ls_offset_map_get(const struct ls_offset_map *map, uintptr_t key, int64_t size);

/* Why a walk over batches stopped; what is not LS_CLEAN_END is about the batch at `bytes_read`. */
enum ls_clean_stop {
    LS_CLEAN_END = 0,
    LS_CLEAN_TORN = 1,    /* ends inside a batch */
    LS_CLEAN_INVALID = 2, /* bad magic, length or CRC-32C; a record breaks the format */
    LS_CLEAN_LEGACY = 3,  /* magic 0 or 1 */
    LS_CLEAN_SPECIAL = 4, /* compressed, control, or transactional: Python decides */
    LS_CLEAN_FULL = 5,    /* the map has entries_max keys; or the output, or the runs, no room */
    LS_CLEAN_TAKEN = 6    /* batches_max batches were taken */
};
enum ls_clean_flag { LS_CLEAN_TRANSACTIONAL = 1 /* transactional batches are nothing special */ };

struct ls_mapped {
    int64_t bytes_read;
    int64_t records_read;
    int64_t null_keys; /* records without a key, from start_offset on */
    int32_t stop;      /* enum ls_clean_stop */
    int32_t reserved;
};

/*
 * Put every record that has a key and an offset >= start_offset, batch by batch; each batch that is
 * done raises latest_offset to its last one. A full map stops at once, also inside a batch.
 */
void ls_map_batches(struct ls_offset_map *map, uintptr_t bytes, int64_t size, int64_t start_offset,
                    int32_t flags, int64_t batches_max, struct ls_mapped *mapped);
/* The same for one plain records section; latest_offset does not get to the batch's last offset. */
void ls_map_section(struct ls_offset_map *map, uintptr_t section, int64_t size,
                    int32_t record_count, int64_t base_offset, int32_t last_offset_delta,
                    int64_t start_offset, struct ls_mapped *mapped);

/* Batches of a file, read piece by piece, and what of the last piece was not taken. */
struct ls_pieces {
    uintptr_t buffer;
    int64_t buffer_size; /* > 0 */
    int64_t position;    /* of the first byte that was not taken */
    int64_t pause;       /* from there on no further piece is read */
    int64_t end;
    int64_t held_at; /* where in the buffer that byte is */
    int64_t held_size;
    int64_t bytes_read; /* of the file, whatever became of them */
    int64_t segment;    /* says which file it is: its base offset */
    int32_t fd;
    int32_t reserved;
};

/*
 * ls_map_batches of all pieces up to the first that needs more than that, or is cut off; `mapped`
 * says why. Returns 0, or < 0: it could not be read.
 */
int64_t ls_map_file(struct ls_offset_map *map, ls_io *io, struct ls_pieces *pieces,
                    int64_t start_offset, struct ls_mapped *mapped);

/* Neighbours that stay, by positions in their section. */
struct ls_run {
    int32_t begin;
    int32_t end;
};

/* What decides about the records of a batch. */
struct ls_cleaning {
    int64_t now_ms;
    int64_t delete_horizon; /* that batches get whose tombstones stay */
    uintptr_t kept_ends;    /* int64, ascending: batches with these last offsets stay if emptied */
    int64_t kept_end_count;
};

/* What a walk has done; of ls_clean_section only about one section. */
struct ls_cleaned {
    int64_t bytes_read;
    int64_t bytes_written;
    int64_t records_read;
    int64_t records_retained;
    int64_t records_invalid; /* without a key, below the map's end */
    int64_t
        base_timestamp; /* ls_clean_section: of the new batch: the first record's, or a horizon */
    int64_t max_timestamp; /* ls_clean_section: of the records that stay, or the log append time */
    int32_t stop;          /* enum ls_clean_stop */
    int32_t has_horizon;   /* ls_clean_section: base_timestamp is one */
    int32_t is_unchanged;  /* ls_clean_section: every byte can stay as it is; nothing was written */
    int32_t reserved;
};

/*
 * Copy what a round retains of uncompressed v2 batches to `out`: whole batches if nothing is
 * dropped, else new ones with the records that stay. `runs` is scratch memory for half as many as
 * a batch has records, and one.
 * Room in `out` for a batch and 14 bytes more per record always suffices for it.
 * Source: Kafka Cleaner, MemoryRecords.filterTo; spec 7.4.
 */
void ls_clean_batches(const struct ls_offset_map *map, const struct ls_cleaning *cleaning,
                      uintptr_t bytes, int64_t size, int32_t flags, int64_t batches_max,
                      uintptr_t out, int64_t out_size, uintptr_t runs, int64_t runs_max,
                      struct ls_cleaned *cleaned);
/*
 * The same of all pieces, as ls_map_file does it; 0, or < 0: it could not be read. Stretches of which
 * nothing stays are not read, but counted.
 */
int64_t ls_clean_file(const struct ls_offset_map *map, const struct ls_cleaning *cleaning,
                      ls_io *io, struct ls_pieces *pieces, uintptr_t out, int64_t out_size,
                      uintptr_t runs, int64_t runs_max, struct ls_cleaned *cleaned);
/*
 * The same for one plain records section of the batch whose 61 header bytes are at `header`; what
 * stays of the section goes to `out`. LS_CLEAN_END, LS_CLEAN_INVALID or LS_CLEAN_FULL.
 */
void ls_clean_section(const struct ls_offset_map *map, const struct ls_cleaning *cleaning,
                      uintptr_t header, uintptr_t section, int64_t size, uintptr_t out,
                      int64_t out_size, uintptr_t runs, int64_t runs_max,
                      struct ls_cleaned *cleaned);

/* ---- kernels: scan (ls_scan.c) -------------------------------------------------------------- */
enum ls_scan_flag {
    LS_SCAN_CRC = 1,     /* verify each batch's CRC-32C */
    LS_SCAN_RECORDS = 2, /* if it is not compressed, the structure of every record */
    LS_SCAN_ORDER = 4    /* base offsets not below next_offset: recovery, not the wire */
};

enum ls_check_flag {
    LS_CHECK_SEQUENTIAL = 1, /* offset deltas are 0, 1, 2, ...: can stay as they are */
    LS_CHECK_INCREASING = 2, /* offset deltas are >= 0 and strictly increasing */
    LS_CHECK_SKIPPED = 4     /* the batch is compressed: nothing below was looked at */
};

/* What a leader's validator must know of the records of one batch (spec 5.4). */
struct ls_record_check {
    int64_t max_timestamp;      /* of the records themselves, from -1 up as in Kafka */
    int64_t min_timestamp;      /* of the records themselves; INT64_MAX without records */
    int32_t timestamps_outside; /* timestamps not -1 and outside the given bounds */
    int32_t null_keys;          /* records with a null key */
    int32_t last_offset_delta;  /* of the last record, -1 without records */
    int32_t flags;              /* enum ls_check_flag */
};

/*
 * Walk entries and stop at the first that is not a valid v2 batch.
 * `position` is added to each ls_batch.position. `batches` may be 0 with cap 0: only count.
 * Fills *scan; returns the number of valid batches. Cost: one CRC pass with LS_SCAN_CRC.
 */
int64_t ls_scan_batches(uintptr_t bytes, int64_t size, int64_t position, int64_t next_offset,
                        int32_t flags, uintptr_t batches, int64_t cap, struct ls_scan *scan);

/*
 * The same, in the same pass over each batch: what the validator needs, in `checks` (cap structs
 * ls_record_check, parallel to `batches`; not 0). Implies LS_SCAN_RECORDS. Timestamps other than
 * -1 outside [lowest, highest] are counted.
 */
int64_t ls_scan_checked(uintptr_t bytes, int64_t size, int64_t position, int64_t next_offset,
                        int32_t flags, uintptr_t batches, uintptr_t checks, int64_t cap,
                        int64_t lowest_timestamp, int64_t highest_timestamp, struct ls_scan *scan);

/* Check one records section (plain, or decompressed) as ls_scan_checked does. 0 or LS_E_CORRUPT. */
int64_t ls_check_records(uintptr_t section, int64_t size, int32_t record_count,
                         int64_t base_timestamp, int64_t lowest_timestamp,
                         int64_t highest_timestamp, struct ls_record_check *check);

/*
 * Position of the first entry whose last offset >= offset, walking headers only (magic 0 and 1
 * too); -1: none that is complete up to its header before `size`; LS_E_CORRUPT: a length or magic
 * is wrong.
 */
int64_t ls_find_batch(uintptr_t bytes, int64_t size, int64_t offset);

/* ---- kernels: headers of scanned batches (ls_assign.c) --------------------------------------- */
/*
 * Both change `count` batches of format 2 in place, and `batches` with them, which says where they
 * are: batches[i].position is relative to `bytes`. Their CRCs have to be right: the new ones come
 * from them and from what changes in the headers, without a pass over the records, so that bytes
 * that are damaged meanwhile stay so for who verifies them. LS_E_CORRUPT: a batch is not inside
 * `size`, or is not of format 2; those before it are changed.
 */

/*
 * Assign offsets (spec 5.4, path 1): base offset from next_offset on, leader epoch, and max
 * timestamp and type. log_append_time >= 0 stamps it; otherwise CreateTime, with
 * checks[i].max_timestamp (the header's own if the check was skipped, or checks is 0). Returns the
 * next offset.
 */
int64_t ls_assign_batches(uintptr_t bytes, int64_t size, uintptr_t batches, uintptr_t checks,
                          int64_t count, int64_t next_offset, int32_t leader_epoch,
                          int64_t log_append_time);

/*
 * Make batches one producer's, in its transaction: id, epoch, sequence numbers from base_sequence
 * on, of which 2^31 - 1 is followed by 0. Returns the next one.
 */
int64_t ls_number_batches(uintptr_t bytes, int64_t size, uintptr_t batches, int64_t count,
                          int64_t producer_id, int16_t producer_epoch, int32_t base_sequence);

/* ---- kernels: index (ls_index.c) ------------------------------------------------------------ */
/* What LogSegment.append keeps from batch to batch (spec 4.2, 4.7). */
struct ls_index_state {
    int64_t base_offset;
    int64_t bytes_since_last_index_entry;
    int64_t max_timestamp; /* so far, -1 none */
    int64_t offset_of_max_timestamp;
    int64_t last_time_entry_timestamp; /* of the time index, -1 when empty */
    int64_t last_time_entry_offset;
    int64_t offset_entries_room; /* entries that still fit, decreased as they are made */
    int64_t time_entries_room;   /* one slot is kept for the final entry by the caller */
    int32_t index_interval_bytes;
    int32_t reserved;
};
struct ls_index_made {
    int64_t batches;
    int64_t offset_entries;
    int64_t time_entries;
};

/*
 * Append Kafka's entries for `count` batches to two arrays (8 and 12 bytes an entry, big-endian).
 * An index without room gets no further entry: its segment rolls next, nothing fails (Kafka does).
 * `position` in the batches is the one in the segment file.
 * Returns the number of batches done: fewer than `count` if an array (its _cap entries) is full; go
 * on from there. LS_E_TOO_LARGE: an offset or position does not fit 31 bits; the batches before it
 * are done, and made->batches says how many.
 */
int64_t ls_index_batches(uintptr_t batches, int64_t count, struct ls_index_state *state,
                         uintptr_t offset_entries, int64_t offset_cap, uintptr_t time_entries,
                         int64_t time_cap, struct ls_index_made *made);

/* ---- recovery of a segment that needs no change (ls_recover.c) -------------------------------- */
struct ls_plain_segment {
    struct ls_index_state index; /* of an empty segment; afterwards as its batches leave it */
    int64_t size_bytes;          /* of the .log file */
    int64_t next_offset;         /* found */
    int32_t leader_epoch;        /* no batch has a higher one; -1: none has one */
    int32_t reserved;
};

/*
 * Whether the .log file is plain and both indexes are what its recovery would make them. Plain are
 * whole v2 batches with a right CRC and rising offsets from the base offset on, of no producer and no
 * new leader epoch: nothing but the indexes follows from them.
 * `buffer` takes the file; the entries are made in two arrays of `entries_cap` entries (8 and 12
 * bytes an entry), which have to suffice. false: it is not so, or a file cannot be read: look at it
 * in another way, which tells why.
 */
bool ls_is_plain_segment(ls_io *io, const char *log, const char *offset_index,
                         const char *time_index, uintptr_t buffer, uintptr_t offset_entries,
                         uintptr_t time_entries, int64_t entries_cap,
                         struct ls_plain_segment *segment);

/* Entries are as in the file. Slot of the last with relative offset <= target, or -1. */
int64_t ls_offset_index_lookup(uintptr_t entries, int64_t count, uint32_t relative_offset);
/* Slot of the first entry with position >= target, or -1. */
int64_t ls_offset_index_upper_bound(uintptr_t entries, int64_t count, int64_t position);
/* Slot of the last entry with timestamp <= target / relative offset <= target, or -1. */
int64_t ls_time_index_lookup(uintptr_t entries, int64_t count, int64_t timestamp);
int64_t ls_time_index_lookup_offset(uintptr_t entries, int64_t count, uint32_t relative_offset);
/*
 * First slot that breaks the order, or -1. Offset index: relative offsets and positions strictly
 * increase, both within 31 bits. Time index: timestamps >= 0 strictly increase, offsets do not
 * decrease.
 */
int64_t ls_offset_index_check(uintptr_t entries, int64_t count);
int64_t ls_time_index_check(uintptr_t entries, int64_t count);

/* ---- kernels: encode (ls_encode.c) ---------------------------------------------------------- */
enum ls_encode_limit {
    LS_ENCODE_SLACK = 256 /* bytes behind the encoded ones that an encoder may overwrite */
};

/*
 * Encode records [first, ...) of `columns` into one complete v2 batch with CRC, as many as fit
 * fields->batch_bytes (always at least one). `out` needs room for batch_bytes, or for the first
 * record if that is larger (61 + ls_record_bound(columns, first, 1)), plus LS_ENCODE_SLACK bytes
 * that may be overwritten; with less, fewer records are taken. Not for compressed batches: those go
 * through ls_encode_records.
 * Returns bytes written, or (nothing usable written) LS_E_NO_ROOM: the first record does not fit
 * `out`; LS_E_TOO_LARGE: it is over 2^31 - 1 bytes; LS_E_CORRUPT: a column's offsets descend or
 * exceed its size.
 */
int64_t ls_encode_batch(const struct ls_columns *columns, int64_t first,
                        const struct ls_batch_fields *fields, uintptr_t out, int64_t out_cap,
                        struct ls_encoded *encoded);
/* A batch that grows from one call to the next; all zero but for its memory: it is empty. */
struct ls_growing {
    uintptr_t batch;        /* header, records, LS_ENCODE_SLACK */
    int64_t batch_cap;      /* bytes there */
    int64_t size_bytes;     /* header and records so far */
    int64_t record_count;   /* records so far */
    int64_t base_timestamp; /* of the first record */
    int64_t max_timestamp;  /* of all, -1 at least */
};
/*
 * Put records behind those of a batch, as many as fit batch_bytes and its memory: those of the rows
 * rows[first, first + count), int64 indices within columns->count; rows 0: of rows [first, first +
 * count) themselves. The first record of a batch may be larger than batch_bytes. ls_seal_batch makes
 * the header, from what `growing` says.
 * Returns how many were put, or (the batch is as before) LS_E_NO_ROOM: the first record does not fit
 * the memory; LS_E_TOO_LARGE and LS_E_CORRUPT as ls_encode_batch.
 */
int64_t ls_grow_batch(const struct ls_columns *columns, uintptr_t rows, int64_t first,
                      int64_t count, int32_t batch_bytes, struct ls_growing *growing);
/* Chosen at run time; a test asks for each. */
enum ls_encode_variant { LS_ENCODE_BEST, LS_ENCODE_PORTABLE, LS_ENCODE_AVX2 };
/* ls_encode_records by one variant; LS_E_SLOW if this machine does not have it. */
int64_t ls_encode_records_with(int32_t variant, const struct ls_columns *columns, int64_t first,
                               const struct ls_batch_fields *fields, uintptr_t out, int64_t out_cap,
                               struct ls_encoded *encoded);
/*
 * The same without header and CRC: the records section alone, for a codec to compress. Room:
 * LS_ENCODE_SLACK more than the bytes, too.
 */
int64_t ls_encode_records(const struct ls_columns *columns, int64_t first,
                          const struct ls_batch_fields *fields, uintptr_t out, int64_t out_cap,
                          struct ls_encoded *encoded);
/*
 * Put together the headers of `rows` records from lists of names (keys) and values: row i has the
 * items up to row_ends[i], int64, behind those of row i - 1. Written to `out` as the format has
 * them, those of row i from out_offsets[i] on, int64 of shape (rows + 1,); a row without items has
 * no bytes. Room: 5 bytes a row, 10 an item, names, values, and LS_ENCODE_SLACK. Returns the bytes,
 * or LS_E_CORRUPT: offsets or ends descend or exceed the data.
 */
int64_t ls_encode_headers(const struct ls_columns *headers, uintptr_t row_ends, int64_t rows,
                          uintptr_t out, uintptr_t out_offsets);
/*
 * Upper bound of the encoded bytes of records [first, first + count), without batch headers.
 * LS_E_CORRUPT: offsets of a column descend or exceed its size. Cost: O(1).
 */
int64_t ls_record_bound(const struct ls_columns *columns, int64_t first, int64_t count);
/*
 * Write header and CRC of a batch whose `size` - 61 bytes of records (perhaps compressed) are in
 * place. max_timestamp is replaced by fields->log_append_time, base_timestamp by
 * fields->delete_horizon, where these are >= 0. Returns size, or LS_E_TOO_LARGE.
 */
int64_t ls_seal_batch(uintptr_t batch, int64_t size, const struct ls_batch_fields *fields,
                      int64_t base_timestamp, int64_t max_timestamp, int32_t last_offset_delta,
                      int32_t record_count);

/* ---- kernels: decode (ls_decode.c) ---------------------------------------------------------- */
/* Where each record's parts are, relative to `section`. Any pointer may be 0: not wanted. */
struct ls_record_columns {
    uintptr_t offsets;          /* int64 */
    uintptr_t timestamps;       /* int64 */
    uintptr_t key_positions;    /* int64 */
    uintptr_t key_sizes;        /* int32, -1 null */
    uintptr_t value_positions;  /* int64 */
    uintptr_t value_sizes;      /* int32, -1 null */
    uintptr_t header_positions; /* int64, of the headersCount varint */
    uintptr_t header_sizes;     /* int32, bytes from there to the record's end */
};
/*
 * Decode the records section of one batch (plain, or already decompressed). Checks everything that
 * spec 1.4 lists, headers included, and that no byte is left. `log_append_time` >= 0 replaces
 * timestamps. Returns record_count, or LS_E_CORRUPT.
 */
int64_t ls_decode_records(uintptr_t section, int64_t size, int64_t base_offset,
                          int64_t base_timestamp, int64_t log_append_time, int32_t record_count,
                          const struct ls_record_columns *columns);
/*
 * Position in `section` of the first record with an offset delta >= offset_delta; -1: none;
 * LS_E_CORRUPT. Reads lengths and deltas only. *found_delta gets its offset delta.
 */
int64_t ls_find_record(uintptr_t section, int64_t size, int32_t record_count, int32_t offset_delta,
                       int32_t *found_delta);
/* The same from record number `index`, which is at `record`, on; `size` bytes are left from there. */
int64_t ls_find_record_from(uintptr_t record, int64_t size, int32_t index, int32_t record_count,
                            int32_t offset_delta, int32_t *found_delta);

/* ---- kernels: gather (ls_columns.c) --------------------------------------------------------- */
/*
 * Records as the columns of an Arrow record batch, decoded and copied in one pass. A caller fills one
 * batch by several calls: each appends rows to what is there, until it says that a column is full.
 */
enum ls_gather_flag {
    LS_GATHER_CRC = 1,           /* verify each batch's CRC-32C right before it is decoded */
    LS_GATHER_TRANSACTIONAL = 2, /* deliver transactional batches: none here was aborted */
    LS_GATHER_PASS_CONTROL = 4,  /* step over control batches: nobody has to look at them */
    LS_GATHER_COUNT = 8 /* of batches wholly within the offsets only add up record counts */
};
enum ls_gather_limit {
    LS_GATHER_SLACK = 256, /* bytes behind a column's capacity that may be overwritten */
    LS_GATHER_VIEW_BYTES =
        16 /* a view: int32 size; 12 bytes, or 4 of them, int32 buffer, int32 position */
};
/* What has no room for the next record, after LS_BLOCK_FULL. */
enum ls_gather_full {
    LS_GATHER_FULL_ROWS,
    LS_GATHER_FULL_KEYS,
    LS_GATHER_FULL_VALUES,
    LS_GATHER_FULL_HEADERS
};

/* A column of type binary, or of views into the bytes that are decoded. */
struct ls_gather_bytes {
    uintptr_t offsets;  /* rows_max + 1 int32, or rows_max views; 0: the column is not wanted */
    uintptr_t validity; /* bitmap of rows_max bits */
    uintptr_t bytes;    /* capacity + LS_GATHER_SLACK bytes; not used by views */
    int64_t capacity;   /* at most 2^31 - 1 */
    int64_t size;       /* bytes so far */
    int64_t null_count;
};

/* A column of type list<struct<key: string, value: binary>>. */
struct ls_gather_headers {
    uintptr_t offsets;            /* rows_max + 1 int32; 0: not wanted */
    struct ls_gather_bytes names; /* of the list's items; without a bitmap */
    struct ls_gather_bytes values;
    int64_t count; /* items so far */
    int64_t count_max;
    int64_t wanted_names; /* after LS_GATHER_FULL_HEADERS: what the record needs, */
    int64_t wanted_values;
    int64_t wanted_count;
};

struct ls_gather {
    int64_t start_offset;    /* records below are skipped; on return the next to deliver */
    int64_t stop_offset;     /* exclusive */
    int64_t position;        /* of the batch to go on with, relative to `bytes` */
    int64_t record_position; /* in it, of the next record, if the batch was begun, else 0 */
    int64_t base_offset_min; /* of that batch; on return the last one's end; -1: any */
    int64_t rows;            /* so far */
    int64_t rows_max;
    int64_t wanted;       /* after LS_GATHER_FULL_KEYS or _VALUES: bytes the record needs there */
    uintptr_t offsets;    /* int64; any of these 0: not wanted */
    uintptr_t timestamps; /* int64 */
    uintptr_t timestamp_types; /* int32 */
    uintptr_t leader_epochs;   /* int32 */
    struct ls_gather_bytes keys;
    struct ls_gather_bytes values;
    struct ls_gather_headers headers;
    uintptr_t view_base;  /* 0: bytes are copied; else what positions in views count from */
    int32_t view_buffer;  /* number that views give their buffer */
    int32_t record_index; /* records of the batch that come before record_position */
    int32_t flags;        /* enum ls_gather_flag */
    int32_t full;         /* enum ls_gather_full, after LS_BLOCK_FULL */
};

/* A records section that was compressed, and what its records share. */
struct ls_section {
    int64_t base_offset;
    int64_t base_timestamp;
    int64_t max_timestamp;
    int32_t last_offset_delta;
    int32_t record_count;
    int32_t leader_epoch;
    int32_t timestamp_type; /* 1: every record has max_timestamp */
};

/*
 * Append the records of plain v2 batches in [bytes + position, bytes + size) as rows. Returns an
 * enum ls_block_stop; the rows of a batch that is damaged are not there. Reads nothing outside
 * [bytes, bytes + size). With views, all of it lies within 2^31 - 1 bytes of view_base. Names that
 * are not UTF-8 get U+FFFD for each malformed part, as Kafka's clients do. Where LS_GATHER_CRC is set
 * and a batch's header says all that is wanted of its records, they are not decoded, and it may be
 * compressed.
 */
int64_t ls_gather_batches(uintptr_t bytes, int64_t size, struct ls_gather *gather);
/*
 * The same for one section: LS_BLOCK_END (position is then `size`), FULL, BOUND or INVALID.
 * record_position and record_index say where to go on in it.
 */
int64_t ls_gather_section(uintptr_t bytes, int64_t size, const struct ls_section *section,
                          struct ls_gather *gather);

/* ---- writer (ls_writer*.c): the writing end of the active segment --------------------------- */
/*
 * It owns the staging buffer, one lock and the published log end offset. The descriptors are the
 * caller's, leased for as long as a segment is attached.
 *
 * Threads: any thread may call anything. What has a parameter may_wait returns LS_E_SLOW instead of
 * waiting for a lock if that is false: the only way to call it with the GIL held. Bulk appends
 * exclude each other; an exclusive section keeps away what asks for LS_WRITER_FAST: single appends
 * (ls_py_log.c), which never wait, and plain bulk ones. Entering it waits for the last of them.
 * Durability: written, not flushed; flushing is the caller's, on its own lease, without the lock.
 * Failure: an append that fails leaves state and file as before. If the file cannot be cut back
 * at once, that happens before the next append.
 * A child made by fork gets LS_E_FORKED from everything that writes.
 */
typedef struct ls_pool ls_pool;
typedef struct ls_writer ls_writer;

/* A segment to attach, and the state of the attached one. */
struct ls_segment {
    int64_t base_offset;
    int64_t next_offset; /* log end offset */
    int64_t size_bytes;
    int64_t offset_entry_count;
    int64_t offset_entries_max;
    int64_t time_entry_count;
    int64_t time_entries_max;
    int64_t last_time_entry_timestamp; /* -1 when empty */
    int64_t last_time_entry_offset;
    int64_t bytes_since_last_index_entry;
    int64_t max_timestamp; /* -1 none */
    int64_t offset_of_max_timestamp;
    int64_t rolling_based_timestamp; /* max timestamp of the first batch; INT64_MIN before it */
    int64_t created_ms;
    int64_t segment_ms; /* without the jitter */
    int32_t log_fd;
    int32_t index_fd;
    int32_t timeindex_fd;
    int32_t reserved;
};

enum ls_writer_flag {
    LS_WRITER_LOG_APPEND_TIME = 1, /* message.timestamp.type */
    LS_WRITER_KEY_REQUIRED = 2,    /* the topic is compacted */
    LS_WRITER_FAST = 4             /* single and plain bulk appends may bypass Python */
};

struct ls_writer_config {
    int64_t segment_bytes;
    int64_t max_message_bytes;
    int64_t preallocate_bytes; /* most to allocate ahead; 0: never */
    int64_t timestamp_before_max_ms;
    int64_t timestamp_after_max_ms;
    int32_t leader_epoch;
    int32_t index_interval_bytes;
    int32_t batch_bytes; /* target size of the batches made here */
    int32_t flags;       /* enum ls_writer_flag */
};

enum ls_problem {
    LS_PROBLEM_NONE,
    LS_PROBLEM_RECORD_TOO_LARGE, /* its batch would exceed max.message.bytes */
    LS_PROBLEM_BATCH_TOO_LARGE,  /* ... or segment.bytes */
    LS_PROBLEM_KEY_MISSING,
    LS_PROBLEM_TIMESTAMP_BOUNDS,   /* outside message.timestamp.before/after.max.ms */
    LS_PROBLEM_TIMESTAMP_NEGATIVE, /* below 0 and not -1 */
    LS_PROBLEM_TIMESTAMP_UNIT,     /* can only be seconds, or micro- or nanoseconds */
    LS_PROBLEM_COLUMN              /* offsets of a column descend or exceed it */
};

/* What an append did. */
struct ls_appended {
    int64_t first_offset;
    int64_t record_count; /* fewer than asked for: the segment must roll; 0: before the first */
    int64_t position;     /* of the first byte */
    int64_t size_bytes;
    int64_t max_timestamp;           /* of this append, -1 none */
    int64_t offset_of_max_timestamp; /* last offset of its batch */
    int64_t problem_index;           /* the record that was refused */
    int64_t problem_timestamp;       /* its timestamp, if that is why */
    int32_t problem;                 /* enum ls_problem */
    int32_t reserved;
};

/* What ready batches were. */
struct ls_ready {
    int64_t first_offset; /* as written */
    int64_t last_offset;
    int64_t last_offset_of_first_batch; /* as they came */
    int64_t max_timestamp;              /* -1 none */
    int64_t offset_of_max_timestamp;    /* last offset of the first batch that has it, as written */
    int32_t last_leader_epoch;          /* as it came */
    int32_t last_codec;                 /* of the last compressed batch, 0 none */
};

enum ls_append_flag {
    LS_APPEND_ALL_OR_NOTHING = 1, /* write nothing if a roll would cut the append in two */
    LS_APPEND_CHECK_UNITS = 2,    /* refuse timestamps that can only be of another unit */
    LS_APPEND_CHECKED = 4,        /* an earlier call has checked these records */
    LS_APPEND_IF_FAST = 8         /* of lists: LS_E_REFUSED unless the writer is LS_WRITER_FAST */
};

/*
 * Bounds of many writers together (ls_pool.c): of staging memory that they keep between appends, and of
 * room on the device that is allocated ahead of them. NULL: no memory. A writer holds its pool.
 */
ls_pool *ls_pool_new(int64_t staging_bytes_max, int64_t preallocated_bytes_max);
ls_pool *ls_pool_hold(ls_pool *pool);
void ls_pool_free(ls_pool *pool);
int64_t ls_pool_staging_bytes(const ls_pool *pool);
/* Never less than there is: what a writer has used since it asked for more still counts. */
int64_t ls_pool_preallocated_bytes(const ls_pool *pool);

/* clock: address of an int64 of milliseconds, 0 for the real time. NULL: no memory. */
ls_writer *ls_writer_new(ls_io *io, ls_pool *pool, uintptr_t clock);
/* No thread may use it any more. NULL is allowed. */
void ls_writer_free(ls_writer *writer);

int64_t ls_writer_configure(ls_writer *writer, const struct ls_writer_config *config);
/* Replaces the attached segment, if any, and publishes its next offset. */
int64_t ls_writer_attach(ls_writer *writer, const struct ls_segment *segment);
/* Gives back what was allocated ahead; the writer holds no descriptor afterwards. LS_E_CLOSED: none attached. */
int64_t ls_writer_detach(ls_writer *writer, struct ls_segment *state);

/* How far a roll has come. */
enum ls_roll_stage {
    LS_ROLL_NOTHING,  /* nothing was done: it takes more than this, or nothing is attached */
    LS_ROLL_DETACHED, /* the old segment is not sealed: each file is as before, or sealed */
    LS_ROLL_SEALED,   /* it is; its index descriptors are closed, even if that has failed */
    LS_ROLL_REFUSED,  /* and of the new one nothing could be made; perhaps a name is left */
    LS_ROLL_MADE,     /* the .log file of the new segment is there */
    LS_ROLL_ATTACHED  /* its indexes, too; the writer has it */
};
/*
 * Seal the attached segment, make another one, and attach that (ls_writer_roll.c): what a roll does with
 * files, in one call. `until` is LS_ROLL_SEALED, LS_ROLL_MADE or LS_ROLL_ATTACHED.
 *
 * stem: path of the new files without their suffixes. old: out, what ls_writer_detach gives. next: in,
 * the new segment but for its descriptors, which are the caller's to close: those of the stage reached.
 * The stage, and in `why` the error that kept it from going on, 0 if none did.
 */
int64_t ls_writer_roll(ls_writer *writer, const char *stem, int32_t until, struct ls_segment *old,
                       struct ls_segment *next, int64_t *why);
int64_t ls_writer_state(ls_writer *writer, struct ls_segment *state, bool may_wait);
/*
 * Write the index entries that single appends hold back until there are some: a lookup wants them in
 * the files. Never waits: who has the lock appends, and has written them. An error: they are held on.
 */
int64_t ls_writer_try_settle(ls_writer *writer);
/* Give back what was allocated ahead, and the staging buffer: for a log that is idle. */
int64_t ls_writer_trim(ls_writer *writer);
/* +1 enters an exclusive section, -1 leaves it. */
int64_t ls_writer_exclusive(ls_writer *writer, int32_t change, bool may_wait);

/*
 * Address of four int64 that change with release stores and may be read with ls_load at any time:
 * log end offset, size of the segment, entries of the offset index, entries of the time index: those
 * that are in the files, see ls_writer_try_settle.
 */
uintptr_t ls_writer_published(ls_writer *writer);
int64_t ls_writer_publish(ls_writer *writer, int64_t next_offset);
/*
 * Flushes (ls_writer_flush.c). One at a time: the log's own, which Python makes in its turn, and those
 * that take no more than an fdatasync of the attached segment's log file, which are made here.
 *
 * Address of two int64 as those of ls_writer_published: the recovery point, below which everything is
 * on the device, and when it last rose, in ms.
 */
uintptr_t ls_writer_flushed(ls_writer *writer);
/*
 * Make everything below `offset` durable, and what else is published; waits. 0; LS_E_SLOW: it takes a
 * general flush; LS_E_POISONED: an earlier one failed; any other error is why this one did.
 */
int64_t ls_writer_flush(ls_writer *writer, int64_t offset);
/*
 * The log file of the attached segment is all that flushes take from now on, until it is detached: its
 * name and what comes before it are durable. They are made in Python once a second all the same.
 */
int64_t ls_writer_allow_flush(ls_writer *writer);
/*
 * Wait for the turn to make a general flush; LS_E_POISONED. Returns the highest offset that somebody
 * waits for, or -1: everything below `offset` is durable, and it is not the caller's turn. INT64_MAX
 * never is: the turn itself is wanted.
 */
int64_t ls_writer_begin_flush(ls_writer *writer, int64_t offset);
/* The turn without waiting: 0, LS_E_SLOW, LS_E_POISONED. */
int64_t ls_writer_try_begin_flush(ls_writer *writer);
/* The turn is over. `failed`: what reached the device is not known; nobody gets a turn any more. */
void ls_writer_end_flush(ls_writer *writer, bool failed);
/* Threads that wait for the end of a flush. */
int64_t ls_writer_flush_waiters(ls_writer *writer);
/* The recovery point, to be lowered under whatever lock keeps flushes from raising it meanwhile. */
void ls_writer_set_recovery_point(ls_writer *writer, int64_t offset);
/* Raise it, if it is lower; it was raised by a flush that ended at `now` ms; -1: by something else. */
void ls_writer_raise_recovery_point(ls_writer *writer, int64_t offset, int64_t now);

/* Publish to a page of live offsets, too; 0: no more. It must stay mapped. */
int64_t ls_writer_set_live(ls_writer *writer, uintptr_t live);
/* The int64 at `address`, with acquire ordering. */
int64_t ls_load(uintptr_t address);

/*
 * Append `size` bytes of whole batches that are ready: offsets, epoch and CRC are final. `head` is
 * written in place of the first head_size of them. `batches` are their `count` headers as a scan of
 * what is written, from position 0, gives them. publish false leaves the log end offset to
 * ls_writer_publish. Returns the position, LS_E_ROLL if an offset or the
 * size does not fit the segment, LS_E_CORRUPT if headers and bytes do not belong together.
 */
int64_t ls_writer_append_encoded(ls_writer *writer, uintptr_t head, int64_t head_size,
                                 uintptr_t bytes, int64_t size, uintptr_t batches, int64_t count,
                                 bool publish, bool may_wait);
/*
 * The same in pieces, put one by one between open and close, all in one thread. Nothing of them is
 * in the state before close keeps them, and the log end offset is left to ls_writer_publish. Until
 * then whatever else needs the writer waits; this thread's own gets -EDEADLK. After an error of put
 * or close, close with keep false; where none is open, that does nothing.
 */
int64_t ls_writer_open_pieces(ls_writer *writer);
int64_t ls_writer_put_piece(ls_writer *writer, uintptr_t bytes, int64_t size, uintptr_t batches,
                            int64_t count);
int64_t ls_writer_close_pieces(ls_writer *writer, bool keep);
/*
 * Check ready batches, as leader or follower, and append them, in one pass over the bytes: if the
 * writer is LS_WRITER_FAST, every rule of analysis and validation holds, and there is nothing to
 * decide: no producer id, no epoch but the configured one, no roll. As leader: of one batch that is
 * not compressed; it gets offset and epoch. Returns the position; LS_E_REFUSED, or another error:
 * nothing was done, the general path decides, and says why.
 */
int64_t ls_writer_append_ready(ls_writer *writer, uintptr_t bytes, int64_t size,
                               int64_t leader_epoch, bool as_follower, bool may_wait,
                               struct ls_ready *ready);
/*
 * Encode and append records [first, first + count) as leader, in batches of batch_bytes. now: of the
 * checks, and of log append time; -1: ask the clock. Stops before a batch that needs a roll.
 * The log end offset is published once, at the end. Returns record_count, or LS_E_REFUSED.
 */
int64_t ls_writer_append_columns(ls_writer *writer, const struct ls_columns *columns, int64_t first,
                                 int64_t count, int64_t now, int32_t flags, bool may_wait,
                                 struct ls_appended *appended);

/* ---- live offsets (ls_live.c): a page shared with readers in other processes ---------------- */
/*
 * `live` is the address of LS_LIVE_BYTES of a mapped file, all zeros at first; format: live_offsets.py.
 * Its one writer changes it, under the log's lock but for the log end; any thread of any process reads it.
 */
enum {
    LS_LIVE_BYTES = 4096,
    LS_LIVE_HEADER_BYTES = 128,
    LS_LIVE_END_AT = 128,         /* int64, the log end offset: ls_load reads it */
    LS_LIVE_CHANGE_AT = 192,      /* int64, moves with everything but the log end; odd meanwhile */
    LS_LIVE_TRUNCATIONS_AT = 256, /* int64, the truncation count; behind it the truncations */
    LS_LIVE_TRUNCATIONS = 256,
    LS_LIVE_REPLACED = -2, /* in place of a target: other files have the names of sealed segments */
    LS_LIVE_WAIT_MAX = 128
};

struct ls_live_offsets {
    int64_t change_count;
    int64_t writer_epoch;
    int64_t is_open; /* 0: the writer has closed the log */
    int64_t log_end_offset;
    int64_t active_base_offset;
    int64_t size_bytes; /* of the active segment; everything below the log end lies within it */
    int64_t offset_entry_count;
    int64_t time_entry_count;
    int64_t log_start_offset;
    int64_t high_watermark;        /* -1: the log end */
    int64_t first_unstable_offset; /* -1: none */
    int64_t recovery_point;
    int64_t truncation_count; /* two a truncation: odd while one is under way */
    int64_t writer_pid;
    int64_t pid_namespace; /* 0: not known */
};

/* The writer: take the page over, with `header` of LS_LIVE_HEADER_BYTES; leave it; say what moved. */
void ls_live_open(uintptr_t live, const uint8_t *header, const struct ls_live_offsets *offsets);
void ls_live_close(uintptr_t live);
/* Log start, high watermark, first unstable offset, recovery point. */
void ls_live_set_marks(uintptr_t live, const struct ls_live_offsets *offsets);
/* Another segment is active, without entries in its indexes, and its size. */
void ls_live_place(uintptr_t live, int64_t active_base_offset, int64_t size_bytes);
/* Before files change, and after. */
void ls_live_truncating(uintptr_t live, int64_t target_offset);
void ls_live_truncated(uintptr_t live);

/* Readers: all offsets of one moment. -EAGAIN: a change is under way, or its writer was killed in it. */
int64_t ls_live_load(uintptr_t live, struct ls_live_offsets *offsets);
/* The change count, after everything that was read before. */
int64_t ls_live_change(uintptr_t live);
/* 1: segments were replaced since that truncation count, or that is not known; else 0. */
int64_t ls_live_replaced(uintptr_t live, int64_t since);
/* The lowest offset that was truncated to since that truncation count; INT64_MAX: none; -1: not known. */
int64_t ls_live_truncated_to(uintptr_t live, int64_t since);

/*
 * Sleeping: prepare, look whether there is something new, and if not wait with the word. Every move
 * wakes, a poke too. wait: 0 woken, -EAGAIN it moved meanwhile, -ETIMEDOUT, -EINTR, -ENOSYS. wait_any
 * on several pages: the same, or the index of one that woke.
 */
uint32_t ls_live_prepare(uintptr_t live);
int64_t ls_live_wait(uintptr_t live, uint32_t word, int64_t timeout_ns);
int64_t ls_live_wait_any(const uintptr_t *lives, const uint32_t *words, int32_t count,
                         int64_t timeout_ns);
void ls_live_poke(uintptr_t live);
/* 1 once the end or the change count differs, 0 after timeout_ns; never sleeps. */
int64_t ls_live_spin(uintptr_t live, int64_t end, int64_t change_count, int64_t timeout_ns);

/* Byte locks of the open file: they end with their holder, however it ends. */
enum { LS_LIVE_WRITER_SLOT = 0, LS_LIVE_READERS_SLOT = 1 };
/* Exclusive for the writer, shared for readers. -EAGAIN: it is taken. */
int64_t ls_live_lock(int32_t fd, int32_t slot);
/* 1 if another open file has it; a read-only fd will do. */
int64_t ls_live_is_locked(int32_t fd, int32_t slot);

/* ---- Python objects (ls_py_*.c) ------------------------------------------------------------- */
/* Why a block of records ended. From LS_BLOCK_LEGACY on, Python handles the batch at next_position. */
enum ls_block_stop {
    LS_BLOCK_END = 0,     /* every byte up to `end` was used */
    LS_BLOCK_TORN = 1,    /* the batch at next_position is not complete */
    LS_BLOCK_INVALID = 2, /* it is damaged: magic, length, CRC-32C or a record */
    LS_BLOCK_FULL = 3,    /* max_records items were made */
    LS_BLOCK_BOUND = 4,   /* stop_offset was reached */
    LS_BLOCK_LEGACY = 5,  /* magic 0 or 1 */
    LS_BLOCK_COMPRESSED = 6,
    LS_BLOCK_CONTROL = 7,
    LS_BLOCK_TRANSACTIONAL = 8,
    LS_BLOCK_DISORDER = 9 /* it begins below the end of the one before it */
};
enum { LS_BLOCK_RECORDS_MAX = 1048576 };

/*
 * Make the module object with the native types and the functions that keep the GIL, and store it
 * in slot 0 of the Python list at this address (id(list)). 0, or LS_E_TYPE.
 */
int64_t ls_py_module(uintptr_t list);
/* CDEF-END */

#endif
