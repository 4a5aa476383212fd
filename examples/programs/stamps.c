/*
 * Goes through the blocks of a file that all say whose they are and which version of it they are of, and tells the oldest and the newest
 * version that it saw, and how many blocks were another's. A chain that saw a file as it was at one moment has seen one version and
 * nobody else's blocks.
 *
 *   block   u64 owner, u64 life, u64 version, u64 index, and whatever
 */
#include "outboard_program.h"

#define BLOCK_LEN 4096

struct block {
	u64 owner;
	u64 life;
	u64 version;
	u64 index;
};

/* The scratch. */
struct query {
	/* In: whose blocks they should be, how many there are, and how many to look at. */
	u64 owner;
	u64 blocks;
	u64 left;
	/* Out. */
	u64 seen;
	u64 strange;
	u64 oldest;
	u64 newest;
	u64 life;
};

OB_DATA_MIN(sizeof(struct block));

OB_PROGRAM("storage")
u64 stamps(struct ob_storage *context)
{
	struct query *query = (struct query *)context->scratch;
	const struct block *block = (const struct block *)context->data;
	u64 index = context->offset / BLOCK_LEN;

	if (!query->seen) {
		query->oldest = query->newest = block->version;
		query->life = block->life;
	}
	query->seen++;
	if (block->owner != query->owner || block->index != index || block->life != query->life)
		query->strange++;
	if (block->version < query->oldest)
		query->oldest = block->version;
	if (block->version > query->newest)
		query->newest = block->version;
	if (query->left <= 1 || !query->blocks) {
		context->done = 1;
		return 0;
	}
	query->left--;
	/* Here and there in the file, as a lookup goes. */
	index = (index * 5 + 3) % query->blocks;
	context->next_file = context->file;
	context->next_offset = index * BLOCK_LEN;
	context->next_len = BLOCK_LEN;
	return 0;
}
