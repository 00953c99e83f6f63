// Copies tensors from a GPU to the host on a separate stream, ahead of the reader.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "backend/cuda/staging_ring.hpp"
#include "backend/host_reader.hpp"

namespace maestro::backend {

/// Owns a stream and a ring of pinned staging buffers. A chunk stays valid until the call of next() after the
/// one that returned it; then its slot is filled again.
class CudaDeviceToHostReader final : public DeviceToHostReader {
public:
    /// Reads the tensors as the work that was queued on `computing` before leaves them. `wait` blocks until
    /// the device has reached an event.
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
    std::size_t tensor_ = 0;               ///< tensor of the chunk that is copied next
    std::int64_t element_ = 0;             ///< first element of that chunk
    std::uint64_t copied_ = 0, read_ = 0;  ///< chunks whose copy was started; chunks returned by next()
    StagingRing ring_;
    std::array<Chunk, kSlots> chunks_;  ///< by slot
    CudaStream stream_;
};

}  // namespace maestro::backend
