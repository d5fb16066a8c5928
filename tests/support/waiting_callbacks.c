/* Callbacks of producers of Arrow and DLPack that wait until a Python thread opens a gate.

   If the caller holds the GIL, the Python thread cannot run, and the callback gives up. */

#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

enum { SECONDS = 5 };

static sem_t gate;
static atomic_int n_calls, n_timeouts;

void reset_gate(void) {
    sem_init(&gate, 0, 0);
    n_calls = n_timeouts = 0;
}

void open_gate(void) { sem_post(&gate); }

int count_calls(void) { return n_calls; }

int count_timeouts(void) { return n_timeouts; }

static void wait_at_gate(void) {
    struct timespec end;
    int failed;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += SECONDS;
    n_calls++;
    do {
        failed = sem_timedwait(&gate, &end);
    } while (failed && errno == EINTR);
    if (failed) n_timeouts++;
}

/* The structs are arrays of fields of 8 bytes. Releasing one sets its field `release` to NULL. */

void release_schema(void **schema) {
    schema[7] = NULL;
    wait_at_gate();
}

void release_array(void **array) {
    array[8] = NULL;
    wait_at_gate();
}

void release_stream(void **stream) {
    stream[3] = NULL;
    wait_at_gate();
}

const char *get_last_error(void **stream) {
    (void)stream;
    wait_at_gate();
    return "the disk is gone";
}

void delete_tensor(void *managed) {
    (void)managed;
    wait_at_gate();
}
