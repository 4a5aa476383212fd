/*
 * The store's GET with a bug: its check believes every record, for it takes the checksum that is there for the one that was computed. The
 * scenario of the store has to find that.
 */
#include "outboard_program.h"

#define ob_crc32c(earlier, from, len) ((void)(earlier), (void)(len), (u64)ob_read_u32((from) - 4))

#include "../../../../examples/programs/kv_get.c"
