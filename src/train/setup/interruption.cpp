#include "train/setup/interruption.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "comm/environment.hpp"

namespace maestro::train {

namespace {

/// Launchers signal all ranks, and rank 0 reports for them. Others do after this time, in which it ends the
/// job.
constexpr auto kAfterFirst = std::chrono::milliseconds(300);

/// Not through stdio: the main thread may hang inside it and hold its lock.
void print(const std::string& text) {
    const std::string line = "maestro: " + text + "\n";
    if (::write(STDERR_FILENO, line.data(), line.size()) < 0) {
        // no one can read it
    }
}

}  // namespace

Interruption::Interruption(const comm::Watchdog& watchdog, RunReport& report)
    : watchdog_(watchdog), report_(report), signals_([this](int signal) { end(signal); }) {}

void Interruption::identify(int rank, int ranks) {
    signals_.catch_again();
    const std::lock_guard lock(mutex_);
    rank_ = rank;
    ranks_ = ranks;
}

void Interruption::set_unfinished(std::string what) {
    const std::lock_guard lock(mutex_);
    unfinished_ = std::move(what);
}

void Interruption::set_saves(bool saves) {
    const std::lock_guard lock(mutex_);
    saves_ = saves;
}

Interruption::CleanUp::CleanUp(Interruption& owner, std::function<void()> action) : owner_(owner) {
    const std::lock_guard lock(owner_.mutex_);
    owner_.clean_up_ = std::move(action);
}

Interruption::CleanUp::~CleanUp() {
    const std::lock_guard lock(owner_.mutex_);
    owner_.clean_up_ = {};
}

void Interruption::steps_begin() {
    bool saves = false;
    {
        const std::lock_guard lock(mutex_);
        saves = saves_;
        if (!saves_) unfinished_ = "the run is not complete, and it saves nothing to continue from";
    }
    if (saves) signals_.hold([this](int signal) { notice(signal); });
}

void Interruption::steps_end() {
    bool first = false;
    {
        const std::lock_guard lock(mutex_);
        first = rank_ == 0;
    }
    signals_.hold([first](int signal) {
        if (first && !comm::a_rank_aborts())
            print(comm::name_of_signal(signal) +
                  " after the last step: the run ends once its files are complete");
    });
}

void Interruption::let_finish(const comm::Communicator& world) {
    signals_.hold();
    world.barrier();  // a rank that does not hold signals yet would end all
}

/// In the thread of the signals.
void Interruption::end(int signal) {
    int rank = 0, ranks = 0;
    {
        const std::lock_guard lock(mutex_);
        rank = rank_;
        ranks = ranks_;
    }
    if (rank < 0) return;  // MPI starts: as if nothing caught the signal
    if (rank > 0) std::this_thread::sleep_for(kAfterFirst);
    const std::lock_guard lock(mutex_);
    if (clean_up_) clean_up_();
    const bool continues = !report_.checkpoint().empty();
    const int code = continues ? static_cast<int>(ExitCode::stopped_early) : 128 + signal;
    if (!comm::a_rank_aborts()) {  // else the launcher has sent the signal, and a rank has said why
        const std::string text =
            fmt::format("{}: stopped by {}; {}{}", watchdog_.activity(), comm::name_of_signal(signal),
                        unfinished_, continues ? "; continue with --resume auto" : "");
        report_.write(code, text);
        print(text);
    }
    report_.release_lock();
    if (ranks > 1) comm::abort_world(code);
    std::fflush(stdout);
    _exit(code);
}

/// In the thread of the signals. The other ranks tell rank 0 after the step.
void Interruption::notice(int signal) {
    {
        const std::lock_guard lock(mutex_);
        if (rank_ != 0) return;
    }
    if (comm::a_rank_aborts()) return;
    const std::string checkpoint = report_.checkpoint();
    std::string text = fmt::format("{} in step {}: the run stops after this step, with a checkpoint",
                                   comm::name_of_signal(signal), report_.step() + 1);
    if (signal != SIGUSR1 && signal != SIGUSR2)
        text += std::getenv("OMPI_COMM_WORLD_RANK")
                    ? ", unless its launcher kills it before (mpirun waits one second after an "
                      "interrupt, and where it has lost a rank). To avoid that, send the launcher "
                      "USR1, or "
                      "train with --max-hours"
                    : ". A second signal ends it at once";
    text += checkpoint.empty() ? ". There is no checkpoint yet"
                               : ". The newest whole checkpoint is " + checkpoint;
    if (const std::int64_t step = report_.step_being_saved(); step >= 0)
        text += fmt::format(", that of step {} is being written", step);
    report_.write_for_now(128 + signal, text);
    print(text);
    log::write_file(text);
}

}  // namespace maestro::train
