/*
 * Counts the lines of a part of a file, and the bytes of the longest, as far as it is asked to. Whatever the file's length, the answer
 * has 40 bytes: this is what a storage function is for.
 *
 * The request begins with a read where the part begins. Each call looks at every byte that was read, and asks for as many behind them.
 */
#include "outboard_program.h"

/* The scratch. */
struct query {
	/* In: how many bytes to look at. */
	u64 left;
	/* Out. */
	u64 lines;
	u64 longest;
	/* Bytes of the line that goes on in the next read. */
	u64 begun;
	u64 bytes;
};

OB_PROGRAM("storage")
u64 count_lines(struct ob_storage *context)
{
	struct query *query = (struct query *)context->scratch;
	const u8 *at = context->data;
	u64 len = context->data_len < query->left ? context->data_len : query->left;
	const u8 *end = at + len;
	u64 lines = query->lines, longest = query->longest, begun = query->begun;

	for (; at < end; at++) {
		if (*at != '\n') {
			begun++;
			continue;
		}
		lines++;
		if (begun > longest)
			longest = begun;
		begun = 0;
	}

	query->lines = lines;
	query->longest = longest;
	query->begun = begun;
	query->bytes += len;
	query->left -= len;
	/* A read of nothing is the file's end. */
	if (query->left == 0 || len == 0) {
		if (begun > longest)
			query->longest = begun;
		context->done = 1;
		return 0;
	}
	context->next_file = context->file;
	context->next_offset = context->offset + len;
	context->next_len = len < query->left ? len : query->left;
	return 0;
}
