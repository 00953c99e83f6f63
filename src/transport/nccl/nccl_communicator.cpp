#include "transport/nccl/nccl_communicator.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/error.hpp"
#include "transport/choice.hpp"

namespace maestro::transport {

namespace {

[[noreturn]] void nccl_failed(ncclResult_t found, ncclComm_t communicator, const std::string& name,
                              const char* expression) {
    const char* detail = ncclGetLastError(communicator);
    throw Error(found == ncclRemoteError ? ExitCode::peer_lost : ExitCode::broken_invariant,
                fmt::format("{}: {}: {}{}{} (run with NCCL_DEBUG=INFO for details)", name, expression,
                            ncclGetErrorString(found), detail && *detail ? ": " : "", detail ? detail : ""));
}

}  // namespace

std::string nccl_version() {
    int version = 0;
    if (ncclGetVersion(&version) != ncclSuccess) return "NCCL";
    return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

/// Sends and receives between two GPUs of a node open up to 32 channels of 10 MiB to receive and 2 MiB to
/// send: seen on H100s (github.com/NVIDIA/nccl/issues/1685), where NCCL_MAX_P2P_NCHANNELS does not say less.
std::size_t nccl_connection_bytes() {
    constexpr std::size_t kChannels = 32, kChannelBytes = std::size_t{10 + 2} << 20;
    return kChannels * kChannelBytes;
}

ncclUniqueId NcclCommunicator::make_id() {
    ncclUniqueId id{};
    if (const ncclResult_t found = ncclGetUniqueId(&id); found != ncclSuccess)
        nccl_failed(found, nullptr, "NCCL", "ncclGetUniqueId");
    return id;
}

NcclCommunicator::NcclCommunicator(std::string name, comm::Waiter& waiter, const ncclUniqueId& id, int rank,
                                   int size)
    : name_(std::move(name)), waiter_(waiter), size_(size) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // or calls would wait for other ranks without a deadline
    try {
        check(ncclCommInitRankConfig(&handle_, size, id, rank, &config), "ncclCommInitRankConfig");
    } catch (...) {
        abort();
        throw;
    }
}

NcclCommunicator::~NcclCommunicator() {
    if (handle_ == nullptr) return;
    if (exceptions_ < std::uncaught_exceptions()) {  // finalizing needs the other ranks, which may have gone
        abort();
        return;
    }
    try {
        wait_until_ready(ncclCommFinalize(handle_), "ncclCommFinalize");
        ncclCommDestroy(std::exchange(handle_, nullptr));
    } catch (const Error&) {
        abort();
    }
}

void NcclCommunicator::check(ncclResult_t found, const char* expression) const {
    if (found != ncclSuccess && found != ncclInProgress) nccl_failed(found, handle_, name_, expression);
}

bool NcclCommunicator::ready() const {
    const ncclResult_t found = state();
    check(found, "what runs on the GPU");
    return found == ncclSuccess;
}

void NcclCommunicator::wait_until_ready(const char* expression) const {
    ncclResult_t found = ncclInProgress;
    waiter_.wait_until(
        [&] {
            found = state();
            return found != ncclInProgress;
        },
        [&] { return fmt::format("{} in {}", others(), expression); });
    check(found, expression);
}

std::string NcclCommunicator::others() const {
    return fmt::format("the other {} ranks of {}, by NCCL", size_ - 1, name_);
}

ncclResult_t NcclCommunicator::state() const {
    ncclResult_t found = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(handle_, &found);
    return asked == ncclSuccess ? found : asked;
}

void NcclCommunicator::abort() {
    if (handle_) ncclCommAbort(std::exchange(handle_, nullptr));
}

}  // namespace maestro::transport
