/*
 * Programs for the card, in C: what they find, and what they can call. docs/programs.md says what a program may do.
 *
 *     clang -target bpf -O2 -g -c -I <where this file is> program.c
 *
 * A program is one function for a hook:
 *
 *     OB_PROGRAM("storage")
 *     u64 program(struct ob_storage *context) { context->done = 1; return 0; }
 *
 * This file is made from the tables in src/hooks.rs and src/world.rs; `OB_BLESS=1 cargo test -p ob-ebpf --test header` makes it anew.
 */
#ifndef OUTBOARD_PROGRAM_H
#define OUTBOARD_PROGRAM_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef signed short s16;
typedef signed int s32;
typedef signed long long s64;

/* Marks the function that a hook calls: "storage", or "storage/name" where an object has several. */
#define OB_PROGRAM(hook) __attribute__((section(hook), used))

/* Says how many bytes of data there are at least: the card does not call the program with less, and the verifier counts on it. */
#define OB_DATA_MIN(len) const u32 ob_data_min __attribute__((section("outboard.data_min"), used)) = (len)

/*
 * Numbers lie in data as the format says, which is at any address: these read them from there, the lowest byte first. The card loads
 * from any address; clang believes that eBPF does not, and would take a number of unknown alignment apart into bytes, so it is not told.
 */
typedef u16 __attribute__((may_alias)) ob_any_u16;
typedef u32 __attribute__((may_alias)) ob_any_u32;
typedef u64 __attribute__((may_alias)) ob_any_u64;
#define ob_read_u16(address) (*(const ob_any_u16 *)(address))
#define ob_read_u32(address) (*(const ob_any_u32 *)(address))
#define ob_read_u64(address) (*(const ob_any_u64 *)(address))

/* The hook "storage". */
#define OB_STORAGE_SCRATCH_LEN 4096
#define OB_STORAGE_DATA_LEN_MAX 131072

struct ob_storage {
	const u8 *data; /* what was read */
	const u64 data_len; /* how many bytes of it there are */
	u8 *scratch; /* the query, and the answer; what is written here stays until the request ends */
	const u64 scratch_len; /* how many bytes of it there are */
	const u64 file; /* which of the request's files was read, counted from 0 */
	const u64 offset; /* where in the file the data begins */
	const u64 reads; /* how many reads the request has made, this one included */
	u64 done; /* not 0: the request is done, and the scratch is its answer */
	u64 next_file; /* which of the request's files to read next */
	u64 next_offset; /* where in that file */
	u64 next_len; /* how many bytes of it */
};
_Static_assert(__builtin_offsetof(struct ob_storage, data) == 0, "data is at 0");
_Static_assert(__builtin_offsetof(struct ob_storage, data_len) == 8, "data_len is at 8");
_Static_assert(__builtin_offsetof(struct ob_storage, scratch) == 16, "scratch is at 16");
_Static_assert(__builtin_offsetof(struct ob_storage, scratch_len) == 24, "scratch_len is at 24");
_Static_assert(__builtin_offsetof(struct ob_storage, file) == 32, "file is at 32");
_Static_assert(__builtin_offsetof(struct ob_storage, offset) == 40, "offset is at 40");
_Static_assert(__builtin_offsetof(struct ob_storage, reads) == 48, "reads is at 48");
_Static_assert(__builtin_offsetof(struct ob_storage, done) == 56, "done is at 56");
_Static_assert(__builtin_offsetof(struct ob_storage, next_file) == 64, "next_file is at 64");
_Static_assert(__builtin_offsetof(struct ob_storage, next_offset) == 72, "next_offset is at 72");
_Static_assert(__builtin_offsetof(struct ob_storage, next_len) == 80, "next_len is at 80");

/* What programs call: each by its number. */

/* looks up the key of so many bytes; its value, or null */
static const void *(*const ob_table_lookup)(const void *first, u64 first_len) = (void *)1;

/* copies as many bytes as the shorter of both ranges has, which may overlap; how many */
static u64 (*const ob_copy)(void *first, u64 first_len, const void *second, u64 second_len) = (void *)2;

/* the CRC32C of bytes that follow others whose CRC32C is given, or 0 */
static u64 (*const ob_crc32c)(u64 number0, const void *first, u64 first_len) = (void *)3;

/* -1, 0 or 1: how two ranges follow each other, byte by byte, the shorter first */
static s64 (*const ob_compare)(const void *first, u64 first_len, const void *second, u64 second_len) = (void *)4;

/* puts the number that bytes begin with into eight others; how many bytes it has, or 0 if it is none */
static u64 (*const ob_varint)(const void *first, u64 first_len, void *second, u64 second_len) = (void *)5;

/* tells the card's log two numbers; not every time, if it is often */
static u64 (*const ob_log)(u64 number0, u64 number1) = (void *)6;

#endif
