// Who moves messages while the main thread computes. Networks without hardware of their own for it (TCP)
// bring a message on only when both sides enter MPI; a rank that computes for a second would hold up its
// peers that long.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace maestro::comm {

/// Owns a thread that runs from the first turn on: it takes all turns, naps, and begins again. The main
/// thread, which adds and removes them, takes them too while it waits (Waiter does). Costs nothing before the
/// first.
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
    std::exception_ptr error_;  ///< of the thread; it takes no turns any more
    std::mutex sleep_;
    std::condition_variable wake_;
    bool stop_ = false;
    std::thread thread_;
};

}  // namespace maestro::comm
