/* Two programs for the same hook. */
#include "outboard_program.h"

OB_PROGRAM("predicate/one")
u64 one(struct ob_predicate *context)
{
	context->route = 1;
	return 0;
}

OB_PROGRAM("predicate/two")
u64 two(struct ob_predicate *context)
{
	context->route = 0;
	return 0;
}
