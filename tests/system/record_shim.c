// Preloaded into ranks: appends to SHIM_RECORD what they change below the absolute path SHIM_ROOT, in the order in which it has happened:
// files made, written, cut, reserved and synced, names changed and removed. power_loss.py reads it. A record is written after the call that
// it is about has succeeded. Of a sync there are two, before it and after it: it covers what was recorded before the first.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { kCreate = 1, kWrite, kTruncate, kReserve, kSyncBegin, kSyncEnd, kRename, kRemove, kMkdir };

struct Record {
    uint32_t kind, path, other;       // bytes of the two paths that follow
    uint32_t unused;
    uint64_t offset, size, payload;   // bytes of data behind the paths; of a sync, `offset` is its number
};

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void append(uint32_t kind, const char* path, const char* other, uint64_t offset, uint64_t size, const void* data, uint64_t payload) {
    const char* log = getenv("SHIM_RECORD");
    int (*real_open)(const char*, int, ...) = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, "open");
    const int file = real_open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    const struct Record record = {kind, (uint32_t)strlen(path), other ? (uint32_t)strlen(other) : 0, 0, offset, size, payload};
    const struct iovec parts[] = {{(void*)&record, sizeof record}, {(void*)path, record.path}, {(void*)other, record.other}, {(void*)data, payload}};
    if (file < 0 || writev(file, parts, 4) != (ssize_t)(sizeof record + record.path + record.other + payload)) abort();
    close(file);
}

/// The path below the root, in `full`; 0 where it is elsewhere.
static int below(char* full, const char* path) {
    const char* root = getenv("SHIM_ROOT");
    if (!root || !getenv("OMPI_COMM_WORLD_RANK")) return 0;
    if (path[0] == '/')
        snprintf(full, PATH_MAX, "%s", path);
    else if (getcwd(full, PATH_MAX / 2))
        snprintf(full + strlen(full), PATH_MAX / 2, "/%s", path);
    return strncmp(full, root, strlen(root)) == 0;
}

static int below_of(char* full, int file) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    const ssize_t size = readlink(link, full, PATH_MAX - 1);
    if (size <= 0) return 0;
    full[size] = 0;
    char path[PATH_MAX];
    return below(path, full);
}

static int open_recorded(const char* name, const char* path, int flags, mode_t mode) {
    char full[PATH_MAX];
    int (*real)(const char*, int, ...) = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, name);
    const int file = real(path, flags, mode);
    if (file < 0 || !(flags & (O_CREAT | O_TRUNC)) || !below(full, path)) return file;
    if (flags & O_CREAT) append(kCreate, full, NULL, 0, 0, NULL, 0);
    if (flags & O_TRUNC) append(kTruncate, full, NULL, 0, 0, NULL, 0);
    return file;
}
int open(const char* path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    return open_recorded("open", path, flags, mode);
}
int open64(const char* path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    return open_recorded("open64", path, flags, mode);
}

static ssize_t written(int file, const void* data, ssize_t done, uint64_t at) {
    char full[PATH_MAX];
    if (done > 0 && below_of(full, file)) append(kWrite, full, NULL, at, (uint64_t)done, data, (uint64_t)done);
    return done;
}
ssize_t pwrite(int file, const void* data, size_t size, off_t at) {
    return written(file, data, REAL(pwrite)(file, data, size, at), (uint64_t)at);
}
ssize_t pwrite64(int file, const void* data, size_t size, off64_t at) {
    return written(file, data, REAL(pwrite64)(file, data, size, at), (uint64_t)at);
}

static int resized(int file, int result, uint32_t kind, uint64_t size) {
    char full[PATH_MAX];
    if (result == 0 && below_of(full, file)) append(kind, full, NULL, 0, size, NULL, 0);
    return result;
}
int ftruncate(int file, off_t size) { return resized(file, REAL(ftruncate)(file, size), kTruncate, (uint64_t)size); }
int ftruncate64(int file, off64_t size) { return resized(file, REAL(ftruncate64)(file, size), kTruncate, (uint64_t)size); }
int fallocate(int file, int mode, off_t at, off_t size) {
    const int result = REAL(fallocate)(file, mode, at, size);
    return mode ? result : resized(file, result, kReserve, (uint64_t)(at + size));
}
int fallocate64(int file, int mode, off64_t at, off64_t size) {
    const int result = REAL(fallocate64)(file, mode, at, size);
    return mode ? result : resized(file, result, kReserve, (uint64_t)(at + size));
}

static int synced(int file, int (*real)(int)) {
    static atomic_uint syncs;
    char full[PATH_MAX];
    if (!below_of(full, file)) return real(file);
    const uint64_t number = (uint64_t)getpid() << 32 | atomic_fetch_add(&syncs, 1);
    append(kSyncBegin, full, NULL, number, 0, NULL, 0);
    const int result = real(file);
    if (result == 0) append(kSyncEnd, full, NULL, number, 0, NULL, 0);
    return result;
}
int fsync(int file) { return synced(file, REAL(fsync)); }
int fdatasync(int file) { return synced(file, REAL(fdatasync)); }

int rename(const char* from, const char* to) {
    char a[PATH_MAX], b[PATH_MAX];
    const int result = REAL(rename)(from, to);
    if (result == 0 && below(a, from) && below(b, to)) append(kRename, a, b, 0, 0, NULL, 0);
    return result;
}
int mkdir(const char* path, mode_t mode) {
    char full[PATH_MAX];
    const int result = REAL(mkdir)(path, mode);
    if (result == 0 && below(full, path)) append(kMkdir, full, NULL, 0, 0, NULL, 0);
    return result;
}

static int removed(const char* path, int result) {
    char full[PATH_MAX];
    if (result == 0 && below(full, path)) append(kRemove, full, NULL, 0, 0, NULL, 0);
    return result;
}
int unlink(const char* path) { return removed(path, REAL(unlink)(path)); }
int rmdir(const char* path) { return removed(path, REAL(rmdir)(path)); }
int remove(const char* path) { return removed(path, REAL(remove)(path)); }
int unlinkat(int folder, const char* path, int flags) {
    char full[2 * PATH_MAX];
    if (folder == AT_FDCWD || path[0] == '/') return removed(path, REAL(unlinkat)(folder, path, flags));
    const int known = below_of(full, folder);
    const int result = REAL(unlinkat)(folder, path, flags);
    if (!known) return result;
    strcat(strcat(full, "/"), path);
    return removed(full, result);
}
