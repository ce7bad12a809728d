/* base/thread.h - threads of ours inside a host's process.
 *
 * They take none of the host's signals, and their stack has a size of our choosing, whatever the C
 * library's default.
 */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>

#include "base/err.h"

enum { THREAD_STACK_BYTES = 2 << 20 };

/* As pthread_create: 0 or an error number. */
int thread_start(pthread_t *out, void *(*run)(void *), void *arg);

/* The main thread's stack grows as far as the process's limit: raises that to the size above.
 * ERR_LIMIT: the hard limit is lower. */
int thread_main_stack(struct err *e);

#endif
