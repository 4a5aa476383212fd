/*
 * GET of the key-value store: what the store's functions on the card say of it, as three programs.
 *
 *   message ─▶ predicate: a GET? ─▶ its key ─▶ table ─▶ function: what to read ─▶ read ─▶ check: the record? ─▶ $5\r\nvalue\r\n
 *
 * A program answers what it understands, and leaves everything else by a result other than 0: the store's own function answers then, or,
 * after a read, the host. So these understand what clients send nearly always, and nothing else: a GET as an array of two strings, of a
 * key that the table takes, whose value is not about to expire and not too long to be checked in one call. What they do answer
 * has to be what the store's own functions would have said, to the byte.
 *
 *   request  *2\r\n $3\r\n GET\r\n $<digits>\r\n <key>\r\n
 *   record   u32 checksum │ u16 key_len │ u8 kind │ u8 │ u32 value_len │ u32 │ u64 stamp │ u64 expires │ key │ value
 *   item     u32 part │ u32 offset / 8 │ u32 value_len │ u32 lower half of the stamp │ u64 expires
 */
#include "outboard_program.h"

#define KEY_LEN_MAX 32
/* A call has fuel for the checksum of this much, and for little more. */
#define VALUE_LEN_MAX (256 << 10)
/* Milliseconds before its expiry from which on a key is left to the store: two clocks may differ, and reading takes time. */
#define EXPIRY_MARGIN 100
/* Records begin at multiples of this in their file. */
#define RECORD_ALIGNMENT 8
#define KIND_VALUE 1
/* Stamps are below this. */
#define STAMP_END (1ULL << 63)
/* Bytes that a helper takes in one call. */
#define CHUNK_LEN (64 << 10)

/* The result of a program that has answered, and of one that leaves it to others. */
enum { ANSWERED = 0, LEFT = 1 };

/* Letters as the number that a load of them gives. */
#define TEXT2(a, b) ((u32)(a) | (u32)(b) << 8)
#define TEXT4(a, b, c, d) (TEXT2(a, b) | TEXT2(c, d) << 16)
/* The bit by which small letters differ from capital ones, for three letters and something else. */
#define SMALL3 0x00202020

/* What the table has for a key: where its record lies, and by what it is known again. */
struct item {
	u32 part;
	u32 offset;
	u32 value_len;
	u32 stamp;
	u64 expires;
};
_Static_assert(sizeof(struct item) == 24, "an item has 24 bytes");

/* What a record begins with; the key and the value follow. */
struct record {
	/* The CRC32C of everything behind it. */
	u32 checksum;
	u16 key_len;
	u8 kind;
	u8 reserved;
	u32 value_len;
	u32 reserved_too;
	u64 stamp;
	/* Milliseconds since 1970; 0: never. */
	u64 expires;
};
_Static_assert(sizeof(struct record) == 32, "a record's header has 32 bytes");

/* Where the key of a GET is in it. Whether it is one of those that are understood. */
static inline int find_key(const u8 *request, u64 len, struct ob_range *key)
{
	u32 digit, key_at, key_len;

	/* The shortest has a key of one byte. Nothing before the key's length depends on anything, so it is at fixed places. */
	if (len < sizeof("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n") - 1)
		return 0;
	if (ob_read_u32(request) != TEXT4('*', '2', '\r', '\n') || ob_read_u32(request + 4) != TEXT4('$', '3', '\r', '\n') ||
	    (ob_read_u32(request + 8) | SMALL3) != TEXT4('g', 'e', 't', '\r') || ob_read_u16(request + 12) != TEXT2('\n', '$'))
		return 0;

	/* Two digits at most, of which the first is not 0. A difference below 0 is a great number. */
	key_len = request[14] - '0';
	if (key_len - 1 > 8)
		return 0;
	key_at = 17;
	digit = request[15] - '0';
	if (digit <= 9) {
		key_len = 10 * key_len + digit;
		key_at = 18;
	}
	if (key_len > KEY_LEN_MAX || ob_read_u16(request + key_at - 2) != TEXT2('\r', '\n'))
		return 0;

	/* The key and the end of its line are all that follows. */
	if (len != key_at + key_len + 2 || ob_read_u16(request + len - 2) != TEXT2('\r', '\n'))
		return 0;
	key->offset = key_at;
	key->len = key_len;
	return 1;
}

OB_PROGRAM("predicate/kv_get")
u64 kv_get_predicate(struct ob_predicate *context)
{
	struct ob_predicate_scratch *scratch = (struct ob_predicate_scratch *)context->scratch;
	struct ob_range key;

	/* A message of the store is one request. */
	if (!context->standing || context->at || !find_key(context->data, context->data_len, &key))
		return LEFT;
	scratch->keys[0] = key;
	context->keys = 1;
	context->route = 0;
	return ANSWERED;
}

OB_PROGRAM("function/kv_get")
u64 kv_get_function(struct ob_function *context)
{
	struct ob_function_scratch *scratch = (struct ob_function_scratch *)context->scratch;
	const struct item *item = (const struct item *)scratch->hits[0].item;
	struct ob_read *read = &scratch->reads[0];
	struct ob_range key;

	/* The predicate was perhaps another one: programs come and go while requests are under way. */
	if (context->hits != 1 || !find_key(context->data, context->data_len, &key))
		return LEFT;
	if (scratch->hits[0].item_len != sizeof(struct item) || item->value_len > VALUE_LEN_MAX)
		return LEFT;
	/* The margin is taken from the greater number, where it cannot wrap around. */
	if (item->expires && (item->expires <= EXPIRY_MARGIN || item->expires - EXPIRY_MARGIN <= context->now))
		return LEFT;
	read->file = item->part;
	read->offset = (u64)item->offset * RECORD_ALIGNMENT;
	read->len = sizeof(struct record) + key.len + item->value_len;
	context->reads = 1;
	return ANSWERED;
}

/* The CRC32C of what is between two addresses. */
static inline u32 checksum_of(const u8 *at, const u8 *end)
{
	u64 checksum = 0;

	while (at + CHUNK_LEN <= end) {
		checksum = ob_crc32c(checksum, at, CHUNK_LEN);
		at += CHUNK_LEN;
	}
	return ob_crc32c(checksum, at, end - at);
}

/* Writes a number of at most six digits. How many it has. */
static inline u64 write_number(u8 *into, u32 number)
{
	u64 len = 0;

	for (u32 unit = 100000; unit; unit /= 10)
		if (number >= unit || unit == 1)
			into[len++] = '0' + number / unit % 10;
	return len;
}

OB_PROGRAM("check/kv_get")
u64 kv_get_check(struct ob_check *context)
{
	struct ob_check_scratch *scratch = (struct ob_check_scratch *)context->scratch;
	const struct item *item = (const struct item *)scratch->hit.item;
	const u8 *data = context->data;
	const struct record *record = (const struct record *)data;
	u32 value_len;
	u64 len, head_len;
	struct ob_range key;

	if (!find_key(scratch->request, context->request_len, &key))
		return LEFT;
	/* What was read may be anything: the place was perhaps given to others since the table was asked. */
	if (sizeof(struct record) + key.len > context->data_len)
		return LEFT;
	/* It is the record that the table meant if it is that key's, of that request, and the same in all else; */
	value_len = record->value_len;
	if (record->kind != KIND_VALUE || record->key_len != key.len || value_len != item->value_len)
		return LEFT;
	if (record->stamp >= STAMP_END || (u32)record->stamp != item->stamp || record->expires != item->expires)
		return LEFT;
	if (ob_compare(data + sizeof(struct record), key.len, scratch->request + key.offset, key.len))
		return LEFT;
	/* and it is whole, and no bytes of another that look like it. */
	len = sizeof(struct record) + key.len + value_len;
	if (value_len > VALUE_LEN_MAX || len > context->data_len)
		return LEFT;
	if (checksum_of(data + sizeof(record->checksum), data + len) != record->checksum)
		return LEFT;

	scratch->head[0] = '$';
	head_len = 1 + write_number(scratch->head + 1, value_len);
	scratch->head[head_len] = '\r';
	scratch->head[head_len + 1] = '\n';
	context->head_len = head_len + 2;
	context->value_offset = sizeof(struct record) + key.len;
	context->value_len = value_len;
	scratch->tail[0] = '\r';
	scratch->tail[1] = '\n';
	context->tail_len = 2;
	return ANSWERED;
}
