// What a signal to stop does to a run: it ends the run with a last line that says so, or asks for an orderly
// stop, and says at once what will be kept.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "comm/communicator.hpp"
#include "comm/signals.hpp"
#include "comm/watchdog.hpp"
#include "train/setup/run_report.hpp"

namespace maestro::train {

/// Made before MPI starts and destroyed after its end. Until steps_begin() or let_finish(), the first signal
/// ends all ranks, whatever they do and whichever rank receives it: exit code 75 where the run continues from
/// a checkpoint, 128 + signal elsewhere.
class Interruption {
public:
    /// `watchdog` knows what the main thread does; both outlive this.
    Interruption(const comm::Watchdog& watchdog, RunReport& report);

    /// From now on rank 0 reports for all.
    void identify(int rank, int ranks);
    /// What the last line says has not been reached: "the evaluation is not complete".
    void set_unfinished(std::string what);
    /// Whether an orderly stop after a step could save anything.
    void set_saves(bool saves);

    /// While it exists, a signal that ends the run calls `action` before, which removes what is half written.
    class CleanUp {
    public:
        CleanUp(Interruption& owner, std::function<void()> action);
        ~CleanUp();
        CleanUp(const CleanUp&) = delete;
        CleanUp& operator=(const CleanUp&) = delete;

    private:
        Interruption& owner_;
    };

    /// The steps of a training run begin. If it saves checkpoints, a signal from now on asks for an orderly
    /// stop after the step that is under way, which the caller looks for with requested().
    void steps_begin();
    bool requested() const { return signals_.received() != 0; }
    /// The last step has ended. A signal from now on is answered, and changes nothing.
    void steps_end();
    /// Collective. The rest is short and must not be cut: from now on the run goes to its end.
    void let_finish(const comm::Communicator& world);
    /// The same for one rank, which knows how it ends.
    void let_end() { signals_.hold(); }

private:
    void end(int signal);
    void notice(int signal);

    const comm::Watchdog& watchdog_;
    RunReport& report_;
    std::mutex mutex_;  ///< guards what follows
    int rank_ = -1;     ///< -1: not known yet
    int ranks_ = 0;
    bool saves_ = true;
    std::string unfinished_ = "nothing was done";
    std::function<void()> clean_up_;
    comm::StopSignals signals_;  ///< the last member: its thread uses the others
};

}  // namespace maestro::train
