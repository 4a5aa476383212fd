/* Several functions: one in the entry's own section, others in .text, one of which nobody needs. */
#include "objects.h"

static __attribute__((noinline)) u64 square(u64 value)
{
	return value * value;
}

__attribute__((noinline)) u64 sum_of_squares(u64 left, u64 right)
{
	return square(left) + square(right);
}

__attribute__((noinline)) u64 needed_by_nobody(u64 value)
{
	return value + 42;
}

SECTION("storage")
static __attribute__((noinline)) u64 beside_the_entry(u64 value)
{
	return sum_of_squares(value, 3) + 1;
}

SECTION("storage")
u64 calls(struct context *context)
{
	u64 found = beside_the_entry(context->numbers[0]);

	return found + ob_crc32c(0, context->data, 4) + sum_of_squares(found, 2);
}
