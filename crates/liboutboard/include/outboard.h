/*
 * outboard.h: files executed on an Outboard card, for programs in C.
 *
 *   ob_session_open -> ob_open -> ob_read, ob_write                      wait for each
 *   ob_group_create -> ob_group_add -> ob_submit_read, ob_submit_write   many at once
 *                                   -> ob_poll, ob_wait                  their completions
 *
 * Link with -loutboard. The rules that hold everywhere:
 *
 * - Calls return 0 or more on success, and a negative ob_error otherwise. ob_error_text says it in words;
 *   ob_last_message has more to say about a call that failed on this thread.
 * - Any number of threads may use a session, group or file at the same time; but nothing may use it once it is being
 *   closed or destroyed.
 * - Paths are names with '/' between them, from the card's root; any bytes, no "." and no "..".
 * - A timeout is in milliseconds; a negative one never ends. Only calls with a timeout wait, and ob_session_open and
 *   ob_group_create, which wait for the card's answer (for as long as attach_within_ms, and patience_ms, say).
 * - When the card dies, what is out completes with OB_CARD_GONE: it may have happened or not. The session attaches to
 *   the card's next life by itself, and files stay valid. Until then calls end with OB_DETACHED.
 * - ob_read and ob_write with a timeout need as much memory again: a call that has timed out must not have the caller's.
 * - A session belongs to the process that opened it. A child of fork() must not use what its parent opened, nor close it;
 *   it may open a session of its own, or exec.
 */

#ifndef OUTBOARD_H
#define OUTBOARD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One application attached to one card. */
typedef struct ob_session ob_session;
/* A notification group: rings of its own, and the operations that are out through them. */
typedef struct ob_group ob_group;
/* An open file. */
typedef struct ob_file ob_file;
/* The entries of a directory. */
typedef struct ob_directory ob_directory;

/* Why a call failed. */
typedef enum ob_error {
    OB_OK = 0,
    OB_NOT_FOUND = -1,         /* no such file or directory, or the file was removed */
    OB_EXISTS = -2,            /* the name is taken */
    OB_NOT_A_DIRECTORY = -3,   /* a directory is needed */
    OB_IS_A_DIRECTORY = -4,    /* a file is needed */
    OB_NOT_EMPTY = -5,         /* the directory has entries */
    OB_BAD_NAME = -6,          /* a name or path that cannot be */
    OB_WITHIN_ITSELF = -7,     /* a directory cannot be moved into itself */
    OB_INVALID = -8,           /* an argument that cannot be */
    OB_TOO_LARGE = -9,         /* beyond the largest file, or larger than a request can be */
    OB_NO_SPACE = -10,         /* no space is left on the device */
    OB_IO = -11,               /* the card's device failed */
    OB_READ_ONLY = -12,        /* the card takes no more changes until it is started again */
    OB_UNSUPPORTED = -13,      /* the card does not know this */
    OB_BUSY = -14,             /* the card has too much in flight; try again */
    OB_IN_USE = -15,           /* a namespace lies on this file, and only that namespace may change it */
    OB_CARD_GONE = -20,        /* the card died before it answered: it may have happened or not */
    OB_DETACHED = -21,         /* there is no card at the moment, and nothing was sent */
    OB_CLOSED = -22,           /* the group was destroyed */
    OB_RING_FULL = -23,        /* nothing was sent; there is room when completions have been taken */
    OB_TOO_MANY = -24,         /* nothing was sent; as many operations are out, or not taken, as the group allows */
    OB_TIMED_OUT = -25,        /* the time is up */
    OB_PROTOCOL = -26,         /* the card answered what it must not */
    OB_ATTACH = -27,           /* the card could not be attached to, or refused a group */
    OB_SYSTEM = -28            /* this process is out of something, or the library has an error */
} ob_error;

/* The error in words. Never NULL; the text lives as long as the program. */
const char *ob_error_text(int error);

/* The nearest value of errno. */
int ob_error_errno(int error);

/* What there is to say about the last call that failed on this thread. Never NULL; the text lives until the next call
 * that fails on this thread. */
const char *ob_last_message(void);

/* ---- sessions ------------------------------------------------------------------------------------------------ */

typedef struct ob_session_options {
    const char *name;          /* this application, for people; NULL: what the program was called as */
    int64_t attach_within_ms;  /* how long attaching may take */
    int64_t dead_after_ms;     /* how long a tcp card may be out of reach before it counts as dead */
    int64_t patience_ms;       /* how long calls with a timeout wait for a card that is gone; 0: not at all */
} ob_session_options;

/* Sets the defaults. */
void ob_session_options_init(ob_session_options *options);

/* Attaches to the card at `endpoint`, and waits for that: the path of a Unix socket, or a TCP address such as "127.0.0.1:4422". `options` may
 * be NULL. */
int ob_session_open(const char *endpoint, const ob_session_options *options, ob_session **session);

/* Gives the session up. It ends when its groups and files are closed too. NULL is fine. */
void ob_session_close(ob_session *session);

/* 1 if there is a card at this moment. */
int ob_session_is_attached(const ob_session *session);

/* How often this session has attached to a card. */
uint64_t ob_session_attachments(const ob_session *session);

/* Waits until the session is attached for the `attachment`th time, and its groups are open again. */
int ob_session_wait_attached(const ob_session *session, uint64_t attachment, int64_t timeout_ms);

/* ---- directories and names ----------------------------------------------------------------------------------- */

typedef enum ob_kind {
    OB_DIRECTORY = 1,
    OB_FILE = 2
} ob_kind;

typedef struct ob_info {
    uint64_t node;       /* the number of the file or directory: never used twice */
    uint64_t size;       /* bytes of a file, entries of a directory */
    uint64_t allocated;  /* bytes that it takes on the device */
    uint64_t parent;     /* the directory that it is in; 0 for the root */
    int32_t kind;        /* an ob_kind */
    int32_t reserved;
} ob_info;

typedef struct ob_space {
    uint64_t total;       /* bytes of the device that files can have */
    uint64_t free;        /* bytes of it that no file has */
    uint64_t files;
    uint64_t directories; /* the root included */
} ob_space;

typedef struct ob_entry {
    const char *name;    /* lives as long as the list */
    uint64_t node;
    uint64_t size;
    int32_t kind;        /* an ob_kind */
    int32_t reserved;
} ob_entry;

int ob_make_directory(ob_session *session, const char *path, int64_t timeout_ms);
int ob_remove_file(ob_session *session, const char *path, int64_t timeout_ms);
int ob_remove_directory(ob_session *session, const char *path, int64_t timeout_ms);

/* Renames; a file replaces a file, a directory an empty directory. With `only_new` the new name must be free. */
int ob_rename(ob_session *session, const char *from, const char *to, int only_new, int64_t timeout_ms);

int ob_stat(ob_session *session, const char *path, ob_info *info, int64_t timeout_ms);
int ob_space_info(ob_session *session, ob_space *space, int64_t timeout_ms);

/* Makes everything durable, of all files, that was completed before this call. */
int ob_flush(ob_session *session, int64_t timeout_ms);

/* All entries of a directory, in the byte order of their names. */
int ob_list(ob_session *session, const char *path, ob_directory **directory, int64_t timeout_ms);
size_t ob_directory_count(const ob_directory *directory);
int ob_directory_entry(const ob_directory *directory, size_t index, ob_entry *entry);
void ob_directory_free(ob_directory *directory);

/* ---- files: one call at a time ------------------------------------------------------------------------------- */

#define OB_CREATE 1      /* the file is created if it is missing */
#define OB_CREATE_NEW 2  /* the file is created, and must be missing */
#define OB_TRUNCATE 4    /* the file is cut to no bytes */

int ob_open(ob_session *session, const char *path, int flags, ob_file **file, int64_t timeout_ms);

/* NULL is fine. What is out goes on. */
void ob_close(ob_file *file);

uint64_t ob_file_node(const ob_file *file);
int ob_file_stat(ob_file *file, ob_info *info, int64_t timeout_ms);

/* Cuts the file, or lets it grow with zeros. */
int ob_resize(ob_file *file, uint64_t size, int64_t timeout_ms);

/* Bytes moved. A read is short only where the file ends. A read that times out leaves the memory alone; a write that does
 * may still happen. Requests of any size are split as needed. */
int64_t ob_read(ob_file *file, void *memory, size_t len, uint64_t offset, int64_t timeout_ms);
int64_t ob_write(ob_file *file, const void *memory, size_t len, uint64_t offset, int64_t timeout_ms);

/* ---- files: many operations at once -------------------------------------------------------------------------- */

typedef struct ob_group_options {
    uint32_t outstanding;       /* operations that may be out at once */
    uint32_t small_ring_bytes;  /* each ring for small transfers: a power of two */
    uint32_t bulk_ring_bytes;   /* each ring for transfers above 128 KiB: a power of two */
    uint32_t spin_us;           /* how long ob_wait polls before it sleeps */
} ob_group_options;

/* Sets the defaults. */
void ob_group_options_init(ob_group_options *options);

/* Opens a notification group. `options` may be NULL. Waits for the card's answer. */
int ob_group_create(ob_session *session, const ob_group_options *options, ob_group **group);

/* Ends the group. What is out may happen or not, and its memory is not touched any more when this returns. NULL is fine. */
void ob_group_destroy(ob_group *group);

/* The file, with its operations in this group: a new handle, to be closed by itself. */
int ob_group_add(ob_group *group, const ob_file *file, ob_file **added);

/* One piece of memory; laid out as struct iovec is. */
typedef struct ob_piece {
    void *memory;
    size_t len;
} ob_piece;

#define OB_DURABLE 1  /* the write is durable when it is completed */

/* Starts an operation and returns. The memory must stay as it is until the completion with this tag has been taken; it
 * belongs to the library until then. The array of pieces itself may go at once. OB_RING_FULL and OB_TOO_MANY mean that
 * nothing was started: take completions, then try again. The file must be one that ob_group_add gave. */
int ob_submit_read(ob_file *file, void *memory, size_t len, uint64_t offset, uint64_t tag);
int ob_submit_write(ob_file *file, const void *memory, size_t len, uint64_t offset, int flags, uint64_t tag);
int ob_submit_readv(ob_file *file, const ob_piece *pieces, size_t count, uint64_t offset, uint64_t tag);
int ob_submit_writev(ob_file *file, const ob_piece *pieces, size_t count, uint64_t offset, int flags, uint64_t tag);
int ob_submit_flush(ob_group *group, uint64_t tag);

typedef struct ob_completion {
    uint64_t tag;
    int64_t result;  /* bytes moved, or an ob_error */
} ob_completion;

/* Takes completions that are there, without waiting: how many. */
int ob_poll(ob_group *group, ob_completion *completions, int capacity);

/* As ob_poll, but sleeps while there are none; 0 if the time was up. Any number of threads may wait at once. */
int ob_wait(ob_group *group, ob_completion *completions, int capacity, int64_t timeout_ms);

#ifdef __cplusplus
}
#endif

#endif /* OUTBOARD_H */
