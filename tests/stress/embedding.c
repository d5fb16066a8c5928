/* A program that embeds Python, and owns exported structs longer than the interpreter exists.

   Usage: embedding EXECUTABLE SCRIPT. The script calls `take` for each struct. The structs are
   released one third each: in a thread while Python runs, after Py_Finalize, and while a second
   interpreter runs, by a thread with the GIL and by one without it. */

#include <Python.h>
#include <pthread.h>
#include <stdio.h>

enum { MAX_TAKEN = 100000 };

static struct { void *address; void (*callback)(void *); } taken[MAX_TAKEN];
static int n_taken;

int take(void *address, void *callback) {
    if (n_taken == MAX_TAKEN) return -1;
    taken[n_taken].address = address;
    taken[n_taken++].callback = (void (*)(void *))callback;
    return 0;
}

static void release(int first, int step) {
    for (int i = first; i < n_taken; i += step) taken[i].callback(taken[i].address);
}

static void *release_in_thread(void *first) {
    release((int)(intptr_t)first, 6);
    return NULL;
}

static void run_thread(int first) {
    pthread_t thread;
    pthread_create(&thread, NULL, release_in_thread, (void *)(intptr_t)first);
    pthread_join(thread, NULL);
}

static void start(const char *executable) {
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    PyConfig_SetBytesString(&config, &config.program_name, executable);
    PyStatus status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status)) Py_ExitStatusException(status);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    start(argv[1]);
    if (PyRun_SimpleString(argv[2])) return 1;
    release(0, 6); /* with the GIL */
    Py_BEGIN_ALLOW_THREADS
    run_thread(1);
    Py_END_ALLOW_THREADS
    if (Py_FinalizeEx()) return 3;
    release(2, 6);
    run_thread(3);
    start(argv[1]);
    if (PyRun_SimpleString("import gc; kept = [[] for _ in range(10_000)]; gc.collect()")) return 4;
    release(4, 6);
    Py_BEGIN_ALLOW_THREADS
    run_thread(5);
    Py_END_ALLOW_THREADS
    if (PyRun_SimpleString("del kept; gc.collect()")) return 5;
    if (Py_FinalizeEx()) return 6;
    printf("%d structs released\n", n_taken);
    return 0;
}
