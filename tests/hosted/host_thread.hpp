// A background thread. It runs host functions (cudaLaunchHostFunc), like the driver's thread in CUDA, and
// advances the streams while the host makes no calls, if keep_going() was called.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "streams.hpp"

namespace hosted {

class HostThread {
public:
    HostThread(RuntimeLock& lock, Streams& streams) : lock_(lock), streams_(streams) {}

    /// Runs `function` on the background thread, without the lock. The mark is reached when it has returned.
    std::shared_ptr<Mark> post(std::function<void()> function);
    void keep_going();  ///< advances the streams until they are empty
    /// Must be called in every call of the host.
    void note_call() { last_call_ = std::chrono::steady_clock::now(); }
    /// Whether the calling thread runs a host function.
    static bool in_host_function();

private:
    void start();
    void work(const std::stop_token& stop);

    struct Job {
        std::function<void()> function;
        std::shared_ptr<Mark> mark;
    };
    RuntimeLock& lock_;
    Streams& streams_;
    std::deque<Job> jobs_;
    bool keeps_going_ = false;
    std::chrono::steady_clock::time_point last_call_;
    std::jthread thread_;  // the last member, because the thread uses the others
};

}  // namespace hosted
