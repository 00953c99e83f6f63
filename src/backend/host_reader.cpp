#include "backend/host_reader.hpp"

#include <utility>

namespace maestro::backend {

namespace {

class InPlace final : public DeviceToHostReader {
public:
    explicit InPlace(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {}
    bool next(Chunk& chunk) override {
        while (at_ < tensors_.size() && tensors_[at_].empty()) ++at_;
        if (at_ == tensors_.size()) return false;
        chunk = {at_, 0, tensors_[at_].size(), tensors_[at_].data};
        ++at_;
        return true;
    }

private:
    std::vector<Tensor> tensors_;
    std::size_t at_ = 0;
};

}  // namespace

std::unique_ptr<DeviceToHostReader> read_in_place(std::vector<Tensor> tensors) {
    return std::make_unique<InPlace>(std::move(tensors));
}

}  // namespace maestro::backend
