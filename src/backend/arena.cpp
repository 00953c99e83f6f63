#include "backend/arena.hpp"

namespace maestro::backend {

Tensor Arena::allocate(DType dtype, std::initializer_list<std::int64_t> shape) {
    constexpr std::size_t kAlignment = 64;
    Tensor tensor(nullptr, dtype, shape);
    const std::size_t bytes = (tensor.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    MAESTRO_CHECK(measures_ || used_ + bytes <= capacity_, "arena of {} bytes, {} used, {} requested for {}",
                  capacity_, used_, bytes, tensor.describe());
    // A measuring arena returns invalid addresses, but different ones, so that code may compare them.
    tensor.data =
        reinterpret_cast<std::byte*>(measures_ ? reinterpret_cast<void*>(kAlignment) : buffer_.data()) +
        used_;
    used_ += bytes;
    peak_ = std::max(peak_, used_);
    return tensor;
}

}  // namespace maestro::backend
