/*
 * Files on a card, from C.
 *
 *   cc -std=c99 -I crates/liboutboard/include examples/c/files.c -L target/debug -loutboard -o files
 *   LD_LIBRARY_PATH=target/debug ./files /run/outboard/link.sock
 *
 * Writes a file, reads it back, lists its directory; then keeps many reads out at once and waits for them on a group.
 */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "outboard.h"

enum { FOREVER = -1, BLOCK = 4096, BLOCKS = 64 };

/* Stops the program if a call failed, with what there is to say about it. */
static int64_t check(const char *what, int64_t result)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s (%s)\n", what, ob_error_text((int)result), ob_last_message());
        exit(1);
    }
    return result;
}

/* One call at a time: each waits for its answer. */
static void write_and_read_back(ob_session *session)
{
    const char greeting[] = "hello, card";
    char memory[64] = {0};
    ob_file *file;
    ob_info info;

    check("open", ob_open(session, "/example/greeting", OB_CREATE | OB_TRUNCATE, &file, FOREVER));
    check("write", ob_write(file, greeting, strlen(greeting), 0, FOREVER));
    check("flush", ob_flush(session, FOREVER));
    check("stat", ob_file_stat(file, &info, 1000));
    int64_t len = check("read", ob_read(file, memory, sizeof memory, 0, 1000));
    printf("%" PRIu64 " bytes: %.*s\n", info.size, (int)len, memory);
    ob_close(file);
}

static void list(ob_session *session, const char *path)
{
    ob_directory *directory;
    ob_entry entry;

    check("list", ob_list(session, path, &directory, FOREVER));
    for (size_t index = 0; index < ob_directory_count(directory); index++) {
        check("entry", ob_directory_entry(directory, index, &entry));
        printf("%s %s %" PRIu64 "\n", entry.kind == OB_FILE ? "file" : "directory", entry.name, entry.size);
    }
    ob_directory_free(directory);
}

/* Takes so many completions of a group, asleep while there are none. Each must have moved a whole block. */
static void take(ob_group *group, int count)
{
    ob_completion completions[16];

    while (count > 0) {
        int taken = (int)check("wait", ob_wait(group, completions, 16, FOREVER));
        for (int index = 0; index < taken; index++) {
            int64_t result = completions[index].result;
            if (result != BLOCK) {
                fprintf(stderr, "operation: %s\n", result < 0 ? ob_error_text((int)result) : "not a whole block");
                exit(2);
            }
        }
        count -= taken;
    }
}

/* Many at once: the group tells which are done, in whatever order that is. */
static void many_at_once(ob_session *session)
{
    ob_group *group;
    ob_file *opened, *file;
    unsigned char *memory = malloc(BLOCKS * BLOCK);

    if (memory == NULL)
        exit(1);
    check("group", ob_group_create(session, NULL, &group));
    check("open", ob_open(session, "/example/blocks", OB_CREATE, &opened, FOREVER));
    check("add", ob_group_add(group, opened, &file));

    for (int block = 0; block < BLOCKS; block++) {
        unsigned char *at = memory + block * BLOCK;
        memset(at, block, BLOCK);
        /* Two pieces of memory, side by side in the file. */
        ob_piece pieces[2] = {{at, 1000}, {at + 1000, BLOCK - 1000}};
        check("writev", ob_submit_writev(file, pieces, 2, (uint64_t)block * BLOCK, 0, (uint64_t)block));
    }
    take(group, BLOCKS);

    memset(memory, 0xff, BLOCKS * BLOCK);
    for (int block = 0; block < BLOCKS; block++)
        check("read", ob_submit_read(file, memory + block * BLOCK, BLOCK, (uint64_t)block * BLOCK, (uint64_t)block));
    take(group, BLOCKS);

    for (int byte = 0; byte < BLOCKS * BLOCK; byte++)
        if (memory[byte] != byte / BLOCK)
            exit(3);
    printf("%d blocks written and read back\n", BLOCKS);

    ob_close(file);
    ob_close(opened);
    ob_group_destroy(group);
    free(memory);
}

int main(int argc, char **argv)
{
    ob_session *session;
    ob_session_options options;
    int made;

    if (argc != 2) {
        fprintf(stderr, "usage: %s SOCKET or ADDRESS:PORT of a card\n", argv[0]);
        return 2;
    }
    ob_session_options_init(&options);
    options.name = "files.c";
    check("attach", ob_session_open(argv[1], &options, &session));
    made = ob_make_directory(session, "/example", FOREVER);
    if (made != OB_EXISTS)
        check("make directory", made);

    write_and_read_back(session);
    many_at_once(session);
    list(session, "/example");

    ob_session_close(session);
    return 0;
}
