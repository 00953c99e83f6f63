// Progress of messages while the main thread computes. On networks without hardware support (TCP), MPI
// transfers a message only while both sides are inside MPI, so a rank that computes for a second would delay
// its peers by a second.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace maestro::comm {

/// Owns a thread that calls all registered functions again and again, with short sleeps in between. It starts
/// with the first registration; before that, this class costs nothing. The main thread, which registers and
/// removes functions, also calls them while it waits (Waiter does).
class Progress {
public:
    /// Advances what it can without waiting; returns true while something is pending. Called by one thread at
    /// a time.
    using Poll = std::function<bool()>;
    using Id = std::list<Poll>::iterator;

    Progress() = default;
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    Id add(Poll poll);
    void remove(Id id);  ///< the function is not called any more after it returns
    /// Main thread. Calls all functions, unless the thread is doing so. Throws what one of them threw, here
    /// or in the thread.
    void poll();
    /// Main thread. There is something new to advance: the thread calls the functions now, also if it sleeps.
    void wake();
    /// From now on sleeps are as short as a host with a free core can have them.
    void sleep_briefly() { brief_ = true; }

private:
    void run();
    bool poll_all();  ///< with mutex_ held; returns whether anything is pending

    std::mutex mutex_;  ///< held while the functions are called
    std::list<Poll> polls_;
    std::exception_ptr error_;  ///< of the thread, which then calls nothing any more
    std::mutex sleep_;
    std::condition_variable wake_;
    bool stop_ = false, woken_ = false;
    std::atomic<bool> brief_ = false;
    std::thread thread_;
};

}  // namespace maestro::comm
