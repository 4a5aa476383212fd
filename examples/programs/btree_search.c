/*
 * Looks a key up in a B+tree of nodes of 4 KiB, by binary search within each.
 *
 *   node    u64 type (0 inner, 1 leaf), u64 count, u64 key[255], u64 value[255]
 *
 * Keys ascend. The value of an inner node's entry is the offset of the child that has the keys from this one on. The request begins
 * with a read of the root, wherever that is.
 */
#include "outboard_program.h"

#define NODE_LEN 4096
#define ENTRIES 255
#define LEAF 1

struct node {
	u64 type;
	u64 count;
	u64 keys[ENTRIES];
	u64 values[ENTRIES];
};

/* The scratch. */
struct query {
	u64 key;
	/* Out. */
	u64 is_found;
	u64 value;
};

enum { CORRUPT = 1 };

OB_DATA_MIN(NODE_LEN);

OB_PROGRAM("storage")
u64 btree_search(struct ob_storage *context)
{
	struct query *query = (struct query *)context->scratch;
	const struct node *node = (const struct node *)context->data;
	u64 key = query->key;
	u64 count = node->count;
	/* All entries before left have keys up to the one that is wanted, and all from right on have greater ones. */
	u64 left = 0, right = count;

	/* What comes from a device is not what one expects until one has looked; and from here on the verifier knows it, too. */
	if (count > ENTRIES)
		return CORRUPT;
	while (left < right) {
		u64 middle = (left + right) / 2;

		if (node->keys[middle] <= key)
			left = middle + 1;
		else
			right = middle;
	}
	if (left == 0) {
		context->done = 1;
		return 0;
	}

	left--;
	if (node->type == LEAF) {
		query->is_found = node->keys[left] == key;
		query->value = query->is_found ? node->values[left] : 0;
		context->done = 1;
		return 0;
	}
	context->next_file = context->file;
	context->next_offset = node->values[left];
	context->next_len = NODE_LEN;
	return 0;
}
