#include "train/run/run_report.hpp"

#include <utility>

#include "io/exit_report.hpp"

namespace maestro::train {

void RunReport::identify(int rank, std::string host) {
    const std::lock_guard lock(mutex_);
    rank_ = rank;
    host_ = std::move(host);
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

void RunReport::stopped(std::string reason) {
    const std::lock_guard lock(mutex_);
    reason_ = std::move(reason);
}

void RunReport::write(int code, const std::string& reason) const {
    io::ExitReport report{.code = code, .reason = reason, .rank = 0, .host = {}, .step = 0};
    std::filesystem::path directory;
    {
        const std::lock_guard lock(mutex_);
        directory = directory_;
        report.rank = rank_;
        report.host = host_;
        report.step = step_;
    }
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
