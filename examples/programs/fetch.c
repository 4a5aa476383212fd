/*
 * Brings the bytes of a file that were read, as they are: ordinary reads of a file that lies where no file system of the client's reaches.
 * A request is a read of a part that the scratch has room for; what is behind the file's end is not there.
 */
#include "outboard_program.h"

/* The scratch. */
struct answer {
	/* Out: how many bytes there are, and they. */
	u64 len;
	u8 bytes[OB_STORAGE_SCRATCH_LEN - 8];
};

OB_PROGRAM("storage")
u64 fetch(struct ob_storage *context)
{
	struct answer *answer = (struct answer *)context->scratch;
	u64 len = context->data_len;

	if (len > sizeof(answer->bytes))
		len = sizeof(answer->bytes);
	answer->len = ob_copy(answer->bytes, len, context->data, len);
	context->done = 1;
	return 0;
}
