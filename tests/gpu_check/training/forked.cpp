#include "training/forked.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "fmt/format.h"

namespace maestro::gpu_check {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kGrace{3};  ///< for the others to say what they wait for
constexpr std::chrono::milliseconds kPause{5};

/// Does not return in the child, which skips the end of the program: destructors of libraries may wait.
pid_t start(const std::function<int()>& body) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child < 0) throw Error(ExitCode::broken_invariant, "fork failed");
    if (child > 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int code = static_cast<int>(ExitCode::broken_invariant);
    try {
        code = body();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
    }
    std::fflush(nullptr);
    _exit(code);
}

/// The wait status of a child; absent while it runs.
std::optional<int> status_of(pid_t child) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == 0) return {};
    return status;
}

/// Waits for children until `end`, and kills the rest. Returns their wait statuses, absent for those killed
/// here.
std::vector<std::optional<int>> wait_for(const std::vector<pid_t>& children, Clock::time_point end) {
    std::vector<std::optional<int>> statuses(children.size());
    for (std::size_t left = children.size(); left > 0 && Clock::now() < end;) {
        std::this_thread::sleep_for(kPause);
        left = 0;
        for (std::size_t i = 0; i < children.size(); ++i) {
            if (statuses[i]) continue;
            statuses[i] = status_of(children[i]);
            if (!statuses[i]) ++left;
            if (statuses[i].value_or(0) != 0) end = std::min(end, Clock::now() + kGrace);
        }
    }
    for (std::size_t i = 0; i < children.size(); ++i)
        if (!statuses[i]) {
            kill(children[i], SIGKILL);
            waitpid(children[i], nullptr, 0);
        }
    return statuses;
}

Clock::time_point after(double seconds) {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

std::string run_forked(int count, double seconds, const std::function<int(int rank)>& body) {
    const Clock::time_point end = after(seconds);
    std::vector<pid_t> children;
    for (int rank = 0; rank < count; ++rank) children.push_back(start([&] { return body(rank); }));
    const auto statuses = wait_for(children, end);
    std::string text;
    for (int rank = 0; rank < count; ++rank) {
        const std::optional<int>& status = statuses[static_cast<std::size_t>(rank)];
        if (status && *status == 0) continue;
        text += fmt::format("{}rank {} ", text.empty() ? "" : ", ", rank);
        if (!status)
            text += fmt::format("had not ended after {:.0f} s", seconds);
        else if (WIFSIGNALED(*status))
            text += fmt::format("ended by signal {}", WTERMSIG(*status));
        else
            text += fmt::format("ended with exit code {}", WEXITSTATUS(*status));
    }
    return text;
}

int exit_code_of(double seconds, const std::function<int()>& body) {
    const std::optional<int> status = wait_for({start(body)}, after(seconds)).front();
    return status && WIFEXITED(*status) ? WEXITSTATUS(*status) : -1;
}

}  // namespace maestro::gpu_check
