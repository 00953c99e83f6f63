#include "comm/check.hpp"

#include <fmt/core.h>
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <array>
#include <string>

#include "base/error.hpp"

namespace maestro::comm::detail {

namespace {
// Without fault tolerance in MPI a lost peer shows as one of the unspecific classes.
ExitCode code_of(int error_class) {
    switch (error_class) {
        case MPI_ERR_OTHER:
        case MPI_ERR_INTERN:
        case MPI_ERR_UNKNOWN:
        case MPI_ERR_PENDING:
        case MPI_ERR_IN_STATUS:
        case MPI_ERR_NAME:
        case MPI_ERR_SPAWN:
            return ExitCode::peer_lost;
        case MPI_ERR_NO_MEM:
            return ExitCode::device_memory;
        default:
            return ExitCode::broken_invariant;
    }
}
}  // namespace

void mpi_failed(int result, const char* expression, const char* file, int line) {
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    int error_class = result;
    if (MPI_Error_string(result, text.data(), &length) != MPI_SUCCESS) length = 0;
    if (MPI_Error_class(result, &error_class) != MPI_SUCCESS) error_class = MPI_ERR_UNKNOWN;
    throw Error(code_of(error_class),
                fmt::format("{}:{}: {} failed: {}", file, line, expression,
                            std::string(text.data(), static_cast<std::size_t>(length))));
}

}  // namespace maestro::comm::detail
