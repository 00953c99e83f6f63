// Preloaded into a rank (LD_PRELOAD): /proc/meminfo is the file that SHIM_MEMINFO names, as if the machine had
// less memory.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char* replaced(const char* path) {
    const char* file = getenv("SHIM_MEMINFO");
    return file && strcmp(path, "/proc/meminfo") == 0 ? file : path;
}

FILE* fopen(const char* path, const char* mode) {
    return ((__typeof__(&fopen))dlsym(RTLD_NEXT, "fopen"))(replaced(path), mode);
}

FILE* fopen64(const char* path, const char* mode) {
    return ((__typeof__(&fopen64))dlsym(RTLD_NEXT, "fopen64"))(replaced(path), mode);
}
