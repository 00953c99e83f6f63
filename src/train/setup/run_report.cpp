#include "train/setup/run_report.hpp"

#include <utility>

namespace maestro::train {

void RunReport::identify(int rank, std::string host) {
    const std::lock_guard lock(mutex_);
    rank_ = rank;
    host_ = std::move(host);
}

void RunReport::hold_lock(io::RunLock lock) {
    const std::lock_guard guard(mutex_);
    lock_ = std::move(lock);
}

void RunReport::set_directory(std::filesystem::path directory) {
    const std::lock_guard lock(mutex_);
    directory_ = std::move(directory);
}

bool RunReport::has_directory() const {
    const std::lock_guard lock(mutex_);
    return !directory_.empty();
}

void RunReport::step_done(std::int64_t step) {
    const std::lock_guard lock(mutex_);
    step_ = step;
}

std::int64_t RunReport::step() const {
    const std::lock_guard lock(mutex_);
    return step_;
}

void RunReport::set_checkpoint(std::string path) {
    const std::lock_guard lock(mutex_);
    checkpoint_ = std::move(path);
}

std::string RunReport::checkpoint() const {
    const std::lock_guard lock(mutex_);
    return checkpoint_;
}

void RunReport::set_step_being_saved(std::int64_t step) {
    const std::lock_guard lock(mutex_);
    saving_ = step;
}

std::int64_t RunReport::step_being_saved() const {
    const std::lock_guard lock(mutex_);
    return saving_;
}

void RunReport::stopped(std::string reason) {
    const std::lock_guard lock(mutex_);
    reason_ = std::move(reason);
}

io::ExitReport RunReport::report(int code, const std::string& reason,
                                 std::filesystem::path& directory) const {
    const std::lock_guard lock(mutex_);
    directory = directory_;
    return {.code = code, .reason = reason, .rank = rank_, .host = host_, .step = step_};
}

void RunReport::write(int code, const std::string& reason) const {
    std::filesystem::path directory;
    const io::ExitReport report = this->report(code, reason, directory);
    if (!directory.empty()) io::write_exit_report(directory, report);
}

void RunReport::write_for_now(int code, const std::string& reason) const {
    std::filesystem::path directory;
    io::ExitReport report = this->report(code, reason, directory);
    report.ended = false;
    if (!directory.empty()) io::write_exit_report(directory, report);
}

void RunReport::write(int code) const {
    std::string reason;
    {
        const std::lock_guard lock(mutex_);
        reason = reason_;
    }
    write(code, reason);
}

}  // namespace maestro::train
