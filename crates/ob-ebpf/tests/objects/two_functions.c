/* Two storage functions, which a client chooses from by their names. */
#include "outboard_program.h"

OB_PROGRAM("storage/one")
u64 one(struct ob_storage *context)
{
	context->done = 1;
	return 0;
}

OB_PROGRAM("storage/two")
u64 two(struct ob_storage *context)
{
	context->next_offset = context->offset + context->data_len;
	return 0;
}
