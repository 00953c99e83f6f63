#include "service.hpp"

namespace hosted {
namespace {

using namespace std::chrono_literals;

constexpr auto kLook = 2ms,
               kQuiet = 5ms;  // how often it looks, and how long the host must have called nothing

thread_local bool inside = false;

}  // namespace

bool Service::in_host_function() {
    return inside;
}

std::shared_ptr<Mark> Service::post(std::function<void()> function) {
    auto mark = std::make_shared<Mark>();
    jobs_.push_back({std::move(function), mark});
    start();
    gate_.changed.notify_all();
    return mark;
}

void Service::keep_going() {
    keeps_going_ = true;
    start();
    gate_.changed.notify_all();
}

void Service::start() {
    if (!thread_.joinable()) thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
}

void Service::work(const std::stop_token& stop) {
    std::unique_lock lock(gate_.mutex);
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
            gate_.changed.notify_all();
        } else if (keeps_going_) {
            gate_.changed.wait_for(lock, stop, kLook, [&] { return !jobs_.empty(); });
            if (std::chrono::steady_clock::now() - last_call_ > kQuiet) streams_.run_some();
            keeps_going_ = !streams_.idle();
        } else {
            gate_.changed.wait(lock, stop, [&] { return !jobs_.empty() || keeps_going_; });
        }
    }
}

}  // namespace hosted
