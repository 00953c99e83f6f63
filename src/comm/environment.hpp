// The MPI library from start to end, and the one way out of a broken world.
#pragma once

namespace maestro::comm {

/// MPI_Init_thread .. MPI_Finalize as a scope. Everything that holds an MPI handle must be destroyed before
/// it. Errors of MPI are returned (and thrown by MAESTRO_MPI), never fatal. One per process. If it is
/// destroyed while an exception flies, the world is aborted: a rank that leaves alone would hang the others.
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

/// Does this MPI say that it sends from and receives into the memory of NVIDIA's GPUs?
bool reaches_gpus();

/// MPI_Wtime's clock without MPI: seconds of a steady clock.
double now_s();
/// Returns at once where that time of now_s() has passed; else late by some 10 us.
void sleep_until(double time_s);

}  // namespace maestro::comm
