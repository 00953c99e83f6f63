#include "train/checkpoint/background_task.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "base/check.hpp"
#include "comm/advance.hpp"
#include "comm/environment.hpp"

namespace maestro::train {

namespace {

constexpr std::chrono::microseconds kLook{20'000};  ///< between two looks at the progress
/// The same while messages of the main thread are under way, which advance only then.
constexpr std::chrono::microseconds kBriefLook{200};
constexpr double kLongWaitS = 1;  ///< after which the pulse is told what is waited for
/// Of 0 to 19: next to a thread that computes, the work gets a tenth of a core.
constexpr int kNice = 10;

/// Leaves the processor to threads that compute: this one runs where one is idle, or now and then. If the
/// system does not allow that, it runs beside the main thread.
void step_aside(const std::vector<int>& processors) {
    // On Linux, this is the priority of the thread alone.
    static_cast<void>(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice));
    if (processors.empty()) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int id : processors)
        if (id < CPU_SETSIZE) CPU_SET(id, &set);
    static_cast<void>(::sched_setaffinity(0, sizeof set, &set));
}

}  // namespace

/// It is the pulse of the work, whose beats are counted: the main thread passes them on, because its own
/// pulse sends messages and may not be used by another thread.
struct BackgroundTask::Shared final : Pulse {
    void doing(const std::string& what) noexcept override {
        try {
            const std::lock_guard lock(mutex);
            activity = what;
        } catch (...) {  // no memory for the text: the last one stays
        }
        beat();
    }
    void beat() noexcept override { progress_s = comm::now_s(); }
    bool cancelled() const noexcept override { return unwanted; }
    double silent_s() const { return comm::now_s() - progress_s; }
    void run(const std::function<void(Pulse&)>& work) {
        std::exception_ptr thrown;
        try {
            work(*this);
        } catch (...) {
            thrown = std::current_exception();
        }
        const std::lock_guard lock(mutex);
        error = thrown;
        ended = true;
        changed.notify_all();
    }

    std::atomic<double> progress_s = comm::now_s();
    std::atomic<bool> unwanted = false;
    mutable std::mutex mutex;  ///< guards what follows
    std::condition_variable changed;
    std::string activity;
    bool ended = false;
    std::exception_ptr error;
};

BackgroundTask::~BackgroundTask() {
    if (!thread_.joinable()) return;
    cancel();
    std::unique_lock lock(shared_->mutex);
    // Where the main thread has waited in vain already, it does not wait again.
    const std::chrono::duration<double> patience(timeout_s_ - shared_->silent_s());
    const bool ended = shared_->changed.wait_for(lock, patience, [this] { return shared_->ended; });
    lock.unlock();
    if (ended)
        thread_.join();
    else
        thread_.detach();
}

void BackgroundTask::start(std::function<void(Pulse&)> work) {
    MAESTRO_CHECK(!thread_.joinable(), "two pieces of work at once");
    shared_ = std::make_shared<Shared>();
    thread_ = std::thread([shared = shared_, what = std::move(work), processors = processors_] {
        step_aside(processors);
        shared->run(what);
    });
}

bool BackgroundTask::running() const {
    if (!thread_.joinable()) return false;
    const std::lock_guard lock(shared_->mutex);
    return !shared_->ended;
}

bool BackgroundTask::failed() const {
    if (!thread_.joinable()) return false;
    const std::lock_guard lock(shared_->mutex);
    return shared_->ended && shared_->error;
}

void BackgroundTask::check_progress() {
    if (!running() || shared_->silent_s() < timeout_s_) return;
    const std::lock_guard lock(shared_->mutex);
    throw Error(ExitCode::peer_lost,
                fmt::format("{}: no progress for {:.0f} s; check the disk or the network file system",
                            shared_->activity, timeout_s_));
}

void BackgroundTask::wait(Pulse& pulse, comm::Waiter& waiter) {
    if (!thread_.joinable()) return;
    const double begin_s = comm::now_s();
    std::string named;
    bool stopped = false;  // the pulse was told that the work makes no progress
    for (double seen_s = -1;;) {
        const auto look = comm::advance(waiter) ? kBriefLook : kLook;
        std::unique_lock lock(shared_->mutex);
        if (shared_->changed.wait_for(lock, look, [this] { return shared_->ended; })) return;
        const std::string activity = shared_->activity;
        lock.unlock();
        if (const double progress_s = shared_->progress_s; progress_s != seen_s) {
            seen_s = progress_s;
            stopped = false;
            pulse.beat();
        }
        // Told once more when the work has stopped, because the last beat may not have been sent on. The
        // ranks that wait for this one would then give up before it does, and their errors name no file.
        const bool stops = !stopped && shared_->silent_s() > kLongWaitS;
        if (stops || (comm::now_s() - begin_s > kLongWaitS && named != activity)) {
            stopped = stopped || stops;
            named = activity;
            pulse.doing(activity);
        }
        check_progress();
    }
}

void BackgroundTask::cancel() {
    if (shared_) shared_->unwanted = true;
}

void BackgroundTask::take() {
    if (!thread_.joinable()) return;
    thread_.join();
    if (const std::exception_ptr error = std::exchange(shared_->error, nullptr))
        std::rethrow_exception(error);
}

}  // namespace maestro::train
