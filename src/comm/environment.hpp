// MPI from initialization to finalization, and the way to abort all ranks.
#pragma once

namespace maestro::comm {

/// MPI_Init_thread .. MPI_Finalize as a scope. Everything that holds an MPI handle must be destroyed before
/// it. Errors of MPI are returned (and thrown by MAESTRO_MPI), never fatal. One per process. If it is
/// destroyed while an exception is handled, it aborts the world: a rank that leaves alone would hang the
/// others.
class Environment {
public:
    Environment(int& argc, char**& argv);  ///< throws Error(peer_lost) when MPI does not start
    ~Environment();
    Environment(const Environment&) = delete;
    Environment& operator=(const Environment&) = delete;

private:
    int exceptions_;
};

/// Ends every rank: MPI_Abort(code), and _exit(code) of this process after 5 s where MPI_Abort hangs. Works
/// from any thread, with or without MPI running.
[[noreturn]] void abort_world(int code);

/// Whether this MPI is CUDA-aware: can send from and receive into the memory of NVIDIA GPUs.
bool reaches_gpus();

/// Seconds of a steady clock; the clock of MPI_Wtime, but usable without MPI.
double now_s();
/// Sleeps until now_s() reaches this time, and some 10 us longer; returns at once if it has passed.
void sleep_until(double time_s);

}  // namespace maestro::comm
