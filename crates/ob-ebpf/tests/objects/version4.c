/* What came with version 4: loads and moves with a sign, division with a sign, turned bytes, stores of constants, long jumps. */
#include "objects.h"

SECTION("storage")
u64 version4(struct context *context)
{
	const s8 *bytes = (const s8 *)context->data;
	const s16 *halves = (const s16 *)context->data;
	const s32 *words = (const s32 *)context->data;
	s64 sum = bytes[1] + halves[1] + words[1];

	sum += (s64)context->numbers[0] / (s64)context->numbers[1];
	sum += (s32)context->numbers[0] % (s32)context->numbers[1];
	sum += (s8)context->numbers[2];
	sum ^= __builtin_bswap64(context->numbers[3]);
	sum ^= __builtin_bswap32((u32)context->numbers[3]);
	*(u32 *)context->scratch = 77;
	if (sum == 5) {
		asm volatile goto("gotol %l[far]" : : : : far);
		sum++;
	}
far:
	return sum;
}
