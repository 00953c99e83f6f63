// Tensors of a GPU on their way to the host: copies on a stream beside the computing, ahead of the reader.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "backend/cuda/staging_ring.hpp"
#include "backend/host_reader.hpp"

namespace maestro::backend {

/// Owns its stream and a ring of pinned memory. A slot is filled again once the reader has asked for the
/// chunk after the one that was in it.
class CudaDeviceToHostReader final : public DeviceToHostReader {
public:
    /// What `computing` was given before is done in what is read. `wait` returns when an event is reached.
    CudaDeviceToHostReader(Stream computing, std::vector<Tensor> tensors,
                           std::function<void(const CudaEvent&)> wait);
    ~CudaDeviceToHostReader() override;
    bool next(Chunk& chunk) override;

    static constexpr std::size_t kSlotBytes = std::size_t{4} << 20;
    static constexpr std::uint64_t kSlots = 4;

private:
    void copy_ahead();

    std::vector<Tensor> tensors_;
    std::function<void(const CudaEvent&)> wait_;
    std::size_t tensor_ = 0;               ///< of the chunk that is copied next
    std::int64_t element_ = 0;             ///< the first element of that chunk
    std::uint64_t copied_ = 0, read_ = 0;  ///< pieces whose copy was started, and pieces that were handed out
    StagingRing ring_;
    std::array<Chunk, kSlots> chunks_;  ///< by slot
    CudaStream stream_;
};

}  // namespace maestro::backend
