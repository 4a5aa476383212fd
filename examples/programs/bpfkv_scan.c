/*
 * Goes over a range of keys of a BPF-KV file (bpfkv_get.c has the format): `range` brings the values back, as many as fit, and
 * `aggregate` only what comes of a number in each of them: how many, their sum, the least and the greatest.
 *
 * The request begins with a read of a node above the first key, such as the root. From there it goes down to the leaf, and then from
 * leaf to leaf by their links. Values that lie side by side are read at once.
 */
#include "outboard_program.h"

#define NODE_LEN 512
#define ENTRIES 31
#define LEAF 1
#define VALUE_LEN 64
/* Entries that fit into the scratch. */
#define FOUND_MAX 46
/* Set in all pointers; the rest is the offset in the file. */
#define POINTER_MARK (1ULL << 63)

struct node {
	u64 next;
	u64 type;
	u64 keys[ENTRIES];
	u64 pointers[ENTRIES];
};

struct found {
	u64 key;
	u8 value[VALUE_LEN];
};

/* The scratch. */
struct scan {
	/* In: the first key and the last; how many values at most, or reads of an aggregate; where in a value the number is, and which
	 * numbers count. */
	u64 from;
	u64 to;
	u64 limit;
	u64 field;
	u64 low;
	u64 high;
	/* Out. With `has_more`, keys from `resume` on were not looked at; until then it is the last key of the leaf before. */
	u64 count;
	u64 sum;
	u64 least;
	u64 greatest;
	u64 has_more;
	u64 resume;
	/* What is read: a node on the way down, the next leaf, or values of the leaf below. */
	u64 stage;
	/* The leaf's entry whose value comes next, and how many values were asked for. */
	u64 at;
	u64 run;
	/* Where the leaf lies. */
	u64 leaf_at;
	struct node leaf;
	struct found found[FOUND_MAX];
};
_Static_assert(sizeof(struct scan) <= OB_STORAGE_SCRATCH_LEN, "the scratch has room for it");

enum { DOWN = 0, NEXT_LEAF = 1, VALUES = 2 };
/* The first is what the client takes for a file that is no tree. */
enum { CORRUPT = 1, BAD_QUERY = 2 };

OB_DATA_MIN(VALUE_LEN);

static void read_next(struct ob_storage *context, u64 offset, u64 len)
{
	context->next_file = context->file;
	context->next_offset = offset;
	context->next_len = len;
}

/* How many entries a node has: keys ascend, and behind the last one there are zeros. None, if it cannot be a node. */
static u64 length(const struct node *node)
{
	u64 at;

	for (at = 1; at < ENTRIES; at++)
		if (node->keys[at] <= node->keys[at - 1])
			return node->keys[at] ? 0 : at;
	return at;
}

/* Whether a pointer of a node leads to something of so many bytes: forward, as levels follow each other, and values follow them. */
static u64 leads(u64 pointer, u64 from, u64 len)
{
	return (pointer & POINTER_MARK) && (pointer & ~POINTER_MARK) > from && pointer % len == 0;
}

static u64 finish(struct ob_storage *context)
{
	context->done = 1;
	return 0;
}

/* Asks for the values from entry `at` of the leaf on, or for the next leaf. */
static __attribute__((noinline)) u64 go_on(struct ob_storage *context, struct scan *scan, u64 limit, u64 reads_max)
{
	const struct node *leaf = &scan->leaf;
	u64 at = scan->at, len = length(leaf);
	u64 first, run;

	if (at >= len) {
		if (!leaf->next)
			return finish(context);
		if (leaf->next % NODE_LEN || !len)
			return CORRUPT;
		scan->resume = leaf->keys[(len - 1) % ENTRIES];
		/* For the leaf and for its values. */
		if (context->reads + 2 > reads_max) {
			scan->has_more = 1;
			scan->resume++;
			return finish(context);
		}
		scan->stage = NEXT_LEAF;
		read_next(context, leaf->next, NODE_LEN);
		return 0;
	}
	if (at >= ENTRIES)
		return CORRUPT;
	if (leaf->keys[at] > scan->to)
		return finish(context);
	if (scan->count >= limit) {
		scan->has_more = 1;
		scan->resume = leaf->keys[at];
		return finish(context);
	}
	first = leaf->pointers[at];
	if (!leads(first, scan->leaf_at, VALUE_LEN))
		return CORRUPT;
	for (run = 1; run < ENTRIES; run++) {
		u64 next = at + run;

		if (next >= len || next >= ENTRIES || leaf->keys[next] > scan->to || scan->count + run >= limit ||
		    leaf->pointers[next] != first + run * VALUE_LEN)
			break;
	}
	scan->run = run;
	scan->stage = VALUES;
	read_next(context, first & ~POINTER_MARK, run * VALUE_LEN);
	return 0;
}

/* A node: on the way down, or a leaf. */
static u64 take_node(struct ob_storage *context, struct scan *scan, u64 limit, u64 reads_max)
{
	const struct node *node = (const struct node *)context->data;
	u64 at, len;

	if (context->data_len < NODE_LEN)
		return CORRUPT;
	len = length(node);
	if (!len || node->type > LEAF)
		return CORRUPT;
	if (node->type != LEAF) {
		u64 pointer;

		if (scan->stage != DOWN)
			return CORRUPT;
		/* The last child that begins at or before the first key, or the first child. */
		for (at = 1; at < ENTRIES; at++)
			if (at >= len || node->keys[at] > scan->from)
				break;
		pointer = node->pointers[at - 1];
		if (!leads(pointer, context->offset, NODE_LEN))
			return CORRUPT;
		read_next(context, pointer & ~POINTER_MARK, NODE_LEN);
		return 0;
	}
	/* A link leads to greater keys: going around in a circle would bring the same ones again, until reads or fuel are used up. */
	if (scan->stage == NEXT_LEAF && node->keys[0] <= scan->resume)
		return CORRUPT;
	ob_copy(&scan->leaf, NODE_LEN, node, NODE_LEN);
	scan->leaf_at = context->offset;
	for (at = 0; at < ENTRIES; at++)
		if (at >= len || node->keys[at] >= scan->from)
			break;
	scan->at = at;
	return go_on(context, scan, limit, reads_max);
}

OB_PROGRAM("storage/range")
u64 range(struct ob_storage *context)
{
	struct scan *scan = (struct scan *)context->scratch;
	u64 limit = scan->limit < FOUND_MAX ? scan->limit : FOUND_MAX;
	u64 run = scan->run, at = scan->at, index;

	if (scan->stage != VALUES)
		return take_node(context, scan, limit, ~0ULL);
	for (index = 0; index < ENTRIES && index < run; index++) {
		u64 to = scan->count, entry = at + index;

		if (to >= FOUND_MAX || entry >= ENTRIES || (index + 1) * VALUE_LEN > context->data_len)
			return CORRUPT;
		scan->found[to].key = scan->leaf.keys[entry];
		ob_copy(scan->found[to].value, VALUE_LEN, context->data + index * VALUE_LEN, VALUE_LEN);
		scan->count = to + 1;
	}
	scan->at = at + run;
	return go_on(context, scan, limit, ~0ULL);
}

OB_PROGRAM("storage/aggregate")
u64 aggregate(struct ob_storage *context)
{
	struct scan *scan = (struct scan *)context->scratch;
	u64 run = scan->run, at = scan->at, field = scan->field, index;

	if (scan->stage != VALUES)
		return take_node(context, scan, ~0ULL, scan->limit);
	if (field > VALUE_LEN - 8)
		return BAD_QUERY;
	for (index = 0; index < ENTRIES && index < run; index++) {
		u64 number;

		if ((index + 1) * VALUE_LEN > context->data_len)
			return CORRUPT;
		number = ob_read_u64(context->data + index * VALUE_LEN + field);
		if (number < scan->low || number > scan->high)
			continue;
		if (!scan->count || number < scan->least)
			scan->least = number;
		if (!scan->count || number > scan->greatest)
			scan->greatest = number;
		scan->sum += number;
		scan->count++;
	}
	scan->at = at + run;
	return go_on(context, scan, ~0ULL, scan->limit);
}
