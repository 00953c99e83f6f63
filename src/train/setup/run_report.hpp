// How a run ends, for exit.json. Holds the lock of the run directory until the end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>

#include "io/exit_report.hpp"
#include "io/run_lock.hpp"

namespace maestro::train {

/// Used by the main thread, by the watchdog's when that one hangs, and by the thread that takes signals.
/// Holds the directory's lock until release_lock().
class RunReport {
public:
    void identify(int rank, std::string host);
    void hold_lock(io::RunLock lock);
    /// Releases the lock, which removes a directory that this start has made without using it.
    void release_lock() { hold_lock({}); }
    /// From now on the directory is that of this run, which writes there how it ends.
    void set_directory(std::filesystem::path directory);
    bool has_directory() const;
    void step_done(std::int64_t step);  ///< steps done so far
    std::int64_t step() const;
    /// The newest whole checkpoint that the run continues from, or has written.
    void set_checkpoint(std::string path);
    std::string checkpoint() const;  ///< empty: none
    void set_step_being_saved(std::int64_t step);
    std::int64_t step_being_saved() const;  ///< -1: none
    void stopped(std::string reason);       ///< why the run ends early, in an orderly way

    /// Writes exit.json into the directory, if it is set.
    void write(int code, const std::string& reason) const;
    /// The same where the run goes on, and may be killed: what is written later replaces it.
    void write_for_now(int code, const std::string& reason) const;
    /// The same at an orderly end.
    void write(int code) const;

private:
    io::ExitReport report(int code, const std::string& reason, std::filesystem::path& directory) const;

    mutable std::mutex mutex_;
    int rank_ = 0;
    std::string host_;
    std::filesystem::path directory_;
    std::int64_t step_ = 0;
    std::string checkpoint_;
    std::int64_t saving_ = -1;
    std::string reason_ = "done";
    io::RunLock lock_;
};

}  // namespace maestro::train
