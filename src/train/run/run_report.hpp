// How a run ends, for exit.json and for those who wait for the directory: what main needs to know of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>

#include "io/run_lock.hpp"

namespace maestro::train {

/// Used by the main thread, and by the watchdog's when that one hangs. Holds the directory's lock until
/// let_go().
class RunReport {
public:
    void identify(int rank, std::string host);
    void hold(io::RunLock lock) { lock_ = std::move(lock); }
    void let_go() { hold({}); }  ///< of the lock; a directory that was made for nothing goes away
    /// From now on the run answers for the directory: how it ends is told there.
    void own(std::filesystem::path directory);
    bool owns() const;
    void step_done(std::int64_t step);  ///< steps done so far
    std::int64_t step() const;
    void stopped(std::string reason);  ///< early, in order

    /// Writes exit.json, if the directory is owned.
    void write(int code, const std::string& reason) const;
    /// The same at an end in order.
    void write(int code) const;

private:
    mutable std::mutex mutex_;
    int rank_ = 0;
    std::string host_;
    std::filesystem::path directory_;
    std::int64_t step_ = 0;
    std::string reason_ = "done";
    io::RunLock lock_;
};

}  // namespace maestro::train
