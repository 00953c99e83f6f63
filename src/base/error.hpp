// Error: an exception with an exit code. It may be thrown anywhere; main catches it, or where GPUs compute
// train/setup/failure.hpp.
#pragma once

#include <stdexcept>
#include <string>

namespace maestro {

/// Exit codes of the command line (sysexits where one fits); docs/architecture.md lists them for users.
enum class ExitCode : int {
    done = 0,
    usage = 64,
    bad_data = 65,
    input_missing = 66,
    broken_invariant = 70,
    cannot_create = 73,
    io_error = 74,
    stopped_early = 75,
    peer_lost = 76,
    bad_deck = 78,
    not_finite = 79,
    device_memory = 80,
    builds_differ = 81,
};

/// Which ranks throw: all ranks the same error (rank 0 prints it, and all exit), or one rank alone, which
/// prints the error and aborts the world, because the others would wait for it.
enum class Scope { all_ranks, this_rank };

class Error : public std::runtime_error {
public:
    Error(ExitCode code, const std::string& message, Scope scope = Scope::this_rank)
        : std::runtime_error(message), code_(code), scope_(scope) {}
    ExitCode code() const { return code_; }
    Scope scope() const { return scope_; }

private:
    ExitCode code_;
    Scope scope_;
};

}  // namespace maestro
