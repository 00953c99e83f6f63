// A fake libcuda.so.1 for cuDNN on a machine without a driver. Every call fails like the toolkit's stub, except that
// compiled kernels can be loaded and queried for attributes. So cuDNN builds complete plans for a GPU that is described
// to it, and reports their workspace. Nothing runs.
#include <stdint.h>
#include <string.h>

enum { kSuccess = 0, kStub = 34 };

static int fail(void** made) {
    (void)made;
    return kStub;
}
static int load(void** made) {
    static char something[64];
    if (made) *made = something;
    return kSuccess;
}
static int attribute(void** value) {
    if (value) memset(value, 0, sizeof(int));
    return kSuccess;
}

static int succeed(void** handle) {
    (void)handle;
    return kSuccess;
}

/// One function per driver call, except for the two below.
#define CALL(name, function) \
    int name(void** made) { return function(made); }
#include "driver_calls.h"
#undef CALL

#define CALL(name, function) {#name, function},
static const struct {
    const char* name;
    int (*function)(void**);
} kCalls[] = {
#include "driver_calls.h"
};

int cuGetProcAddress_v2(const char* name, void** made, int version, uint64_t flags, int* found) {
    (void)version;
    (void)flags;
    int (*function)(void**) = fail;
    for (unsigned i = 0; i < sizeof kCalls / sizeof *kCalls; ++i)
        if (strcmp(kCalls[i].name, name) == 0) function = kCalls[i].function;
    memcpy(made, &function, sizeof function);
    if (found) *found = 0;
    return kSuccess;
}
int cuGetProcAddress(const char* name, void** made, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, made, version, flags, 0);
}
