/* Every call of the header, and what it says when it must fail. Prints "ok". */

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "outboard.h"

#define REQUIRE(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, ob_last_message()); \
            exit(1); \
        } \
    } while (0)

enum { LONG = 60000 };

static void names(ob_session *session)
{
    ob_info info;
    ob_space space;
    ob_directory *directory;
    ob_entry entry;
    ob_file *file;

    REQUIRE(ob_make_directory(session, "/d", LONG) == OB_OK);
    REQUIRE(ob_make_directory(session, "/d", LONG) == OB_EXISTS);
    REQUIRE(ob_make_directory(session, "/none/d", LONG) == OB_NOT_FOUND);
    REQUIRE(ob_make_directory(session, "/../d", LONG) == OB_BAD_NAME);
    REQUIRE(strstr(ob_last_message(), "..") != NULL);
    REQUIRE(ob_open(session, "/d/f", 0, &file, LONG) == OB_NOT_FOUND);
    REQUIRE(ob_open(session, "/d/f", 64, &file, LONG) == OB_INVALID);
    REQUIRE(ob_open(session, "/d/f", OB_CREATE_NEW, &file, LONG) == OB_OK);
    REQUIRE(ob_stat(session, "/d/f", &info, LONG) == OB_OK);
    REQUIRE(info.node == ob_file_node(file) && info.kind == OB_FILE && info.size == 0);
    REQUIRE(ob_resize(file, 100, LONG) == OB_OK);
    REQUIRE(ob_open(session, "/d/f", OB_TRUNCATE, NULL, LONG) == OB_INVALID);
    REQUIRE(ob_file_stat(file, &info, LONG) == OB_OK && info.size == 100);
    ob_close(file);
    REQUIRE(ob_open(session, "/d/g", OB_CREATE, &file, LONG) == OB_OK);
    ob_close(file);
    REQUIRE(ob_rename(session, "/d/f", "/d/g", 1, LONG) == OB_EXISTS);
    REQUIRE(ob_rename(session, "/d/f", "/d/g", 0, LONG) == OB_OK);
    REQUIRE(ob_list(session, "/d", &directory, LONG) == OB_OK);
    REQUIRE(ob_directory_count(directory) == 1);
    REQUIRE(ob_directory_entry(directory, 0, &entry) == OB_OK);
    REQUIRE(strcmp(entry.name, "g") == 0 && entry.size == 100 && entry.kind == OB_FILE);
    REQUIRE(ob_directory_entry(directory, 1, &entry) == OB_INVALID);
    ob_directory_free(directory);
    REQUIRE(ob_space_info(session, &space, LONG) == OB_OK && space.files == 1 && space.directories == 2);
    REQUIRE(ob_remove_directory(session, "/d", LONG) == OB_NOT_EMPTY);
    REQUIRE(ob_remove_file(session, "/d", LONG) == OB_IS_A_DIRECTORY);
    REQUIRE(ob_remove_file(session, "/d/g", LONG) == OB_OK);
    REQUIRE(ob_remove_directory(session, "/d", LONG) == OB_OK);
    REQUIRE(ob_flush(session, LONG) == OB_OK);
}

static void nothing(ob_session *session)
{
    ob_group *group;
    ob_file *file;
    ob_completion completion;

    REQUIRE(ob_session_open(NULL, NULL, &session) == OB_INVALID);
    REQUIRE(ob_session_open("/x", NULL, NULL) == OB_INVALID);
    REQUIRE(ob_make_directory(NULL, "/d", LONG) == OB_INVALID);
    REQUIRE(ob_read(NULL, &completion, 1, 0, LONG) == OB_INVALID);
    REQUIRE(ob_poll(NULL, &completion, 1) == OB_INVALID);
    REQUIRE(ob_session_is_attached(session) == 1 && ob_session_attachments(session) == 1);
    REQUIRE(ob_session_wait_attached(session, 1, LONG) == OB_OK);
    REQUIRE(ob_session_wait_attached(session, 2, 1) == OB_TIMED_OUT);
    REQUIRE(ob_group_create(session, NULL, &group) == OB_OK);
    REQUIRE(ob_poll(group, NULL, 1) == OB_INVALID);
    REQUIRE(ob_poll(group, &completion, 0) == OB_INVALID);
    REQUIRE(ob_poll(group, &completion, 1) == 0);
    REQUIRE(ob_wait(group, &completion, 1, 1) == 0);
    REQUIRE(ob_open(session, "/f", OB_CREATE, &file, LONG) == OB_OK);
    /* Nobody could take this completion. */
    REQUIRE(ob_submit_read(file, &completion, 1, 0, 0) == OB_INVALID);
    REQUIRE(ob_read(file, NULL, 1, 0, LONG) == OB_INVALID);
    REQUIRE(ob_read(file, NULL, 0, 0, LONG) == 0);
    ob_close(file);
    ob_group_destroy(group);
    ob_session_close(NULL);
    ob_group_destroy(NULL);
    ob_close(NULL);
    ob_directory_free(NULL);
    REQUIRE(strcmp(ob_error_text(12345), "an error that is not known") == 0);
    REQUIRE(ob_error_errno(OB_NOT_FOUND) == ENOENT && ob_error_errno(OB_NO_SPACE) == ENOSPC);
    REQUIRE(ob_error_errno(OB_RING_FULL) == EAGAIN && ob_error_errno(OB_NOT_EMPTY) == ENOTEMPTY);
    REQUIRE(ob_error_errno(OB_CARD_GONE) == ECONNABORTED && ob_error_errno(OB_TIMED_OUT) == ETIMEDOUT);
    REQUIRE(ob_error_errno(OB_TOO_LARGE) == EFBIG && ob_error_errno(OB_READ_ONLY) == EROFS);
    REQUIRE(ob_error_errno(OB_DETACHED) == ENOTCONN && ob_error_errno(OB_UNSUPPORTED) == EOPNOTSUPP);
    REQUIRE(ob_error_errno(OB_EXISTS) == EEXIST && ob_error_errno(OB_PROTOCOL) == EPROTO);
    REQUIRE(ob_error_errno(OB_NOT_A_DIRECTORY) == ENOTDIR && ob_error_errno(OB_IS_A_DIRECTORY) == EISDIR);
}

/* Transfers of many sizes, with and without an end to the patience; the largest are split by the library. */
static void transfers(ob_session *session)
{
    static const size_t sizes[] = {1, 4096, 100000, 5000000};
    ob_file *file;

    REQUIRE(ob_open(session, "/t", OB_CREATE, &file, LONG) == OB_OK);
    for (size_t index = 0; index < sizeof sizes / sizeof *sizes; index++) {
        size_t len = sizes[index];
        unsigned char *out = malloc(len), *in = malloc(len);
        REQUIRE(out != NULL && in != NULL);
        for (size_t byte = 0; byte < len; byte++)
            out[byte] = (unsigned char)(byte * 31 + index);
        for (int timeout = -1; timeout <= LONG; timeout += LONG + 1) {
            memset(in, 0, len);
            REQUIRE(ob_write(file, out, len, 7, timeout) == (int64_t)len);
            REQUIRE(ob_read(file, in, len, 7, timeout) == (int64_t)len);
            REQUIRE(memcmp(in, out, len) == 0);
        }
        free(out);
        free(in);
    }
    ob_close(file);
}

struct worker {
    ob_file *file;
    ob_group *group;
    int index;
    unsigned char memory[100][64];
};

enum { WORKERS = 4, EACH = 100 };

static void *submit(void *argument)
{
    struct worker *worker = argument;

    for (int each = 0; each < EACH; each++) {
        uint64_t tag = (uint64_t)(worker->index * EACH + each);
        int started;
        memset(worker->memory[each], (int)tag, 64);
        do {
            started = ob_submit_write(worker->file, worker->memory[each], 64, tag * 64, OB_DURABLE, tag);
        } while (started == OB_RING_FULL || started == OB_TOO_MANY);
        REQUIRE(started == OB_OK);
    }
    return NULL;
}

/* Threads submit at once, one takes the completions: few at a time, and with less room than operations. */
static void groups(ob_session *session)
{
    static struct worker workers[WORKERS];
    static unsigned char seen[WORKERS * EACH];
    pthread_t threads[WORKERS];
    ob_group_options options;
    ob_group *group;
    ob_file *opened, *file;
    ob_completion completions[3];
    unsigned char memory[WORKERS * EACH * 64];
    ob_piece pieces[2] = {{memory, 1000}, {memory + 1000, sizeof memory - 1000}};

    ob_group_options_init(&options);
    options.outstanding = 32;
    options.small_ring_bytes = 65536;
    REQUIRE(ob_group_create(session, &options, &group) == OB_OK);
    REQUIRE(ob_open(session, "/g", OB_CREATE, &opened, LONG) == OB_OK);
    REQUIRE(ob_group_add(group, opened, &file) == OB_OK);
    for (int index = 0; index < WORKERS; index++) {
        workers[index].file = file;
        workers[index].group = group;
        workers[index].index = index;
        REQUIRE(pthread_create(&threads[index], NULL, submit, &workers[index]) == 0);
    }
    for (int taken = 0; taken < WORKERS * EACH;) {
        int count = ob_wait(group, completions, 3, LONG);
        REQUIRE(count > 0 && count <= 3);
        for (int index = 0; index < count; index++) {
            REQUIRE(completions[index].result == 64);
            REQUIRE(seen[completions[index].tag]++ == 0);
        }
        taken += count;
    }
    for (int index = 0; index < WORKERS; index++)
        pthread_join(threads[index], NULL);
    REQUIRE(ob_submit_flush(group, 1) == OB_OK);
    REQUIRE(ob_wait(group, completions, 3, LONG) == 1 && completions[0].result == 0);
    REQUIRE(ob_submit_readv(file, pieces, 2, 0, 2) == OB_OK);
    REQUIRE(ob_wait(group, completions, 3, LONG) == 1 && completions[0].result == (int64_t)sizeof memory);
    for (size_t byte = 0; byte < sizeof memory; byte++)
        REQUIRE(memory[byte] == (unsigned char)(byte / 64));
    REQUIRE(ob_submit_write(file, memory, 1, 0, 77, 3) == OB_INVALID);
    /* Files outlive their group, and say that it is gone. */
    ob_group_destroy(group);
    REQUIRE(ob_submit_read(file, memory, 1, 0, 4) == OB_CLOSED);
    REQUIRE(ob_read(file, memory, 1, 0, LONG) == OB_CLOSED);
    REQUIRE(ob_read(opened, memory, 1, 0, LONG) == 1);
    ob_close(file);
    ob_close(opened);
}

static void *wait_for_one(void *argument)
{
    ob_completion completion;

    REQUIRE(ob_wait(argument, &completion, 1, LONG) == 1);
    REQUIRE(completion.result == 0);
    return NULL;
}

/* Threads wait at once, with room for one completion each: nobody sleeps while there is one that another one found. */
static void waiters(ob_session *session)
{
    enum { WAITERS = 3, ROUNDS = 300 };
    pthread_t threads[WAITERS];
    ob_group *group;
    ob_completion completion;

    REQUIRE(ob_group_create(session, NULL, &group) == OB_OK);
    for (int round = 0; round < ROUNDS; round++) {
        for (int index = 0; index < WAITERS; index++)
            REQUIRE(pthread_create(&threads[index], NULL, wait_for_one, group) == 0);
        for (int index = 0; index < WAITERS; index++)
            REQUIRE(ob_submit_flush(group, (uint64_t)index) == OB_OK);
        for (int index = 0; index < WAITERS; index++)
            pthread_join(threads[index], NULL);
        REQUIRE(ob_poll(group, &completion, 1) == 0);
    }
    ob_group_destroy(group);
}

int main(int argc, char **argv)
{
    ob_session *session;

    REQUIRE(argc == 2);
    REQUIRE(ob_session_open("/none/such.sock", NULL, &session) == OB_ATTACH);
    REQUIRE(ob_session_open(argv[1], NULL, &session) == OB_OK);
    names(session);
    nothing(session);
    transfers(session);
    groups(session);
    waiters(session);
    ob_session_close(session);
    puts("ok");
    return 0;
}
