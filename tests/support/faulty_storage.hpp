// Storage that fails or is slow: a test program that includes this file gets its own pread and fallocate,
// which come before those of the C library. To be included in one source file of a program.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <thread>

namespace maestro::testing_support {

/// What happens to the calls from now on.
struct FaultyStorage {
    std::atomic<int> failing_reads{0};    ///< so many reads fail next
    std::atomic<int> error{EIO};          ///< and with this errno
    std::atomic<int> read_ms{0};          ///< each read takes so long first
    std::atomic<bool> reads_hang{false};  ///< reads do not return while it is true
    std::atomic<bool> reserves{true};     ///< false: the file system has no fallocate
    std::atomic<std::int64_t> reads{0};   ///< calls of pread so far

    void reset() {
        failing_reads = 0;
        error = EIO;
        read_ms = 0;
        reads_hang = false;
        reserves = true;
    }
};
inline FaultyStorage faulty_storage;

}  // namespace maestro::testing_support

extern "C" inline ssize_t faulty_pread(int file, void* target, std::size_t bytes, off_t offset) {
    auto& storage = maestro::testing_support::faulty_storage;
    ++storage.reads;
    if (const int ms = storage.read_ms; ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    while (storage.reads_hang) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (storage.failing_reads > 0) {
        --storage.failing_reads;
        errno = storage.error;
        return -1;
    }
    return ::syscall(SYS_pread64, file, target, bytes, offset);
}

extern "C" ssize_t pread(int file, void* target, std::size_t bytes, off_t offset) {
    return faulty_pread(file, target, bytes, offset);
}

extern "C" ssize_t pread64(int file, void* target, std::size_t bytes, off64_t offset) {
    return faulty_pread(file, target, bytes, offset);
}

extern "C" int fallocate(int file, int mode, off_t offset, off_t bytes) {
    if (!maestro::testing_support::faulty_storage.reserves) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return static_cast<int>(::syscall(SYS_fallocate, file, mode, offset, bytes));
}
