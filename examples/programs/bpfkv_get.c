/*
 * Looks a key up in a file of BPF-KV: a B+tree of nodes of 512 bytes, and a log of values of 64 bytes behind it.
 *
 *   file    nodes level by level, the root first │ values
 *   node    u64 next, u64 type (0 inner, 1 leaf), u64 key[31], u64 pointer[31]
 *
 * The request begins with a read of the root (512 bytes at offset 0). Each call gets one node, finds the entry to follow, and asks for
 * the next read. The last read is that of the sector in which the value lies. A node that cannot be one ends it: the file is no tree.
 */
#include "outboard_program.h"

#define NODE_LEN 512
#define ENTRIES 31
#define LEAF 1
#define VALUE_LEN 64
/* Set in all pointers; the rest is the offset in the file. */
#define POINTER_MARK (1ULL << 63)

struct node {
	u64 next;
	u64 type;
	u64 keys[ENTRIES];
	u64 pointers[ENTRIES];
};

/* The scratch. */
struct query {
	u64 key;
	/* Out: whether there is such a key. */
	u64 is_found;
	/* Where the value is in the file, once it is known; not 0, because the root is there. */
	u64 value_at;
	u8 value[VALUE_LEN];
};

/* What the client takes for a file that is no tree. */
enum { CORRUPT = 1 };

/* The verifier counts on this: nothing of a node has to be checked. */
OB_DATA_MIN(NODE_LEN);

static void read_next(struct ob_storage *context, u64 offset)
{
	context->next_file = context->file;
	context->next_offset = offset;
	context->next_len = NODE_LEN;
}

OB_PROGRAM("storage")
u64 bpfkv_get(struct ob_storage *context)
{
	struct query *query = (struct query *)context->scratch;
	const struct node *node = (const struct node *)context->data;
	u64 key = query->key;
	u64 pointer, at;

	if (query->value_at) {
		/* Values do not cross sectors, as a sector has eight of them. */
		u64 begin = query->value_at % NODE_LEN / VALUE_LEN * VALUE_LEN;

		ob_copy(query->value, VALUE_LEN, context->data + begin, VALUE_LEN);
		query->is_found = 1;
		context->done = 1;
		return 0;
	}

	if (node->type > LEAF)
		return CORRUPT;
	/* The last entry whose key is not above the one that is wanted. Keys ascend; behind the last one there are zeroes. */
	if (key < node->keys[0]) {
		context->done = 1;
		return 0;
	}
	for (at = 1; at < ENTRIES; at++) {
		if (node->keys[at] > key)
			break;
		if (node->keys[at] <= node->keys[at - 1]) {
			if (node->keys[at])
				return CORRUPT;
			break;
		}
	}
	at--;

	pointer = node->pointers[at];
	if (!(pointer & POINTER_MARK))
		return CORRUPT;
	pointer &= ~POINTER_MARK;
	/* Levels follow each other, and values follow them: every pointer leads forward. */
	if (pointer <= context->offset)
		return CORRUPT;

	if (node->type == LEAF) {
		if (pointer % VALUE_LEN)
			return CORRUPT;
		if (node->keys[at] != key) {
			context->done = 1;
			return 0;
		}
		query->value_at = pointer;
		pointer -= pointer % NODE_LEN;
	} else if (pointer % NODE_LEN) {
		return CORRUPT;
	}
	read_next(context, pointer);
	return 0;
}
