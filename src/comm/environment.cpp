#include "comm/environment.hpp"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <thread>

#include "base/error.hpp"
#include "comm/check.hpp"
#include "comm/communicator.hpp"
#include "comm/signals.hpp"
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace maestro::comm {

namespace {
std::atomic<bool> aborts{false};  ///< this rank ends the world
constexpr auto kAbortGrace = std::chrono::seconds(5);
constexpr unsigned long kTimerSlackNs = 5000;  // the default of 50 us would double the shortest sleeps

/// MPI and NCCL hold several files and sockets for each rank that this one talks to. The soft limit is often
/// 1024, for the sake of programs that use select().
void raise_file_limit() {
    constexpr rlim_t kEnough = 65536;
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kEnough));
    setrlimit(RLIMIT_NOFILE, &limit);
}

bool mpi_runs() {
    int started = 0;
    int ended = 0;
    return MPI_Initialized(&started) == MPI_SUCCESS && started != 0 && MPI_Finalized(&ended) == MPI_SUCCESS &&
           ended == 0;
}

/// The communicators of the program are duplicates, so that nothing else travels on this one.
constexpr int kAbortTag = 1;

void tell_of_abort() {
    int rank = 0, ranks = 0;
    if (MPI_Comm_rank(MPI_COMM_WORLD, &rank) != MPI_SUCCESS ||
        MPI_Comm_size(MPI_COMM_WORLD, &ranks) != MPI_SUCCESS)
        return;
    for (int peer = 0; peer < ranks; ++peer) {
        MPI_Request request = MPI_REQUEST_NULL;
        if (peer != rank) MPI_Isend(nullptr, 0, MPI_BYTE, peer, kAbortTag, MPI_COMM_WORLD, &request);
    }
}
}  // namespace

Environment::Environment(int& argc, char**& argv) : exceptions_(std::uncaught_exceptions()) {
    raise_file_limit();
    int provided = MPI_THREAD_SINGLE;
    MAESTRO_MPI(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided));
    if (provided < MPI_THREAD_MULTIPLE)
        throw Error(ExitCode::bad_deck,
                    "this MPI library lacks MPI_THREAD_MULTIPLE, which the watchdog needs", Scope::all_ranks);
    for (MPI_Comm each : {MPI_COMM_WORLD, MPI_COMM_SELF})
        MAESTRO_MPI(MPI_Comm_set_errhandler(each, MPI_ERRORS_RETURN));
    prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
}

Environment::~Environment() {
    if (std::uncaught_exceptions() > exceptions_) abort_world(static_cast<int>(ExitCode::broken_invariant));
    MPI_Finalize();
}

void abort_world(int code) {
    aborts = true;
    std::thread([code] {
        std::this_thread::sleep_for(kAbortGrace);
        _exit(code);
    }).detach();
    std::fflush(stdout);
    std::fflush(stderr);
    if (mpi_runs()) {
        tell_of_abort();
        MPI_Abort(MPI_COMM_WORLD, code);
    }
    _exit(code);
}

bool a_rank_aborts() {
    if (aborts) return true;
    constexpr int kLooks = 10;  // each of them advances messages
    for (int look = 0; look < kLooks && mpi_runs(); ++look) {
        int there = 0;
        MPI_Iprobe(MPI_ANY_SOURCE, kAbortTag, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
        if (there != 0) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
}

bool reaches_gpus() {
#ifdef MPIX_CUDA_AWARE_SUPPORT  // 0 too: the library that is loaded may be another one
    return MPIX_Query_cuda_support() == 1;
#else
    return false;
#endif
}

double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void sleep_until(double time_s) {
    using Clock = std::chrono::steady_clock;
    std::this_thread::sleep_until(Clock::time_point(
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(time_s))));
}

}  // namespace maestro::comm
