/*
 * Counts the readings of one sensor in a file of readings, and adds their values up. Whatever the file's length, the answer has 24 bytes.
 *
 * docs/your-own-program.md makes it, step by step.
 */
#include "outboard_program.h"

/* What the file is made of. */
struct reading {
	u64 time;
	u32 sensor;
	s32 value;
	u64 spare;
};

/* The scratch. */
struct query {
	/* In: whose readings. */
	u64 sensor;
	/* Out. */
	u64 count;
	s64 sum;
};

OB_PROGRAM("storage")
u64 readings(struct ob_storage *context)
{
	struct query *query = (struct query *)context->scratch;
	const struct reading *reading = (const struct reading *)context->data;
	const u8 *end = context->data + context->data_len;
	u64 used;

	for (; (const u8 *)(reading + 1) <= end; reading++) {
		if (reading->sensor == query->sensor) {
			query->count++;
			query->sum += reading->value;
		}
	}
	used = context->data_len - context->data_len % sizeof(struct reading);
	/* Not one whole reading: this is the file's end. */
	if (used == 0) {
		context->done = 1;
		return 0;
	}
	/* The last reading may be cut off where the read ends: the next one begins with it. */
	context->next_file = context->file;
	context->next_offset = context->offset + used;
	context->next_len = 4096;
	return 0;
}
