// MAESTRO_MPI(call): throws when an MPI call fails, with the expression, the place and MPI's own text.
#pragma once

namespace maestro::comm::detail {
[[noreturn]] void mpi_failed(int result, const char* expression, const char* file, int line);
}

/// Error(peer_lost) for what a lost peer or network causes, Error(device_memory) for lack of memory,
/// otherwise Error(broken_invariant). MPI_ERRORS_RETURN must be set (Environment and Communicator do).
#define MAESTRO_MPI(expression)                                                                       \
    do {                                                                                              \
        const int maestro_mpi_result = (expression);                                                  \
        if (maestro_mpi_result != 0) [[unlikely]]                                                     \
            ::maestro::comm::detail::mpi_failed(maestro_mpi_result, #expression, __FILE__, __LINE__); \
    } while (0)
