// One program at a time owns a run directory. The lock is the system's, on RUN/.lock, so it dies with its
// holder, however that ends, and holds over network file systems.
#pragma once

#include <filesystem>
#include <string>

#include "storage/file.hpp"

namespace maestro::io {

/// Throws Error(cannot_create) where a process holds the lock of this directory. Takes no lock, makes
/// nothing.
void check_not_in_use(const std::filesystem::path& directory);

class RunLock {
public:
    RunLock() = default;  ///< holds nothing
    /// Makes the directory if need be, and changes nothing else in it. Throws Error(cannot_create) where
    /// another process holds the lock, naming it, or where the directory cannot be written.
    explicit RunLock(const std::filesystem::path& directory);
    /// Lets go; a directory that was made and got nothing in it is gone again.
    ~RunLock();
    RunLock(RunLock&& other) noexcept;
    RunLock& operator=(RunLock&& other) noexcept;
    /// Was the directory there before?
    bool made_directory() const { return made_; }
    /// Why others cannot be kept out: the file system has no locks. Empty where it has.
    const std::string& warning() const { return warning_; }

private:
    std::filesystem::path directory_;
    storage::Descriptor file_;
    bool made_ = false;
    std::string warning_;
};

}  // namespace maestro::io
