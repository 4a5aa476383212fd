/*
 * Looks a key up in a table of RocksDB: in an index block first, if the query says so, and then in the data block that the index
 * names. It is the smallest of its kind; rocksdb_get.c goes through several tables, and checks what it reads.
 */
#include "outboard_program.h"

#define KEY_MAX 64
#define VALUE_MAX 2048

/* Which block the next read is. */
enum { STAGE_INDEX = 0, STAGE_DATA = 1 };
/* What came of it. */
enum { ABSENT = 0, FOUND = 1, DELETED = 2, OTHER_KIND = 3 };

/* The scratch. */
struct query {
	/* In. Entries that are newer than the sequence number do not count. */
	u32 stage;
	u32 index_format;
	u64 sequence;
	u64 key_len;
	u8 key[KEY_MAX];
	/* Out. */
	u64 status;
	u64 kind;
	u64 value_len;
	u64 block_offset;
	u64 block_len;
	u8 value[VALUE_MAX];
	u8 current[2 * (KEY_MAX + 8)];
};

#include "rocksdb_format.h"

static u64 take_value(struct ob_storage *context, struct query *query, const u8 *key_end, const u8 *value, u64 len)
{
	u64 kind = *key_end;

	query->kind = kind;
	query->status = kind == KIND_VALUE ? FOUND : kind == KIND_DELETION ? DELETED : OTHER_KIND;
	query->value_len = len;
	if (len > VALUE_MAX)
		return UNSUPPORTED;
	ob_copy(query->value, VALUE_MAX, value, len);
	context->done = 1;
	return 0;
}

static u64 take_nothing(struct ob_storage *context, struct query *query)
{
	query->status = ABSENT;
	context->done = 1;
	return 0;
}

static u64 follow_handle(struct ob_storage *context, struct query *query, const struct handle *handle)
{
	query->block_offset = handle->offset;
	query->block_len = handle->size;
	if (handle->size > OB_STORAGE_DATA_LEN_MAX - BLOCK_TRAILER_LEN)
		return UNSUPPORTED;
	query->stage = STAGE_DATA;
	context->next_file = context->file;
	context->next_offset = handle->offset;
	context->next_len = handle->size + BLOCK_TRAILER_LEN;
	return 0;
}

OB_PROGRAM("storage")
u64 rocksdb_block(struct ob_storage *context)
{
	struct query *query = (struct query *)context->scratch;
	u64 key_len = query->key_len;

	if (key_len > KEY_MAX || query->stage > STAGE_DATA)
		return BAD_QUERY;
	return look(context, query, key_len, query->stage == STAGE_INDEX, query->index_format);
}
