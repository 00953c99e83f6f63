#include "safetensors/safetensors_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/check.hpp"
#include "safetensors/convert.hpp"
#include "safetensors/message.hpp"

namespace maestro::safetensors {

namespace {

/// What is read at once: large enough for the throughput of a disk, small enough to stay in a core's cache
/// until it is converted.
constexpr std::uint64_t kWindow = 1 << 20;
/// Extents that lie closer are read together with what lies between them. Storage takes longer to find the
/// next extent than to read so much more, above all a network file system.
constexpr std::uint64_t kMaxGap = 256 << 10;

Header read_header(const InputFile& file, Pulse& pulse) {
    if (file.size() < kLengthBytes)
        refuse(file.path(), fmt::format("it has {} bytes, and a safetensors file at least {}; {}",
                                        file.size(), kLengthBytes + 2, kMakeAgain));
    std::uint64_t length = 0;
    file.read(&length, kLengthBytes, 0, "the length of its header", pulse);
    if (length < 2 || length > kMaxHeaderBytes || length > file.size() - kLengthBytes)
        refuse(file.path(),
               fmt::format("bytes 0 to 8 give its header a length of {}, and 2 to {} are possible; {}",
                           length, std::min(kMaxHeaderBytes, file.size() - kLengthBytes), kMakeAgain));
    std::string text(length, '\0');
    file.read(text.data(), length, kLengthBytes, "its header", pulse);
    return parse_header(text, file.path(), file.size() - kLengthBytes - length);
}

/// `[2, 7]` for an element of a matrix.
std::string index_of(const TensorInfo& tensor, std::int64_t element) {
    std::vector<std::int64_t> index(tensor.shape.size());
    for (std::size_t d = index.size(); d-- > 0; element /= tensor.shape[d])
        index[d] = element % tensor.shape[d];
    return text_of(index);
}

/// One pass over the extents of a tensor.
class TensorReader {
public:
    TensorReader(const InputFile& file, const TensorInfo& tensor, std::span<const Extent> extents,
                 float* values, Pulse& pulse)
        : file_(file),
          tensor_(tensor),
          extents_(extents),
          values_(values),
          pulse_(pulse),
          what_(fmt::format("tensor {}", in_quotes(tensor.name))),
          size_(bytes_of(tensor.type)),
          window_(static_cast<std::int64_t>(kWindow / size_)),
          max_gap_(static_cast<std::int64_t>(kMaxGap / size_)) {}

    void run() {
        while (at_ < extents_.size()) {
            const std::int64_t begin = extents_[at_].logical + done_;
            if (extents_[at_].count == 0)
                ++at_;
            else if (tensor_.type == StoredType::f32 && extents_[at_].stride == 1 &&
                     !next_is_in_window(begin))
                read_in_place(begin);
            else
                read_window(begin, end_of_window(begin));
        }
    }

private:
    bool next_is_in_window(std::int64_t begin) const {
        return end_of_window(begin) > extents_[at_].logical + extents_[at_].count;
    }

    /// The end of the last element that is wanted and read together with those from `begin` on.
    std::int64_t end_of_window(std::int64_t begin) const {
        const std::int64_t limit = begin + window_;
        std::int64_t end = begin;
        for (std::size_t i = at_; i < extents_.size(); ++i) {
            const std::int64_t from = i == at_ ? begin : extents_[i].logical;
            if (from < end || from - end > max_gap_ || from >= limit) break;
            end = std::min(extents_[i].logical + extents_[i].count, limit);
            if (end == limit) break;
        }
        return end;
    }

    void read_bytes(void* target, std::int64_t begin, std::int64_t end) const {
        file_.read(target, static_cast<std::uint64_t>(end - begin) * size_,
                   tensor_.offset + static_cast<std::uint64_t>(begin) * size_, what_, pulse_);
    }

    void read_in_place(std::int64_t begin) {
        const Extent& extent = extents_[at_];
        const std::int64_t count = std::min(window_, extent.count - done_);
        float* const target = values_ + extent.local + done_;
        read_bytes(target, begin, begin + count);
        convert(reinterpret_cast<const std::byte*>(target), begin, count);
    }

    void read_window(std::int64_t begin, std::int64_t end) {
        if (!block_) block_ = std::make_unique_for_overwrite<std::byte[]>(kWindow);
        read_bytes(block_.get(), begin, end);
        while (at_ < extents_.size()) {
            const Extent& extent = extents_[at_];
            const std::int64_t from = extent.logical + done_;
            if (from < begin || from >= end) break;
            convert(block_.get() + static_cast<std::uint64_t>(from - begin) * size_, from,
                    std::min(extent.count - done_, end - from));
        }
    }

    /// Of the current extent.
    void convert(const std::byte* stored, std::int64_t first, std::int64_t count) {
        const Extent& extent = extents_[at_];
        float* const to = values_ + extent.local + done_ * extent.stride;
        if (extent.stride > 1) row_.resize(static_cast<std::size_t>(count));
        float* const converted = extent.stride > 1 ? row_.data() : to;
        const std::int64_t wrong = to_f32(tensor_.type, stored, count, converted);
        if (wrong >= 0) refuse_value(stored + static_cast<std::uint64_t>(wrong) * size_, first + wrong);
        if (extent.stride > 1)
            for (std::int64_t i = 0; i < count; ++i) to[i * extent.stride] = converted[i];
        done_ += count;
        if (done_ == extent.count) {
            done_ = 0;
            ++at_;
        }
    }

    [[noreturn]] void refuse_value(const std::byte* stored, std::int64_t element) const {
        const std::uint64_t place = tensor_.offset + static_cast<std::uint64_t>(element) * size_;
        double value = 0;
        if (tensor_.type == StoredType::f64) std::memcpy(&value, stored, sizeof value);
        if (value != 0 && std::isfinite(value))
            refuse(file_.path(), tensor_.name,
                   fmt::format("element {} (byte {} of the file) is {}, which is too large for f32; correct "
                               "the model",
                               index_of(tensor_, element), place, value));
        refuse(
            file_.path(), tensor_.name,
            fmt::format("element {} (byte {} of the file) is NaN or Inf; take a model whose training did not "
                        "diverge, or download the file again",
                        index_of(tensor_, element), place));
    }

    const InputFile& file_;
    const TensorInfo& tensor_;
    std::span<const Extent> extents_;
    float* values_;
    Pulse& pulse_;
    std::string what_;                      ///< for errors
    std::uint64_t size_;                    ///< bytes of an element
    std::int64_t window_, max_gap_;         ///< elements
    std::size_t at_ = 0;                    ///< the current extent, of which
    std::int64_t done_ = 0;                 ///< so many elements are read
    std::unique_ptr<std::byte[]> block_{};  ///< kWindow bytes
    std::vector<float> row_{};              ///< elements that go to places apart from each other
};

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, Pulse& pulse)
    : file_(path), header_(read_header(file_, pulse)) {}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
    const auto& all = header_.tensors;
    const auto found = std::lower_bound(
        all.begin(), all.end(), name,
        [](const TensorInfo& tensor, std::string_view wanted) { return tensor.name < wanted; });
    return found != all.end() && found->name == name ? &*found : nullptr;
}

void SafetensorsFile::check_type(const TensorInfo& tensor) const {
    if (!is_readable(tensor.type))
        refuse(
            path(), tensor.name,
            fmt::format("its dtype is {}, and weights are BF16, F16, F32 or F64; take the model that was not "
                        "quantized, or convert it",
                        name_of(tensor.type)));
}

void SafetensorsFile::read(const TensorInfo& tensor, std::span<const Extent> extents, float* values,
                           Pulse& pulse) const {
    check_type(tensor);
    for (const Extent& extent : extents)
        MAESTRO_CHECK(extent.logical >= 0 && extent.count >= 0 && extent.local >= 0 &&
                          extent.logical <= tensor.elements &&
                          extent.count <= tensor.elements - extent.logical,
                      "{}: elements {} to {} of {}", tensor.name, extent.logical,
                      extent.logical + extent.count, tensor.elements);
    TensorReader(file_, tensor, extents, values, pulse).run();
}

void SafetensorsFile::read(const TensorInfo& tensor, Range elements, float* values, Pulse& pulse) const {
    const Extent extent = {elements.begin, 0, elements.size()};
    read(tensor, std::span(&extent, 1), values, pulse);
}

}  // namespace maestro::safetensors
