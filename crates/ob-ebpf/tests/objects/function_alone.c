/* A function that plans reads, without the check that would make a reply of them. */
#include "outboard_program.h"

OB_PROGRAM("function")
u64 plans(struct ob_function *context)
{
	context->reads = 1;
	return 0;
}
