/*
 * Looks a key up in several tables of RocksDB, newest first, from where the client's own look into what it has cached has ended in
 * each of them: a block of the index, or a data block. The first entry that the snapshot sees ends it. Blocks are checked as
 * RocksDB checks them.
 */
#include "outboard_program.h"

#define KEY_MAX 192
#define STEPS_MAX 64
#define VALUE_MAX 3632
/* Bytes of the longest block: as many as a helper takes, with the byte behind it that is checked, too. */
#define BLOCK_LEN_MAX (65536 - 1)

/* What came of it. */
enum { ABSENT = 0, FOUND = 1, DELETED = 2 };
/* How a table's blocks are checked. */
enum { CHECKSUM_NONE = 0, CHECKSUM_CRC32C = 1, CHECKSUM_XXH3 = 4 };

/* A table, and where to begin in it. */
struct step {
	/* The block; without what is behind it. */
	u64 offset;
	u32 len;
	/* Of the checksums: what makes them depend on the block's place, or 0. */
	u32 base;
	/* Which of the request's files. */
	u8 file;
	/* Of how many levels of index the block is the first; 0: it is one of data. */
	u8 levels;
	u8 index_format;
	u8 checksum;
	u32 reserved;
};

/* The scratch. */
struct query {
	/* In. Entries that are newer than the sequence number do not count. */
	u64 sequence;
	u16 key_len;
	u16 steps;
	/* In which step we are; for the client, in which it has ended. */
	u16 step;
	/* How many levels of index follow, with the block that is read next. */
	u16 levels;
	/* Bytes of the block that is read next. */
	u32 block_len;
	/* Out. */
	u32 status;
	u32 value_len;
	u32 reserved;
	/* What stands behind the key: the sequence number, and in the lowest byte the kind. */
	u64 trailer;
	u64 reserved2[3];
	union {
		struct {
			u8 key[KEY_MAX];
			struct step table[STEPS_MAX];
		};
		/* The answer takes the place of the question. */
		u8 value[VALUE_MAX];
	};
	u8 current[2 * (KEY_MAX + 8)];
};
_Static_assert(sizeof(struct step) == 24, "a step has 24 bytes");
_Static_assert(__builtin_offsetof(struct query, key) == 64, "the key is at 64");
_Static_assert(__builtin_offsetof(struct query, table) == 256, "steps begin at 256");
_Static_assert(sizeof(struct query) == OB_STORAGE_SCRATCH_LEN, "a query is the scratch");

#include "rocksdb_format.h"

/* What a checksum of a table of this base has added to it at this place. */
static u32 place(u32 base, u64 offset)
{
	return base ? base ^ ((u32)offset + (u32)(offset >> 32)) : 0;
}

/* Whether a block is what was written. */
static int is_sound(const struct ob_storage *context, const struct step *step, u64 len)
{
	const u8 *data = context->data;
	u32 stored = ob_read_u32(data + len + 1);
	u32 found;

	if (step->checksum == CHECKSUM_NONE)
		return 1;
	if (step->checksum == CHECKSUM_CRC32C) {
		found = ob_crc32c(0, data, len + 1);
		/* As RocksDB keeps it: rotated, and something added. */
		found = ((found >> 15) | (found << 17)) + 0xa282ead8U;
	} else {
		found = (u32)ob_xxh3(data, len) ^ data[len] * 0x6b9083d9U;
	}
	return stored == found + place(step->base, context->offset);
}

/* Has a block read next. */
static u64 read_block(struct ob_storage *context, struct query *query, u64 file, u64 offset, u64 len)
{
	if (len > BLOCK_LEN_MAX)
		return UNSUPPORTED;
	query->block_len = len;
	context->next_file = file;
	context->next_offset = offset;
	context->next_len = len + BLOCK_TRAILER_LEN;
	return 0;
}

static u64 take_value(struct ob_storage *context, struct query *query, const u8 *key_end, const u8 *value, u64 len)
{
	u64 trailer = ob_read_u64(key_end);
	u8 kind = trailer;

	if (kind != KIND_VALUE && kind != KIND_DELETION && kind != KIND_SINGLE_DELETION)
		return UNSUPPORTED;
	if (len > VALUE_MAX)
		return UNSUPPORTED;
	query->trailer = trailer;
	query->status = kind == KIND_VALUE ? FOUND : DELETED;
	query->value_len = len;
	ob_copy(query->value, VALUE_MAX, value, len);
	context->done = 1;
	return 0;
}

static u64 take_nothing(struct ob_storage *context, struct query *query)
{
	u64 number = query->step + 1;
	const struct step *step;

	if (number >= query->steps || number >= STEPS_MAX) {
		query->status = ABSENT;
		context->done = 1;
		return 0;
	}
	query->step = number;
	step = &query->table[number];
	query->levels = step->levels;
	return read_block(context, query, step->file, step->offset, step->len);
}

static u64 follow_handle(struct ob_storage *context, struct query *query, const struct handle *handle)
{
	query->levels--;
	return read_block(context, query, context->file, handle->offset, handle->size);
}

OB_PROGRAM("storage")
u64 rocksdb_get(struct ob_storage *context)
{
	struct query *query = (struct query *)context->scratch;
	u64 key_len = query->key_len, number = query->step, len = context->data_len - BLOCK_TRAILER_LEN;
	const struct step *step;

	if (key_len > KEY_MAX || number >= STEPS_MAX || len > BLOCK_LEN_MAX)
		return BAD_QUERY;
	step = &query->table[number];
	if (step->checksum != CHECKSUM_NONE && step->checksum != CHECKSUM_CRC32C && step->checksum != CHECKSUM_XXH3)
		return BAD_QUERY;
	/* Where the file ends earlier, so does what was read. */
	if (len != query->block_len || !is_sound(context, step, len))
		return CORRUPT;
	return look(context, query, key_len, query->levels != 0, step->index_format);
}
