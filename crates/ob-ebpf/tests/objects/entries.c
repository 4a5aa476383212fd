/* Two entries in one object, for two hooks, which share a function. */
#include "objects.h"

static __attribute__((noinline)) u64 shared(const struct context *context)
{
	return context->numbers[0] + context->numbers[1];
}

SECTION("storage/first")
u64 first(struct context *context)
{
	return shared(context) + 1;
}

SECTION("offload/second")
u64 second(struct context *context)
{
	ob_log(1, 2);
	return shared(context) + 2;
}
