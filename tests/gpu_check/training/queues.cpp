// Streams share hardware queues: what waits in one of them holds up what is behind it, of other streams as
// well.
#include <chrono>
#include <cstdlib>
#include <future>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/stream.hpp"
#include "backend/device.hpp"
#include "backend/gpus.hpp"
#include "fmt/format.h"
#include "json_line.hpp"
#include "training/checks.hpp"

namespace maestro::gpu_check {

namespace {

using Clock = std::chrono::steady_clock;

/// A function of the host in a stream, which ends when the host says so, or at a deadline.
class HeldStream {
public:
    explicit HeldStream(double seconds) : seconds_(seconds) {
        MAESTRO_CUDA_CALL(cudaLaunchHostFunc(
            stream_,
            [](void* self) {
                const auto& held = *static_cast<HeldStream*>(self);
                held.released_.wait_for(std::chrono::duration<double>(held.seconds_));
            },
            this));
        end_.record(stream_);
    }
    ~HeldStream() { release(); }
    HeldStream(const HeldStream&) = delete;
    HeldStream& operator=(const HeldStream&) = delete;
    /// Work that is issued to `stream` from now on waits.
    void hold(Stream stream) const { end_.block(stream); }
    void release() {
        if (!std::exchange(done_, true)) release_.set_value();
        end_.synchronize();
    }

private:
    double seconds_;
    bool done_ = false;
    std::promise<void> release_;
    std::shared_future<void> released_ = release_.get_future().share();
    backend::CudaStream stream_;
    backend::CudaEvent end_;
};

struct Worker {
    backend::CudaStream stream;
    backend::CudaEvent done;
    void run(void* word) {
        MAESTRO_CUDA_CALL(cudaMemsetAsync(word, 1, sizeof(int), stream));
        done.record(stream);
    }
};

/// Which of `count` streams run while two more wait, one for the host and one for that one's event. Prints a
/// line. Returns how many do not.
int held_by_two(int count, double seconds, void* words) {
    const int others = count - 2;
    std::list<Worker> workers;
    HeldStream first(4 * seconds);
    const backend::CudaStream second;
    first.hold(second);
    MAESTRO_CUDA_CALL(cudaMemsetAsync(words, 1, sizeof(int), second));
    for (int i = 0; i < others; ++i) workers.emplace_back().run(static_cast<int*>(words) + 1 + i);
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    std::string held;
    int ran = 0;
    do {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        held.clear();
        ran = 0;
        int number = 2;
        for (const Worker& worker : workers) {
            if (worker.done.reached())
                ++ran;
            else
                held += fmt::format("{}{}", held.empty() ? "" : ", ", number);
            ++number;
        }
    } while (ran < others && Clock::now() < end);
    first.release();
    for (const Worker& worker : workers) worker.done.synchronize();
    MAESTRO_CUDA_CALL(cudaStreamSynchronize(second));
    const char* const connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    JsonLine("queues")
        .add("streams", static_cast<double>(count))
        .add("max_connections", connections ? connections : "unset")
        .add("ran", static_cast<double>(ran))
        .add("held", held)
        .print();
    return others - ran;
}

}  // namespace

int check_queues(const CheckOptions& options) {
    backend::open_context({.gpu = true, .number = 0, .reason = {}, .gemm = {}});
    void* words = nullptr;
    MAESTRO_CUDA_CALL(cudaMalloc(&words, 64 * sizeof(int)));
    {  // loads what the checks use, which may wait for the whole device
        backend::CudaStream stream;
        MAESTRO_CUDA_CALL(cudaMemsetAsync(words, 0, 64 * sizeof(int), stream));
        MAESTRO_CUDA_CALL(cudaStreamSynchronize(stream));
    }
    const double seconds = options.small ? 0.2 : 1;
    // As many streams as queues: each should have one. With more, some are expected to share.
    const int queues = backend::hardware_queues(),
              held = queues > 2 ? held_by_two(queues, seconds, words) : 0;
    held_by_two(queues + 8, seconds, words);
    MAESTRO_CUDA_CALL(cudaFree(words));
    return held;
}

}  // namespace maestro::gpu_check
