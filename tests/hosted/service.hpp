// A thread beside the host's: it runs host functions, which on a GPU's machine run on a thread of the driver,
// and once asked keeps the streams going while the host calls nothing.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "streams.hpp"

namespace hosted {

class Service {
public:
    Service(Gate& gate, Streams& streams) : gate_(gate), streams_(streams) {}

    /// Runs `function` without the lock; the mark is reached when it has returned.
    std::shared_ptr<Mark> post(std::function<void()> function);
    void keep_going();  ///< until the streams are empty
    /// To be told of every call of the host.
    void note_call() { last_call_ = std::chrono::steady_clock::now(); }
    /// Whether the calling thread is in a host function.
    static bool in_host_function();

private:
    void start();
    void work(const std::stop_token& stop);

    struct Job {
        std::function<void()> function;
        std::shared_ptr<Mark> mark;
    };
    Gate& gate_;
    Streams& streams_;
    std::deque<Job> jobs_;
    bool keeps_going_ = false;
    std::chrono::steady_clock::time_point last_call_;
    std::jthread thread_;  // last: it uses the others
};

}  // namespace hosted
