/* What has no meaning here, an entry each; and a helper that is called by its name, which has. */
#include "objects.h"

struct {
	int (*type)[1];
	int *key;
	u64 *value;
} counters SECTION(".maps");
extern const u64 jiffies __attribute__((section(".ksyms")));
extern u64 kernel_function(u64 argument) __attribute__((section(".ksyms")));
extern u64 ob_varint(const void *bytes, u64 len, void *number, u64 number_len);
static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static const char *const names[] = { "one", "two", "three", "four" };

struct task {
	u64 first, second;
} __attribute__((preserve_access_index));

static __attribute__((noinline)) u64 times_three(u64 value)
{
	return value * 3;
}

static __attribute__((noinline)) u64 times_five(u64 value)
{
	return value * 5;
}

SECTION("storage/by_name")
u64 by_name(struct context *context)
{
	u64 number = 0;

	return ob_varint(context->data, 8, &number, 8) + number;
}

SECTION("storage/map")
u64 map(struct context *context)
{
	int key = context->numbers[0];
	u64 *value = map_lookup(&counters, &key);

	return value ? *value : 0;
}

SECTION("storage/kernel_data")
u64 kernel_data(void)
{
	return jiffies;
}

SECTION("storage/kernel_call")
u64 kernel_call(struct context *context)
{
	return kernel_function(context->numbers[0]);
}

SECTION("storage/kernel_type")
u64 kernel_type(struct task *task)
{
	return task->second;
}

SECTION("storage/pointers")
u64 pointers(struct context *context)
{
	return names[context->numbers[0] & 3][0];
}

SECTION("storage/indirect")
u64 indirect(struct context *context)
{
	u64 (*volatile chosen)(u64) = context->numbers[0] ? times_three : times_five;

	return chosen(2);
}
