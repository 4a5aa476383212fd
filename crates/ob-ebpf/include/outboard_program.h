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
 * This file is made from the tables in src/hooks and src/world.rs; `OB_BLESS=1 cargo test -p ob-ebpf header` makes it anew.
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

/* The hook "predicate". */
#define OB_PREDICATE_SCRATCH_LEN 4096
#define OB_PREDICATE_DATA_LEN_MAX 1048576

struct ob_predicate {
	const u8 *data; /* a message of a client */
	const u64 data_len; /* how many bytes of it there are */
	u8 *scratch; /* a struct ob_predicate_scratch */
	const u64 scratch_len; /* how many bytes that has */
	const u64 standing; /* what the host says of the connection; 0: the card may answer nothing on it */
	const u64 at; /* where in the message the request begins; 0 at first */
	u64 route; /* 0: the card answers if the table has all keys; 1: the host */
	u64 changes; /* what a request for the host may change: 0 nothing, 1 its keys, 2 anything */
	u64 changes_standing; /* not 0: the standing may be another one after a request for the host */
	u64 id; /* what the client knows the reply by, if replies have ids */
	u64 keys; /* how many keys are in the scratch */
	u64 len; /* bytes of the request; 0: all that follow */
	u64 more; /* not 0: another request of the message begins behind it */
};
_Static_assert(__builtin_offsetof(struct ob_predicate, data) == 0, "data is at 0");
_Static_assert(__builtin_offsetof(struct ob_predicate, data_len) == 8, "data_len is at 8");
_Static_assert(__builtin_offsetof(struct ob_predicate, scratch) == 16, "scratch is at 16");
_Static_assert(__builtin_offsetof(struct ob_predicate, scratch_len) == 24, "scratch_len is at 24");
_Static_assert(__builtin_offsetof(struct ob_predicate, standing) == 32, "standing is at 32");
_Static_assert(__builtin_offsetof(struct ob_predicate, at) == 40, "at is at 40");
_Static_assert(__builtin_offsetof(struct ob_predicate, route) == 48, "route is at 48");
_Static_assert(__builtin_offsetof(struct ob_predicate, changes) == 56, "changes is at 56");
_Static_assert(__builtin_offsetof(struct ob_predicate, changes_standing) == 64, "changes_standing is at 64");
_Static_assert(__builtin_offsetof(struct ob_predicate, id) == 72, "id is at 72");
_Static_assert(__builtin_offsetof(struct ob_predicate, keys) == 80, "keys is at 80");
_Static_assert(__builtin_offsetof(struct ob_predicate, len) == 88, "len is at 88");
_Static_assert(__builtin_offsetof(struct ob_predicate, more) == 96, "more is at 96");

/* The hook "function". */
#define OB_FUNCTION_SCRATCH_LEN 7680
#define OB_FUNCTION_DATA_LEN_MAX 1048576

struct ob_function {
	const u8 *data; /* the request */
	const u64 data_len; /* how many bytes of it there are */
	u8 *scratch; /* a struct ob_function_scratch */
	const u64 scratch_len; /* how many bytes that has */
	const u64 now; /* milliseconds since 1970 */
	const u64 hits; /* how many keys the request has, and hits the scratch */
	u64 reads; /* how many reads are in the scratch; 0: the reply is there */
	u64 reply_len; /* bytes of the reply */
	u64 to_host; /* not 0: the host is to answer */
};
_Static_assert(__builtin_offsetof(struct ob_function, data) == 0, "data is at 0");
_Static_assert(__builtin_offsetof(struct ob_function, data_len) == 8, "data_len is at 8");
_Static_assert(__builtin_offsetof(struct ob_function, scratch) == 16, "scratch is at 16");
_Static_assert(__builtin_offsetof(struct ob_function, scratch_len) == 24, "scratch_len is at 24");
_Static_assert(__builtin_offsetof(struct ob_function, now) == 32, "now is at 32");
_Static_assert(__builtin_offsetof(struct ob_function, hits) == 40, "hits is at 40");
_Static_assert(__builtin_offsetof(struct ob_function, reads) == 48, "reads is at 48");
_Static_assert(__builtin_offsetof(struct ob_function, reply_len) == 56, "reply_len is at 56");
_Static_assert(__builtin_offsetof(struct ob_function, to_host) == 64, "to_host is at 64");

/* The hook "check". */
#define OB_CHECK_SCRATCH_LEN 6208
#define OB_CHECK_DATA_LEN_MAX 1048576

struct ob_check {
	const u8 *data; /* what was read */
	const u64 data_len; /* how many bytes of it there are */
	u8 *scratch; /* a struct ob_check_scratch */
	const u64 scratch_len; /* how many bytes that has */
	const u64 request_len; /* bytes of the request */
	const u64 index; /* which read it is, counted from 0 */
	const u64 reads; /* how many reads the request has */
	u64 head_len; /* bytes of the head that the client gets first */
	u64 value_offset; /* where in the data what it gets then begins */
	u64 value_len; /* how many bytes of it */
	u64 tail_len; /* bytes of the tail that it gets last */
};
_Static_assert(__builtin_offsetof(struct ob_check, data) == 0, "data is at 0");
_Static_assert(__builtin_offsetof(struct ob_check, data_len) == 8, "data_len is at 8");
_Static_assert(__builtin_offsetof(struct ob_check, scratch) == 16, "scratch is at 16");
_Static_assert(__builtin_offsetof(struct ob_check, scratch_len) == 24, "scratch_len is at 24");
_Static_assert(__builtin_offsetof(struct ob_check, request_len) == 32, "request_len is at 32");
_Static_assert(__builtin_offsetof(struct ob_check, index) == 40, "index is at 40");
_Static_assert(__builtin_offsetof(struct ob_check, reads) == 48, "reads is at 48");
_Static_assert(__builtin_offsetof(struct ob_check, head_len) == 56, "head_len is at 56");
_Static_assert(__builtin_offsetof(struct ob_check, value_offset) == 64, "value_offset is at 64");
_Static_assert(__builtin_offsetof(struct ob_check, value_len) == 72, "value_len is at 72");
_Static_assert(__builtin_offsetof(struct ob_check, tail_len) == 80, "tail_len is at 80");

/* The hook "cache". */
#define OB_CACHE_SCRATCH_LEN 7200
#define OB_CACHE_DATA_LEN_MAX 16777216

struct ob_cache {
	const u8 *data; /* what is written */
	const u64 data_len; /* how many bytes of it there are */
	u8 *scratch; /* a struct ob_cache_scratch */
	const u64 scratch_len; /* how many bytes that has */
	const u64 store_low; /* the first eight bytes of the store's id, which no client knows */
	const u64 store_high; /* the last eight */
	const u64 file; /* the name that the host has given the file */
	const u64 offset; /* where in the file the data begins */
	const u64 at; /* where in the data to go on; 0 at first */
	u64 candidates; /* how many there are in the scratch */
	u64 settled_at; /* they may be admitted when the log is settled up to here */
	u64 next; /* where in the data to go on, beyond `at`; 0: nothing more */
};
_Static_assert(__builtin_offsetof(struct ob_cache, data) == 0, "data is at 0");
_Static_assert(__builtin_offsetof(struct ob_cache, data_len) == 8, "data_len is at 8");
_Static_assert(__builtin_offsetof(struct ob_cache, scratch) == 16, "scratch is at 16");
_Static_assert(__builtin_offsetof(struct ob_cache, scratch_len) == 24, "scratch_len is at 24");
_Static_assert(__builtin_offsetof(struct ob_cache, store_low) == 32, "store_low is at 32");
_Static_assert(__builtin_offsetof(struct ob_cache, store_high) == 40, "store_high is at 40");
_Static_assert(__builtin_offsetof(struct ob_cache, file) == 48, "file is at 48");
_Static_assert(__builtin_offsetof(struct ob_cache, offset) == 56, "offset is at 56");
_Static_assert(__builtin_offsetof(struct ob_cache, at) == 64, "at is at 64");
_Static_assert(__builtin_offsetof(struct ob_cache, candidates) == 72, "candidates is at 72");
_Static_assert(__builtin_offsetof(struct ob_cache, settled_at) == 80, "settled_at is at 80");
_Static_assert(__builtin_offsetof(struct ob_cache, next) == 88, "next is at 88");

/* The hook "invalidate". */
#define OB_INVALIDATE_SCRATCH_LEN 4000
#define OB_INVALIDATE_DATA_LEN_MAX 0

struct ob_invalidate {
	u8 *scratch; /* a struct ob_invalidate_scratch */
	const u64 scratch_len; /* how many bytes that has */
	const u64 file; /* the name that the host has given the file */
	const u64 offset; /* where in the file the read begins */
	const u64 len; /* how many bytes are read */
	const u64 at; /* what `next` was; 0 at first */
	u64 keys; /* how many keys are in the scratch */
	u64 next; /* more than `at`: there is more; 0: nothing more */
};
_Static_assert(__builtin_offsetof(struct ob_invalidate, scratch) == 0, "scratch is at 0");
_Static_assert(__builtin_offsetof(struct ob_invalidate, scratch_len) == 8, "scratch_len is at 8");
_Static_assert(__builtin_offsetof(struct ob_invalidate, file) == 16, "file is at 16");
_Static_assert(__builtin_offsetof(struct ob_invalidate, offset) == 24, "offset is at 24");
_Static_assert(__builtin_offsetof(struct ob_invalidate, len) == 32, "len is at 32");
_Static_assert(__builtin_offsetof(struct ob_invalidate, at) == 40, "at is at 40");
_Static_assert(__builtin_offsetof(struct ob_invalidate, keys) == 48, "keys is at 48");
_Static_assert(__builtin_offsetof(struct ob_invalidate, next) == 56, "next is at 56");

/* What lies in scratches. */

/* bytes within the data */
struct ob_range {
	u32 offset; /* where they begin */
	u32 len; /* how many */
};
_Static_assert(sizeof(struct ob_range) == 8, "ob_range has 8 bytes");

/* what the table has for a key */
struct ob_hit {
	u64 stamp; /* of the request that it is from */
	u32 item_len; /* bytes of the item */
	u32 reserved; /* 0 */
	u8 item[24]; /* the item, and zeroes */
};
_Static_assert(sizeof(struct ob_hit) == 40, "ob_hit has 40 bytes");

/* bytes of a file, to be read */
struct ob_read {
	u64 offset; /* where in the file */
	u32 file; /* the name that the host has given it */
	u32 len; /* how many */
};
_Static_assert(sizeof(struct ob_read) == 16, "ob_read has 16 bytes");

/* what the table may hold once the log is settled behind it */
struct ob_candidate {
	u64 stamp; /* of the request that made it */
	u32 key_len; /* bytes of the key */
	u32 item_len; /* bytes of the item */
	u8 key[32]; /* the key */
	u8 item[24]; /* the item */
};
_Static_assert(sizeof(struct ob_candidate) == 72, "ob_candidate has 72 bytes");

/* a key */
struct ob_key {
	u32 len; /* how many bytes it has */
	u32 reserved; /* 0 */
	u8 bytes[32]; /* they */
};
_Static_assert(sizeof(struct ob_key) == 40, "ob_key has 40 bytes");

/* the scratch of a predicate */
struct ob_predicate_scratch {
	struct ob_range keys[512]; /* the request's keys, for the card */
};
_Static_assert(sizeof(struct ob_predicate_scratch) == 4096, "ob_predicate_scratch has 4096 bytes");

/* the scratch of a function */
struct ob_function_scratch {
	struct ob_hit hits[64]; /* for the program, one for each key */
	struct ob_read reads[64]; /* for the card, what to read */
	u8 reply[4096]; /* for the client, if nothing is to be read */
};
_Static_assert(sizeof(struct ob_function_scratch) == 7680, "ob_function_scratch has 7680 bytes");

/* the scratch of a check */
struct ob_check_scratch {
	struct ob_hit hit; /* for the program, of the key with the read's number */
	u8 reserved[24]; /* nothing */
	u8 request[4096]; /* for the program, the request */
	u8 head[1024]; /* for the client, before what was read */
	u8 tail[1024]; /* for the client, behind it */
};
_Static_assert(sizeof(struct ob_check_scratch) == 6208, "ob_check_scratch has 6208 bytes");

/* the scratch of a cache function */
struct ob_cache_scratch {
	struct ob_candidate candidates[100]; /* for the card, what was found */
};
_Static_assert(sizeof(struct ob_cache_scratch) == 7200, "ob_cache_scratch has 7200 bytes");

/* the scratch of an invalidate function */
struct ob_invalidate_scratch {
	struct ob_key keys[100]; /* for the card, what the table forgets */
};
_Static_assert(sizeof(struct ob_invalidate_scratch) == 4000, "ob_invalidate_scratch has 4000 bytes");

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

/* the XXH3 of bytes: 64 bits, without a seed */
static u64 (*const ob_xxh3)(const void *first, u64 first_len) = (void *)7;

#endif
