/* Constants, strings and variables, of sections that are laid out one behind the other. */
#include "objects.h"

static const u32 primes[] = { 2, 3, 5, 7, 11, 13, 17, 19 };
const u8 magic[3] SECTION(".rodata.magic") = { 0x0b, 0x0a, 0x0d };
static volatile u64 calls_so_far = 7;
static volatile u32 zeroes[6];
u16 step SECTION(".data.step") = 0x1234;
const u32 data_len_min SECTION("outboard.data_min") = 64;
char terms[] SECTION("license") = "GPL";

static __attribute__((noinline)) u64 matches(const char *text, const u8 *bytes, u32 len)
{
	for (u32 at = 0; at < len; at++)
		if ((u8)text[at] != bytes[at])
			return 0;
	return 1;
}

SECTION("storage/data")
u64 data(struct context *context)
{
	u64 number = context->numbers[0] & 7;

	calls_so_far += step;
	zeroes[number & 3] = primes[number];
	zeroes[5] += magic[context->numbers[1] % 3];
	return calls_so_far + zeroes[number & 3] + matches("outboard", context->data, 8) +
	       matches("card", context->data + 8, 4);
}
