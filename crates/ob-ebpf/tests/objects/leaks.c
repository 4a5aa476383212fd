/* A program that would tell its result where memory lies. */
#include "outboard_program.h"

OB_PROGRAM("invalidate")
u64 leaks(struct ob_invalidate *context)
{
	return (u64)context->scratch;
}
