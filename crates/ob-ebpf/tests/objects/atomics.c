/* Atomic operations, in memory that stays between calls and in variables. */
#include "objects.h"

static u64 counter;
static u32 flags;

SECTION("storage")
u64 atomics(struct context *context)
{
	u64 *word = (u64 *)context->scratch;
	u64 sum = __sync_fetch_and_add(&counter, 3);

	__sync_fetch_and_add(word, 1);
	sum += __sync_fetch_and_or(&flags, 5);
	sum += __sync_fetch_and_xor(word, 9);
	sum += __sync_fetch_and_and(&counter, 0xff);
	sum += __sync_lock_test_and_set(word, 7);
	sum += __sync_val_compare_and_swap(word, 7, 8);
	sum += __sync_val_compare_and_swap(&flags, 5, 6);
	return sum;
}
