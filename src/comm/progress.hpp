// Who moves messages while the main thread computes. Networks without hardware of their own for it (TCP)
// bring a message on only when both sides enter MPI; a rank that computes for a second would hold up its
// peers that long.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace maestro::comm {

/// Owns a thread that runs as long as there are turns to take: it takes them all, naps, and begins again. The
/// main thread takes them too while it waits (Waiter does). Costs nothing where nothing is added.
class Progress {
public:
    /// Moves what can be moved without waiting; true: something is still on its way. Called by one thread at
    /// a time.
    using Turn = std::function<bool()>;
    using Id = std::list<Turn>::iterator;

    Progress() = default;
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    Id add(Turn turn);
    void remove(Id id);  ///< after it returns the turn is not called any more
    /// Main thread. Takes the turns, unless the thread is at it. Throws what a turn threw, here or in the
    /// thread.
    void take_turns();

private:
    void run();
    bool take_all();  ///< with mutex_ held; is anything on its way?

    std::mutex mutex_;  ///< held while turns are taken
    std::list<Turn> turns_;
    std::exception_ptr error_;  ///< of the thread
    std::atomic<bool> used_{false}, failed_{false};
    std::mutex sleep_;
    std::condition_variable wake_;
    bool stop_ = false;
    std::thread thread_;
};

}  // namespace maestro::comm
