/* What the sources of test objects have in common. */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef signed short s16;
typedef signed int s32;
typedef signed long long s64;

#define SECTION(name) __attribute__((section(name), used))

struct context {
	const u8 *data;
	u64 data_len;
	u8 *scratch;
	u64 scratch_len;
	u64 numbers[4];
};

static u64 (*const ob_crc32c)(u64 before, const void *bytes, u64 len) = (void *)3;
static u64 (*const ob_log)(u64 first, u64 second) = (void *)6;
