#include "backend/cuda/staged_reader.hpp"

#include <algorithm>
#include <utility>

namespace maestro::backend {

CudaDeviceToHostReader::CudaDeviceToHostReader(Stream computing, std::vector<Tensor> tensors,
                                               std::function<void(const CudaEvent&)> wait)
    : tensors_(std::move(tensors)), wait_(std::move(wait)), ring_(kSlots, kSlotBytes) {
    CudaEvent computed;
    computed.record(computing);
    computed.block(stream_);
    copy_ahead();
}

CudaDeviceToHostReader::~CudaDeviceToHostReader() {
    cudaStreamSynchronize(stream_);  // queued copies write to the ring
}

/// Starts copies into all slots that the reader has finished with.
void CudaDeviceToHostReader::copy_ahead() {
    while (copied_ < read_ + kSlots && tensor_ < tensors_.size()) {
        const Tensor& tensor = tensors_[tensor_];
        const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
        const std::int64_t end =
            std::min(tensor.size(), element_ + static_cast<std::int64_t>(kSlotBytes) / size);
        if (end > element_) {
            StagingRing::Slot& slot = ring_[copied_];
            MAESTRO_CUDA_CALL(cudaMemcpyAsync(
                slot.memory.data(), static_cast<const std::byte*>(tensor.data) + element_ * size,
                static_cast<std::size_t>((end - element_) * size), cudaMemcpyDeviceToHost, stream_));
            chunks_[copied_ % kSlots] = {tensor_, element_, end, slot.memory.data()};
            slot.copied.record(stream_);
            ++copied_;
        }
        element_ = end;
        if (end < tensor.size()) continue;
        ++tensor_;
        element_ = 0;
    }
}

bool CudaDeviceToHostReader::next(Chunk& chunk) {
    copy_ahead();
    if (read_ == copied_) return false;
    wait_(ring_[read_].copied);
    chunk = chunks_[read_ % kSlots];
    ++read_;
    return true;
}

}  // namespace maestro::backend
