// Preloaded into a rank (LD_PRELOAD): calls on files whose path contains SHIM_PATH fail, take their time or never
// return. SHIM_CALLS is a list of open, read, write and sync; SHIM_ERRNO a number; SHIM_TIMES how often (0: always);
// SHIM_SLEEP_MS how long each call takes first; SHIM_RANK the only rank that is meant. With SHIM_FLIP, writes of more
// bytes than that succeed and change one of them, as a bad disk does. With SHIM_KEEP_SIGNALS, MPI_Init_thread leaves
// handlers of SIGHUP, SIGINT and SIGTERM that do nothing, as libraries that it loads on some machines do.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static atomic_int done;

static int meant(const char* call, const char* path) {
    const char *wanted = getenv("SHIM_PATH"), *calls = getenv("SHIM_CALLS"), *rank = getenv("SHIM_RANK");
    const char* this_rank = getenv("OMPI_COMM_WORLD_RANK");
    if (!wanted || !calls || !this_rank || !strstr(calls, call) || !strstr(path, wanted)) return 0;
    return !rank || strcmp(rank, this_rank) == 0;
}

/* 0: go on; else the errno to fail with. */
static int fault(const char* call, const char* path) {
    if (!meant(call, path)) return 0;
    const char *times = getenv("SHIM_TIMES"), *error = getenv("SHIM_ERRNO"), *sleep_ms = getenv("SHIM_SLEEP_MS");
    if (times && atoi(times) > 0 && atomic_fetch_add(&done, 1) >= atoi(times)) return 0;
    if (sleep_ms) {
        const long ms = atol(sleep_ms);
        const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
        nanosleep(&pause, NULL);
    }
    return error ? atoi(error) : 0;
}

static const char* path_of(int file, char* path, size_t room) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    const ssize_t size = readlink(link, path, room - 1);
    path[size > 0 ? size : 0] = 0;
    return path;
}
static int fault_of(const char* call, int file) {
    char path[4096];
    return fault(call, path_of(file, path, sizeof path));
}
static int is_meant(const char* call, int file) {
    char path[4096];
    return meant(call, path_of(file, path, sizeof path));
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define CHECKED(call, file)                    \
    do {                                       \
        const int number = fault_of(call, file); \
        if (number) {                          \
            errno = number;                    \
            return -1;                         \
        }                                      \
    } while (0)

static int open_checked(const char* path, int flags, mode_t mode, const char* name) {
    const int number = fault("open", path);
    if (number) {
        errno = number;
        return -1;
    }
    int (*real)(const char*, int, ...) = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, name);
    return real(path, flags, mode);
}

int open(const char* path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    return open_checked(path, flags, mode, "open");
}
int open64(const char* path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    return open_checked(path, flags, mode, "open64");
}
ssize_t pread(int file, void* data, size_t size, off_t at) {
    CHECKED("read", file);
    return REAL(pread)(file, data, size, at);
}
ssize_t pread64(int file, void* data, size_t size, off64_t at) {
    CHECKED("read", file);
    return REAL(pread64)(file, data, size, at);
}
static ssize_t write_at(int file, const void* data, size_t size, off64_t at) {
    CHECKED("write", file);
    const char* flip = getenv("SHIM_FLIP");
    if (!flip || size <= (size_t)atol(flip) || !is_meant("write", file)) return REAL(pwrite64)(file, data, size, at);
    char* changed = malloc(size);
    memcpy(changed, data, size);
    changed[size / 2] ^= 0x10;
    const ssize_t put = REAL(pwrite64)(file, changed, size, at);
    free(changed);
    return put;
}
ssize_t pwrite(int file, const void* data, size_t size, off_t at) { return write_at(file, data, size, at); }
ssize_t pwrite64(int file, const void* data, size_t size, off64_t at) { return write_at(file, data, size, at); }
int fsync(int file) {
    CHECKED("sync", file);
    return REAL(fsync)(file);
}
int fdatasync(int file) {
    CHECKED("sync", file);
    return REAL(fdatasync)(file);
}

static void keep(int number) {
    (void)number;
}

int MPI_Init_thread(int* count, char*** arguments, int wanted, int* provided);
int MPI_Init_thread(int* count, char*** arguments, int wanted, int* provided) {
    const int result = REAL(MPI_Init_thread)(count, arguments, wanted, provided);
    if (getenv("SHIM_KEEP_SIGNALS")) {
        const int numbers[] = {SIGHUP, SIGINT, SIGTERM};
        for (int i = 0; i < 3; ++i) signal(numbers[i], keep);
    }
    return result;
}
