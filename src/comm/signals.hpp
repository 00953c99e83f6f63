// TERM, INT, HUP, USR1 and USR2, which ask a program to stop.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace maestro::comm {

/// Accepts these signals in a separate thread. At first each ends the process; after hold() the first one
/// only asks for an orderly end. A second one ends the process at once, as it does any other program. Only
/// USR1 and USR2, which batch systems send early, never do that after hold(). HUP stays ignored under nohup.
///
/// The signals are blocked in the thread that makes this object, and in those that it starts later:
/// oneDNN 2.6 computes some fp32 GEMMs (inner length 100, say) with the stack pointer in a buffer on the
/// heap, and the frame of any handler that ran then would overwrite what lies below the buffer. Threads of
/// libraries that are older pass them on. One object a process.
class StopSignals {
public:
    /// Called from the thread of this class.
    using Action = std::function<void(int signal)>;
    /// `end`: called by the first signal before hold(). It should end the process; once it has returned, the
    /// signal does, and SIGALRM where it takes more than 10 s.
    explicit StopSignals(Action end);
    /// The signals stay blocked.
    ~StopSignals();
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    /// To be called once MPI has started: libraries that it loads set handlers (UCX for SIGHUP).
    void catch_again();
    /// From now on signals are remembered. `notice` is called for the first one, and for the first of those
    /// that would end the process the second time. Returns when an earlier notice has returned, and never
    /// where a signal is ending the process.
    void hold(Action notice = {});
    /// The first signal since hold(), 0 if none. Ranks may see it at different times, so they have to agree
    /// before they act on it.
    int received() const { return received_; }

private:
    void run();

    Action end_, notice_;
    std::vector<int> caught_;
    bool ignores_hup_ = false;
    std::mutex mutex_;  ///< guards what follows, and notice_
    bool held_ = false, ending_ = false, notifying_ = false;
    std::atomic<int> received_ = 0;
    std::atomic<bool> stop_ = false;
    std::thread thread_;
};

/// Whether a rank has called abort_world(): this one, or one whose message has arrived. Launchers then end
/// all ranks with a signal that cannot be told from one of the user. From any thread.
bool a_rank_aborts();

std::string name_of_signal(int signal);  ///< "SIGTERM"

}  // namespace maestro::comm
