#include "host_thread.hpp"

namespace hosted {
namespace {

using namespace std::chrono_literals;

constexpr auto kPollInterval = 2ms;  // between looks at the streams
constexpr auto kQuietTime = 5ms;     // without calls of the host before the streams are advanced

thread_local bool inside = false;

}  // namespace

bool HostThread::in_host_function() {
    return inside;
}

std::shared_ptr<Mark> HostThread::post(std::function<void()> function) {
    auto mark = std::make_shared<Mark>();
    jobs_.push_back({std::move(function), mark});
    start();
    lock_.changed.notify_all();
    return mark;
}

void HostThread::keep_going() {
    keeps_going_ = true;
    start();
    lock_.changed.notify_all();
}

void HostThread::start() {
    if (!thread_.joinable()) thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
}

void HostThread::work(const std::stop_token& stop) {
    std::unique_lock lock(lock_.mutex);
    while (!stop.stop_requested()) {
        if (!jobs_.empty()) {
            const Job job = std::move(jobs_.front());
            jobs_.pop_front();
            lock.unlock();
            inside = true;
            job.function();
            inside = false;
            lock.lock();
            job.mark->reached = true;
            lock_.changed.notify_all();
        } else if (keeps_going_) {
            lock_.changed.wait_for(lock, stop, kPollInterval, [&] { return !jobs_.empty(); });
            if (std::chrono::steady_clock::now() - last_call_ > kQuietTime) streams_.run_some();
            keeps_going_ = !streams_.idle();
        } else {
            lock_.changed.wait(lock, stop, [&] { return !jobs_.empty() || keeps_going_; });
        }
    }
}

}  // namespace hosted
