#include "backend/cuda_read_out.hpp"

#include <algorithm>
#include <utility>

namespace maestro::backend {

CudaReadOut::CudaReadOut(Stream computing, std::vector<Tensor> tensors,
                         std::function<void(const CudaEvent&)> wait)
    : tensors_(std::move(tensors)), wait_(std::move(wait)), memory_(kSlot * kSlots) {
    CudaEvent computed;
    computed.record(computing);
    computed.hold(stream_);
    copy_ahead();
}

CudaReadOut::~CudaReadOut() {
    cudaStreamSynchronize(stream_);  // it writes the memory
}

/// Into every slot that the reader has done with.
void CudaReadOut::copy_ahead() {
    while (copied_ < read_ + kSlots && tensor_ < tensors_.size()) {
        const Tensor& tensor = tensors_[tensor_];
        const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
        const std::int64_t end = std::min(tensor.size(), element_ + static_cast<std::int64_t>(kSlot) / size);
        if (end > element_) {
            std::byte* const to = memory_.data() + copied_ % kSlots * kSlot;
            MAESTRO_CUDA_CALL(cudaMemcpyAsync(
                to, static_cast<const std::byte*>(tensor.data) + element_ * size,
                static_cast<std::size_t>((end - element_) * size), cudaMemcpyDeviceToHost, stream_));
            slot(copied_).piece = {tensor_, element_, end, to};
            slot(copied_).copied.record(stream_);
            ++copied_;
        }
        element_ = end;
        if (end < tensor.size()) continue;
        ++tensor_;
        element_ = 0;
    }
}

bool CudaReadOut::next(Piece& piece) {
    copy_ahead();
    if (read_ == copied_) return false;
    Slot& next = slot(read_++);
    wait_(next.copied);
    piece = next.piece;
    return true;
}

}  // namespace maestro::backend
