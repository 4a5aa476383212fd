/*
 * The programs' header, for compilers that make native code or WebAssembly: what a card has helpers for is done here, as one would who has a C
 * library. The programs' own source is the same.
 */
#ifndef PEERS_OUTBOARD_PROGRAM_H
#define PEERS_OUTBOARD_PROGRAM_H

#include "../../../crates/ob-ebpf/include/outboard_program.h"

/* Functions lie where the others do, and all programs are linked together. */
#undef OB_PROGRAM
#define OB_PROGRAM(hook) __attribute__((used, visibility("default")))
#undef OB_DATA_MIN
#define OB_DATA_MIN(len) _Static_assert((len) > 0, "there is data")

#ifdef __wasm__

/* There is no C library. Calls out of the sandbox, and the instruction that copies, cost more than these lengths take here. */
static inline void peers_move(u8 *to, const u8 *from, u64 len)
{
	if (len >= 8 && len <= 16) {
		u64 first = ob_read_u64(from), last = ob_read_u64(from + len - 8);

		*(ob_any_u64 *)to = first;
		*(ob_any_u64 *)(to + len - 8) = last;
	} else if (to <= from) {
		for (; len >= 8; len -= 8, to += 8, from += 8)
			*(ob_any_u64 *)to = ob_read_u64(from);
		for (; len; len--)
			*to++ = *from++;
	} else {
		for (; len >= 8; len -= 8)
			*(ob_any_u64 *)(to + len - 8) = ob_read_u64(from + len - 8);
		for (; len; len--)
			to[len - 1] = from[len - 1];
	}
}

static inline int peers_order(const u8 *left, const u8 *right, u64 len)
{
	for (; len >= 8; len -= 8, left += 8, right += 8) {
		u64 own = ob_read_u64(left), other = ob_read_u64(right);

		if (own != other)
			return __builtin_bswap64(own) < __builtin_bswap64(other) ? -1 : 1;
	}
	for (; len; len--, left++, right++)
		if (*left != *right)
			return *left < *right ? -1 : 1;
	return 0;
}

#else

#include <string.h>
#define peers_move memmove
#define peers_order memcmp

#endif

static inline u64 peers_copy(void *to, u64 to_len, const void *from, u64 from_len)
{
	u64 len = to_len < from_len ? to_len : from_len;

	peers_move(to, from, len);
	return len;
}

static inline s64 peers_compare(const void *left, u64 left_len, const void *right, u64 right_len)
{
	int order = peers_order(left, right, left_len < right_len ? left_len : right_len);

	if (order)
		return order < 0 ? -1 : 1;
	return left_len < right_len ? -1 : left_len > right_len;
}

#define ob_copy peers_copy
#define ob_compare peers_compare

#endif
