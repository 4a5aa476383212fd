/* Arithmetic and comparisons of 32 bits. */
#include "objects.h"

SECTION("storage")
u64 narrow(struct context *context)
{
	u32 left = context->numbers[0], right = context->numbers[1];
	s32 sum = 0;

	for (u32 at = 0; at < (left & 31); at++) {
		left = left * 1664525 + 1013904223;
		if ((s32)left < (s32)right)
			sum -= left >> (at & 7);
		else
			sum ^= right / (left | 1);
	}
	return (u32)sum;
}
