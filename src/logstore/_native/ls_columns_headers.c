/*
 * ls_columns_headers.c: the headers of records as lists of names and values.
 *
 * A name is a string, and Arrow's strings have to be UTF-8: programs that read them rely on it.
 * Malformed parts become U+FFFD as in Java's decoder, so that a reader sees what Kafka's clients see.
 * Source: Kafka RecordHeader.key, Utils.utf8; Unicode 15, table 3-7 and "maximal subpart".
 */
#include "ls_columns.h"

enum { REPLACEMENT_BYTES = 3 };
static const uint8_t REPLACEMENT[REPLACEMENT_BYTES] = {0xef, 0xbf, 0xbd};

/* Bytes of the character at `at`; negative: of the malformed part there. */
static int64_t character_bytes(const uint8_t *at, const uint8_t *end) {
    uint8_t lead = at[0];
    if (lead < 0x80) return 1;
    if (lead < 0xc2 || lead > 0xf4) return -1;
    int64_t size = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    /* What the second byte may be, so that nothing is overlong, a surrogate or too large. */
    uint8_t lowest = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    uint8_t highest = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    for (int64_t index = 1; index < size; ++index) {
        if (at + index == end || at[index] < lowest || at[index] > highest) return -index;
        lowest = 0x80;
        highest = 0xbf;
    }
    return size;
}

static bool is_ascii(const uint8_t *at, int64_t size) {
    uint8_t bits = 0;
    for (int64_t index = 0; index < size; ++index)
        bits |= at[index];
    return bits < 0x80;
}

/* Put a name at `to`, if that is not NULL; its size in well-formed UTF-8. */
static int64_t put_name(uint8_t *to, const uint8_t *name, int64_t size) {
    if (LS_LIKELY(is_ascii(name, size))) {
        if (to != NULL) ls_copy(to, name, size);
        return size;
    }
    const uint8_t *end = name + size;
    int64_t put = 0;
    while (name < end) {
        int64_t bytes = character_bytes(name, end);
        const uint8_t *from = bytes > 0 ? name : REPLACEMENT;
        int64_t count = bytes > 0 ? bytes : REPLACEMENT_BYTES;
        if (to != NULL) memcpy(to + put, from, (size_t)count);
        put += count;
        name += bytes > 0 ? bytes : -bytes;
    }
    return put;
}

struct header {
    const uint8_t *name;
    const uint8_t *value;
    int32_t name_size;
    int32_t value_size; /* -1 null */
};

/* The header at `at`, which was checked; the byte after it. */
static const uint8_t *read_header(const uint8_t *at, const uint8_t *next, struct header *header) {
    *header = (struct header){.value_size = -1};
    at = ls_get_sized(at, next, 0, &header->name, &header->name_size);
    if (at != NULL) at = ls_get_sized(at, next, INT32_MIN, &header->value, &header->value_size);
    if (header->value_size < 0) header->value_size = -1;
    return at;
}

static void put_header(struct ls_gather_headers *headers, const struct header *header) {
    int64_t index = headers->count;
    struct ls_gather_bytes *names = &headers->names;
    struct ls_gather_bytes *values = &headers->values;
    if (index == 0) {
        *(int32_t *)names->offsets = 0;
        *(int32_t *)values->offsets = 0;
    }
    names->size += put_name((uint8_t *)names->bytes + names->size, header->name, header->name_size);
    ((int32_t *)names->offsets)[index + 1] = (int32_t)names->size;

    uint8_t *validity = (uint8_t *)values->validity + index / 8;
    if (index % 8 == 0) *validity = 0xff;
    if (header->value_size < 0) {
        *validity = (uint8_t)(*validity & ~(1 << index % 8));
        values->null_count += 1;
    } else {
        ls_copy((uint8_t *)values->bytes + values->size, header->value, header->value_size);
        values->size += header->value_size;
    }
    ((int32_t *)values->offsets)[index + 1] = (int32_t)values->size;
    headers->count = index + 1;
}

bool ls_put_headers(struct ls_gather_headers *headers, int64_t row, const uint8_t *at,
                    const uint8_t *next) {
    uint32_t bits = 0;
    const uint8_t *first = ls_get_varint(at, next, &bits);
    const int32_t count = ls_unzigzag32(bits);
    struct header header;
    int64_t names = 0, values = 0;
    at = first;
    for (int32_t index = 0; index < count; ++index) {
        at = read_header(at, next, &header);
        names += put_name(NULL, header.name, header.name_size);
        values += header.value_size < 0 ? 0 : header.value_size;
    }
    if (count > headers->count_max - headers->count ||
        names > headers->names.capacity - headers->names.size ||
        values > headers->values.capacity - headers->values.size) {
        headers->wanted_names = names;
        headers->wanted_values = values;
        headers->wanted_count = count;
        return false;
    }
    at = first;
    for (int32_t index = 0; index < count; ++index) {
        at = read_header(at, next, &header);
        put_header(headers, &header);
    }
    ((int32_t *)headers->offsets)[row + 1] = (int32_t)headers->count;
    return true;
}
