#include "transport/nccl/nccl_communicator.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "backend/cuda/check.hpp"
#include "base/error.hpp"
#include "transport/choice.hpp"

namespace maestro::transport {

namespace {

std::string describe_version(int version) {
    return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

[[noreturn]] void nccl_failed(ncclResult_t found, ncclComm_t communicator, const std::string& name,
                              const char* expression) {
    const char* detail = ncclGetLastError(communicator);
    throw Error(found == ncclRemoteError ? ExitCode::peer_lost : ExitCode::broken_invariant,
                fmt::format("{}: {}: {}{}{} (run with NCCL_DEBUG=INFO for details)", name, expression,
                            ncclGetErrorString(found), detail && *detail ? ": " : "", detail ? detail : ""));
}

/// Throws where a call on a communicator has failed.
struct Checked {
    const ncclComm_t& communicator;
    const std::string& name;
    void operator()(ncclResult_t found, const char* expression) const {
        if (found != ncclSuccess) nccl_failed(found, communicator, name, expression);
    }
};

/// An older library does not know all fields of the configuration that this program passes.
void check_version() {
    int version = 0;
    if (ncclGetVersion(&version) != ncclSuccess || version < NCCL_VERSION_CODE)
        throw Error(
            ExitCode::bad_deck,
            fmt::format("{} is loaded, and this program was compiled for {}; let LD_LIBRARY_PATH name "
                        "the folder of a libnccl.so.2 that is at least as new, or compile it again",
                        describe_version(version), describe_version(NCCL_VERSION_CODE)));
}

/// Sends a byte to every other rank. NCCL connects two ranks, allocates memory for it and waits for the
/// device when they first exchange something; a training step must not.
void connect_all(const Checked& checked, int rank, int size, Stream stream) {
    char* bytes = nullptr;  // to send, and to receive
    MAESTRO_CUDA_CALL(cudaMalloc(reinterpret_cast<void**>(&bytes), 2 * static_cast<std::size_t>(size)));
    MAESTRO_CUDA_CALL(cudaMemsetAsync(bytes, 0, 2 * static_cast<std::size_t>(size), stream));
    checked(ncclGroupStart(), "ncclGroupStart");
    for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        checked(ncclSend(bytes + peer, 1, ncclUint8, peer, checked.communicator, stream), "ncclSend");
        checked(ncclRecv(bytes + size + peer, 1, ncclUint8, peer, checked.communicator, stream), "ncclRecv");
    }
    checked(ncclGroupEnd(), "ncclGroupEnd");
    MAESTRO_CUDA_CALL(cudaStreamSynchronize(stream));
    MAESTRO_CUDA_CALL(cudaFree(bytes));
}

}  // namespace

std::string nccl_version() {
    int version = 0;
    if (ncclGetVersion(&version) != ncclSuccess) return "NCCL";
    return describe_version(version);
}

std::size_t nccl_connection_bytes() {
    return kNcclConnectionBytes;
}

ncclUniqueId NcclCommunicator::make_id() {
    ncclUniqueId id{};
    if (const ncclResult_t found = ncclGetUniqueId(&id); found != ncclSuccess)
        nccl_failed(found, nullptr, "NCCL", "ncclGetUniqueId");
    return id;
}

NcclCommunicator::NcclCommunicator(std::string name, comm::Waiter& waiter, const ncclUniqueId& id, int rank,
                                   int size, Stream stream)
    : name_(std::move(name)), waiter_(waiter), size_(size) {
    check_version();
    const auto made = std::make_shared<ncclComm_t>(nullptr);
    run_beside("being connected", [=, name = name_] {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        const Checked checked{*made, name};
        try {
            checked(ncclCommInitRankConfig(made.get(), size, id, rank, &config), "ncclCommInitRankConfig");
            connect_all(checked, rank, size, stream);
        } catch (...) {
            if (*made) ncclCommAbort(*made);
            throw;
        }
    });
    handle_ = *made;
}

NcclCommunicator::~NcclCommunicator() {
    if (handle_ == nullptr) return;
    if (exceptions_ < std::uncaught_exceptions()) {  // finalizing needs the other ranks, which may have gone
        abort();
        return;
    }
    try {
        run_beside("finalizing", [handle = handle_, name = name_] {
            Checked{handle, name}(ncclCommFinalize(handle), "ncclCommFinalize");
        });
        ncclCommDestroy(std::exchange(handle_, nullptr));
    } catch (const Error&) {
        abort();  // which also ends the helper thread
    }
}

void NcclCommunicator::run_beside(const char* what, std::function<void()> body) {
    struct Outcome {
        std::atomic<bool> ended = false;
        std::exception_ptr error;
    };
    const auto outcome = std::make_shared<Outcome>();
    int device = 0;
    MAESTRO_CUDA_CALL(cudaGetDevice(&device));
    std::thread helper([outcome, device, body = std::move(body)] {
        try {
            MAESTRO_CUDA_CALL(cudaSetDevice(device));
            body();
        } catch (...) {
            outcome->error = std::current_exception();
        }
        outcome->ended.store(true, std::memory_order_release);
    });
    try {
        waiter_.wait_until([&] { return outcome->ended.load(std::memory_order_acquire); },
                           [&] { return fmt::format("{} in {}", others(), what); });
    } catch (...) {
        helper.detach();
        throw;
    }
    helper.join();
    if (outcome->error) std::rethrow_exception(outcome->error);
}

void NcclCommunicator::check(ncclResult_t found, const char* expression) const {
    Checked{handle_, name_}(found, expression);
}

void NcclCommunicator::check() const {
    ncclResult_t found = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(handle_, &found);
    check(asked == ncclSuccess ? found : asked, "what runs on the GPU");
}

std::string NcclCommunicator::others() const {
    return fmt::format("the other {} ranks of {}, by NCCL", size_ - 1, name_);
}

void NcclCommunicator::abort() {
    if (handle_) ncclCommAbort(std::exchange(handle_, nullptr));
}

}  // namespace maestro::transport
