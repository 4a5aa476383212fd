/*
 * Does what the scratch says, call by call, however foolish: tests of the card's limits are written in it.
 *
 *   scratch   u64 calls so far, u64 length of the last data, u64 sum of it, u64 spare, then orders of 32 bytes, one a call
 *   order     u64 what, and three numbers
 */
#include "outboard_program.h"

#define ORDERS 100

enum { DONE, READ, LOOP, FAULT, RETURN, COPY, AGAIN };

struct order {
	u64 what;
	u64 one;
	u64 two;
	u64 three;
};

struct script {
	u64 calls;
	u64 len;
	u64 sum;
	u64 spare;
	struct order orders[ORDERS];
};

OB_PROGRAM("storage")
u64 obey(struct ob_storage *context)
{
	struct script *script = (struct script *)context->scratch;
	u64 calls = script->calls, len = context->data_len, sum = 0, at, step;
	const u8 *data = context->data;
	struct order *order;

	if (calls >= ORDERS)
		return 99;
	order = &script->orders[calls];
	/* Some of much, all of little: a call has so much fuel. */
	step = len > 16384 ? 64 : 8;
	for (at = 0; at + 8 <= len; at += step)
		sum += ob_read_u64(data + at);
	if (step == 8)
		for (; at < len; at++)
			sum += data[at];
	script->len = len;
	script->sum = sum;

	if (order->what == AGAIN) {
		/* For ever: the call is not counted. */
		context->next_file = context->file;
		context->next_offset = context->offset;
		context->next_len = len;
		script->spare++;
		return 0;
	}
	script->calls = calls + 1;
	if (order->what == DONE) {
		context->done = 1;
	} else if (order->what == READ) {
		context->next_file = order->one;
		context->next_offset = order->two;
		context->next_len = order->three;
	} else if (order->what == LOOP) {
		volatile u64 *spare = &script->spare;

		for (*spare = 1; *spare != 0;)
			*spare += 2;
	} else if (order->what == FAULT) {
		script->spare = data[order->one];
	} else if (order->what == RETURN) {
		return order->one;
	} else if (order->what == COPY) {
		/* The beginning of the data behind the orders that are left, as far as there is room. */
		for (at = 0; at < len && at < 2048; at++)
			context->scratch[2048 + at] = data[at];
		context->done = 1;
	}
	return 0;
}
