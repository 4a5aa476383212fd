/*
 * What programs share that read tables of RocksDB (SST files of the block-based format). Written from the format's public description.
 *
 *   read     block │ u8 compression (0: none) │ u32 checksum
 *   block    entries │ u32 restart[count] │ u32 count
 *   entry    varint shared │ varint rest │ varint value_len │ the key's last `rest` bytes │ value
 *
 * An entry's key begins with as many bytes of the key before it as `shared` says. At a restart nothing is shared, so that one can begin
 * to read there; restarts hold the offsets of these entries, and a binary search over them finds the few entries that have
 * to be read one after the other.
 *
 * A key of a data block is what the user calls a key and eight bytes: the entry's kind, and the sequence number by which the
 * newest of several entries of a key comes first. A value of an index block is a handle: where a block is, and how long, as two varints.
 * With format version 4 an index says of all but the restarts only by how much the block is longer than the one before
 * it, which it follows directly, and leaves out `value_len`.
 *
 * Who includes this has defined KEY_MAX, the bytes of the longest key that is looked for, and `struct query`, the scratch, with
 *
 *   u64 sequence;                           entries that are newer do not count
 *   u8 key[KEY_MAX];                        what is looked for
 *   u8 current[2 * (KEY_MAX + TRAILER_LEN)] the key of the entry that was read last; the room behind it is never needed
 *
 * and the three functions that are declared below.
 */
#ifndef ROCKSDB_FORMAT_H
#define ROCKSDB_FORMAT_H

#include "outboard_program.h"

#define TRAILER_LEN 8
#define BLOCK_TRAILER_LEN 5
/* Set in the count of a block that has a hash index behind its restarts. */
#define HASH_INDEX (1U << 31)

/* How an index block is written; its table's properties tell. */
enum { INDEX_OF_USER_KEYS = 1, INDEX_OF_DELTAS = 2, INDEX_WITH_FIRST_KEYS = 4 };
/* The kinds of entries that are told apart. */
enum { KIND_DELETION = 0, KIND_VALUE = 1, KIND_SINGLE_DELETION = 7 };
/* Those that there are at all, a bit each: 0, 1, 2, 7, 0fh, 11h, 14h, 16h, 18h. */
#define KINDS ((7ULL << 0) | (1ULL << 7) | (1ULL << 0x0f) | (1ULL << 0x11) | (1ULL << 0x14) | (1ULL << 0x16) | (1ULL << 0x18))
/* Why a request has failed. A client reads the table itself then. */
enum { CORRUPT = 1, UNSUPPORTED = 2, BAD_QUERY = 3 };

struct handle {
	u64 offset;
	u64 size;
};

/* The answer, from the entry that was looked for. */
static u64 take_value(struct ob_storage *context, struct query *query, const u8 *key_end, const u8 *value, u64 len);
/* The next read, from the index entry that was looked for. */
static u64 follow_handle(struct ob_storage *context, struct query *query, const struct handle *handle);
/* There is nothing like it in the block. */
static u64 take_nothing(struct ob_storage *context, struct query *query);

/* What is left to read. */
struct cursor {
	const u8 *at;
	const u8 *end;
};

struct entry {
	u64 shared;
	u64 rest;
	u64 value_len;
};

struct block {
	const u8 *data;
	/* Where the entries end and the restarts begin. */
	const u8 *restarts;
	u64 count;
	/* What is behind the user's key in each key. */
	u64 trailer_len;
	u64 is_index;
	u64 has_deltas;
	u64 has_first_keys;
	/* The query's, which was looked at: here nobody can have changed it since. */
	u64 key_len;
};

/* A number of up to 64 bits, seven a byte, the lowest first. */
static __attribute__((noinline)) int read_varint(struct cursor *cursor, u64 *value)
{
	const u8 *at = cursor->at;
	u64 number = 0;

	for (u32 shift = 0; shift < 64; shift += 7) {
		u64 byte;

		if (at >= cursor->end)
			return 0;
		byte = *at++;
		/* The tenth byte has room for one bit. */
		if (shift == 63 && byte > 1)
			return 0;
		number |= (byte & 127) << shift;
		if (byte < 128) {
			cursor->at = at;
			*value = number;
			return 1;
		}
	}
	return 0;
}

/* What stands before an entry's key. */
static inline __attribute__((always_inline)) int read_entry(struct cursor *cursor, const struct block *block, struct entry *entry)
{
	const u8 *at = cursor->at;

	/* Nearly all entries have three numbers of a byte each. */
	if (!block->has_deltas && at + 3 <= cursor->end && (at[0] | at[1] | at[2]) < 128) {
		entry->shared = at[0];
		entry->rest = at[1];
		entry->value_len = at[2];
		cursor->at = at + 3;
		return 1;
	}
	entry->value_len = 0;
	return read_varint(cursor, &entry->shared) && read_varint(cursor, &entry->rest) &&
	       (block->has_deltas || read_varint(cursor, &entry->value_len)) &&
	       /* No block is so long; and what is added to an address from here on stays near it. */
	       entry->value_len <= OB_STORAGE_DATA_LEN_MAX;
}

/* Whether an entry comes before the one that is looked for. `key` is all of its key, of `len` bytes. */
static int is_before(const struct query *query, const struct block *block, const u8 *key, u64 len)
{
	u64 user_len = len - block->trailer_len;
	s64 order = ob_compare(key, user_len, query->key, block->key_len);

	if (order || !block->trailer_len)
		return order < 0;
	return ob_read_u64(key + user_len) >> 8 > query->sequence;
}

/* The last restart whose key is before the one that is looked for, or the first. Returns an error, or 0. */
static __attribute__((noinline)) u64 find_restart(const struct query *query, const struct block *block, struct cursor *found)
{
	u64 left = 0, right = block->count - 1;

	found->end = block->restarts;
	for (;;) {
		u64 middle = (left + right + 1) / 2;
		u32 offset = ob_read_u32(block->restarts + 4 * middle);
		struct cursor cursor = { block->data + offset, block->restarts };
		struct entry entry;

		if (cursor.at > cursor.end)
			return CORRUPT;
		if (left >= right) {
			found->at = cursor.at;
			return 0;
		}
		if (!read_entry(&cursor, block, &entry) || entry.shared || entry.rest < block->trailer_len)
			return CORRUPT;
		if (entry.rest > KEY_MAX + TRAILER_LEN)
			return UNSUPPORTED;
		if (cursor.at + entry.rest > cursor.end)
			return CORRUPT;
		if (is_before(query, block, cursor.at, entry.rest))
			left = middle;
		else
			right = middle - 1;
	}
}

/* Reads a handle, given the one before it. */
static int read_handle(struct cursor *cursor, struct handle *handle, int is_delta)
{
	u64 delta;

	if (!is_delta)
		return read_varint(cursor, &handle->offset) && read_varint(cursor, &handle->size);
	if (!read_varint(cursor, &delta))
		return 0;
	handle->offset += handle->size + BLOCK_TRAILER_LEN;
	/* The sign is the lowest bit. */
	handle->size += (delta >> 1) ^ -(delta & 1);
	return 1;
}

/* Some indexes say of each block what its first key is. */
static int skip_first_key(struct cursor *cursor)
{
	u64 len;

	if (!read_varint(cursor, &len) || len > OB_STORAGE_DATA_LEN_MAX || cursor->at + len > cursor->end)
		return 0;
	cursor->at += len;
	return 1;
}

/* Reads entries one after the other until one is not before the one that is looked for. */
static u64 scan(struct ob_storage *context, struct query *query, const struct block *block, struct cursor *cursor)
{
	struct handle handle = { 0, 0 };
	u64 key_len = 0;

	while (cursor->at < cursor->end) {
		struct cursor value;
		struct entry entry;

		if (!read_entry(cursor, block, &entry) || entry.shared > key_len)
			return CORRUPT;
		/* Each for itself first: the sum of numbers that are not known may be anything. */
		if (entry.rest > KEY_MAX + TRAILER_LEN)
			return UNSUPPORTED;
		key_len = entry.shared + entry.rest;
		if (key_len > KEY_MAX + TRAILER_LEN)
			return UNSUPPORTED;
		if (key_len < block->trailer_len || cursor->at + entry.rest > cursor->end)
			return CORRUPT;
		ob_copy(query->current + entry.shared, entry.rest, cursor->at, entry.rest);
		cursor->at += entry.rest;

		value = *cursor;
		if (!block->has_deltas) {
			if (cursor->at + entry.value_len > cursor->end)
				return CORRUPT;
			cursor->at += entry.value_len;
			value.end = cursor->at;
		}
		if (block->is_index && !read_handle(&value, &handle, block->has_deltas && entry.shared))
			return CORRUPT;
		if (block->has_first_keys && !skip_first_key(&value))
			return CORRUPT;
		if (block->has_deltas)
			cursor->at = value.at;
		if (is_before(query, block, query->current, key_len))
			continue;
		if (block->is_index)
			return follow_handle(context, query, &handle);
		if (ob_compare(query->current, key_len - TRAILER_LEN, query->key, block->key_len)) {
			u64 kind = query->current[key_len - TRAILER_LEN];

			/* An entry of a kind that there is not may be another's by mistake. */
			if (kind > 63 || !(KINDS >> kind & 1))
				return UNSUPPORTED;
			break;
		}
		return take_value(context, query, query->current + key_len - TRAILER_LEN, value.at, entry.value_len);
	}
	return take_nothing(context, query);
}

/* Looks into a block that was read. `index_format` is that of an index block, and nothing for one of data. */
static u64 look(struct ob_storage *context, struct query *query, u64 key_len, u64 is_index, u64 index_format)
{
	const u8 *data = context->data;
	const u8 *end = data + context->data_len - BLOCK_TRAILER_LEN;
	struct block block = { .data = data, .key_len = key_len, .is_index = is_index };
	struct cursor cursor = { data, data };
	u64 restarts_len, error;

	block.trailer_len = is_index && (index_format & INDEX_OF_USER_KEYS) ? 0 : TRAILER_LEN;
	block.has_deltas = is_index && (index_format & INDEX_OF_DELTAS);
	block.has_first_keys = block.has_deltas && (index_format & INDEX_WITH_FIRST_KEYS);

	block.count = ob_read_u32(end - 4);
	/* What is compressed, or has a hash index, takes another way. */
	if (*end != 0 || (block.count & HASH_INDEX))
		return UNSUPPORTED;
	restarts_len = 4 * block.count;
	if (block.count == 0 || restarts_len > context->data_len - BLOCK_TRAILER_LEN - 4)
		return CORRUPT;
	block.restarts = end - 4 - restarts_len;

	error = find_restart(query, &block, &cursor);
	if (error)
		return error;
	return scan(context, query, &block, &cursor);
}

/* A block has a restart, the count of restarts, and what is behind every block. */
OB_DATA_MIN(4 + 4 + BLOCK_TRAILER_LEN);

#endif
