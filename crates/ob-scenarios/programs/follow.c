/*
 * Follows nodes from file to file, and notes everything that it finds on the way: who checks the answer knows what may lie there.
 *
 *   node    u64 owner, u64 stamp, u64 next (0: the last; otherwise the offset, and in bit 63 whether it is in the next file), other words
 *
 * Each read brings a node, and as much behind it as the request says.
 */
#include "outboard_program.h"

#define ENTRIES 80
#define HOP (1ULL << 63)

struct node {
	u64 owner;
	u64 stamp;
	u64 next;
};

struct entry {
	u64 file;
	u64 offset;
	u64 owner;
	u64 stamp;
	u64 len;
	u64 sum;
};

/* The scratch. */
struct query {
	/* In: how many files there are, and how many bytes to read at once. */
	u32 files;
	u32 read_len;
	/* Out. */
	u64 count;
	struct entry entries[ENTRIES];
};

enum { FULL = 1, NO_FILES = 2 };

OB_DATA_MIN(24);

OB_PROGRAM("storage")
u64 follow(struct ob_storage *context)
{
	struct query *query = (struct query *)context->scratch;
	const struct node *node = (const struct node *)context->data;
	const u8 *at = context->data;
	u64 len = context->data_len, left = len / 8, sum = 0, count = query->count;
	struct entry *entry;

	if (count >= ENTRIES)
		return FULL;
	if (query->files == 0)
		return NO_FILES;
	for (; left > 0; left--, at += 8)
		sum += ob_read_u64(at);

	entry = &query->entries[count];
	entry->file = context->file;
	entry->offset = context->offset;
	entry->owner = ob_read_u64(&node->owner);
	entry->stamp = ob_read_u64(&node->stamp);
	entry->len = len;
	entry->sum = sum;
	query->count = count + 1;

	u64 next = ob_read_u64(&node->next);

	if (next == 0) {
		context->done = 1;
		return 0;
	}
	context->next_file = next & HOP ? (context->file + 1) % query->files : context->file;
	context->next_offset = next & ~HOP;
	context->next_len = query->read_len;
	return 0;
}
