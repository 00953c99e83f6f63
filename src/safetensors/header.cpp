#include "safetensors/header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

#include "safetensors/json_events.hpp"
#include "safetensors/message.hpp"

namespace maestro::safetensors {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMaxDimensions = 64;
constexpr std::uint64_t kMaxSize = std::numeric_limits<std::int64_t>::max();

/// Collects the tensors of a header. Their `offset` and `bytes` are first the two data_offsets.
class HeaderReader : public JsonEvents<HeaderReader> {
public:
    explicit HeaderReader(const fs::path& file) : JsonEvents(file) {}

    Header take() { return std::move(header_); }

    void on_key(std::string& name) {
        if (depth() == 1) {
            in_metadata_ = name == "__metadata__";
            if (in_metadata_ && std::exchange(seen_metadata_, true))
                refuse(file(), fmt::format("__metadata__ stands twice in the header; {}", kMakeAgain));
            tensor_ = {};
            tensor_.name = std::move(name);
            seen_ = {};
        } else if (depth() == 2) {
            key_ = std::move(name);
            member_ = in_metadata_             ? Member::metadata
                      : key_ == "dtype"        ? Member::dtype
                      : key_ == "shape"        ? Member::shape
                      : key_ == "data_offsets" ? Member::offsets
                                               : Member::unknown;
            if (member_ < Member::metadata && std::exchange(seen_[static_cast<std::size_t>(member_)], true))
                refuse_tensor(fmt::format("{} stands twice in the header; {}", key_, kMakeAgain));
        }
    }

    void on_value(const JsonValue& value) {
        if (depth() == 1) {
            if (!in_metadata_ || value.kind != JsonValue::Kind::null) not_an_object();
        } else if (member_ == Member::metadata) {
            if (value.kind != JsonValue::Kind::text) bad_metadata();
            if (!header_.metadata.emplace(key_, std::move(*value.text)).second)
                refuse(file(),
                       fmt::format("{} stands twice in __metadata__; {}", in_quotes(key_), kMakeAgain));
        } else if (member_ == Member::dtype) {
            if (value.kind != JsonValue::Kind::text)
                refuse_tensor(fmt::format("its dtype is not a text; {}", kMakeAgain));
            const auto type = stored_type(*value.text);
            if (!type)
                refuse_tensor(fmt::format("its dtype {} is unknown; convert the model to BF16, F16 or F32",
                                          in_quotes(*value.text)));
            tensor_.type = *type;
        } else if (member_ == Member::shape) {
            if (depth() != 3 || value.kind != JsonValue::Kind::size || value.size > kMaxSize)
                refuse_tensor(fmt::format("its shape is not a list of sizes; {}", kMakeAgain));
            if (tensor_.shape.size() == kMaxDimensions)
                refuse_tensor(fmt::format("it has more than {} dimensions; {}", kMaxDimensions, kMakeAgain));
            tensor_.shape.push_back(static_cast<std::int64_t>(value.size));
        } else if (member_ == Member::offsets) {
            if (depth() != 3 || value.kind != JsonValue::Kind::size || offsets_ == 2) bad_offsets();
            (offsets_++ == 0 ? tensor_.offset : tensor_.bytes) = value.size;
        }
    }

    void on_begin(bool is_object) {
        if (depth() == 2) {
            if (!is_object) not_an_object();
            offsets_ = 0;
        } else if (member_ == Member::metadata) {
            bad_metadata();
        } else if (member_ != Member::unknown) {
            if (is_object || depth() != 3 || member_ == Member::dtype)
                refuse_tensor(fmt::format("its {} is of a wrong kind; {}", key_, kMakeAgain));
        }
    }

    void on_end() {
        if (depth() != 1 || in_metadata_) return;
        for (std::size_t i = 0; i < seen_.size(); ++i)
            if (!seen_[i])
                refuse_tensor(fmt::format("its {} is missing in the header; {}", kMembers[i], kMakeAgain));
        if (offsets_ != 2) bad_offsets();
        header_.tensors.push_back(std::move(tensor_));
    }

private:
    enum class Member { dtype, shape, offsets, metadata, unknown };
    static constexpr std::array kMembers = {"dtype", "shape", "data_offsets"};

    [[noreturn]] void refuse_tensor(const std::string& what) const { refuse(file(), tensor_.name, what); }
    [[noreturn]] void bad_offsets() const {
        refuse_tensor(fmt::format("its data_offsets are not two sizes; {}", kMakeAgain));
    }
    [[noreturn]] void bad_metadata() const {
        refuse(file(), fmt::format("__metadata__ has a member that is not a text; {}", kMakeAgain));
    }
    [[noreturn]] void not_an_object() const {
        if (in_metadata_) refuse(file(), fmt::format("__metadata__ is not an object; {}", kMakeAgain));
        refuse_tensor(fmt::format("its description is not an object; {}", kMakeAgain));
    }

    Header header_;
    TensorInfo tensor_;
    std::string key_;
    Member member_ = Member::unknown;
    std::array<bool, 3> seen_{};  ///< dtype, shape, data_offsets
    bool in_metadata_ = false, seen_metadata_ = false;
    int offsets_ = 0;
};

/// Sets `elements`; returns the bytes that type and shape require. Dimensions of 0 are left out of the check
/// for overflow, so that all shapes of fewer dimensions are small enough as well.
std::uint64_t size_by_shape(TensorInfo& tensor, const fs::path& file) {
    std::uint64_t elements = 1, bits = 0;
    bool overflow = false, empty = false;
    for (const std::int64_t size : tensor.shape) {
        if (size == 0)
            empty = true;
        else
            overflow |= __builtin_mul_overflow(elements, static_cast<std::uint64_t>(size), &elements);
    }
    overflow |=
        __builtin_mul_overflow(elements, static_cast<std::uint64_t>(info_of(tensor.type).bits), &bits);
    if (overflow || bits > kMaxSize)
        refuse(file, tensor.name,
               fmt::format("its shape {} is larger than any file; {}", text_of(tensor.shape), kMakeAgain));
    if (empty) elements = bits = 0;
    if (bits % 8 != 0)
        refuse(file, tensor.name,
               fmt::format("its shape {} ends within a byte; {}", text_of(tensor.shape), kMakeAgain));
    tensor.elements = static_cast<std::int64_t>(elements);
    return bits / 8;
}

void check_sizes(std::vector<TensorInfo>& tensors, const fs::path& file) {
    for (TensorInfo& tensor : tensors) {
        const std::uint64_t begin = tensor.offset, end = tensor.bytes, bytes = size_by_shape(tensor, file);
        if (end < begin || end - begin != bytes)
            refuse(file, tensor.name,
                   fmt::format("its shape {} of {} has {} bytes, its data_offsets are {} to {}; {}",
                               text_of(tensor.shape), name_of(tensor.type), bytes, begin, end, kMakeAgain));
        tensor.bytes = bytes;
    }
}

/// Each byte of the data belongs to one tensor.
void check_coverage(const std::vector<TensorInfo>& tensors, const fs::path& file, std::uint64_t start,
                    std::uint64_t data_bytes) {
    std::vector<std::size_t> order(tensors.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return std::pair(tensors[a].offset, tensors[a].bytes) <
               std::pair(tensors[b].offset, tensors[b].bytes);
    });
    std::uint64_t end = 0;
    for (const std::size_t i : order) {
        const TensorInfo& tensor = tensors[i];
        if (tensor.offset != end)
            refuse(
                file, tensor.name,
                fmt::format("it begins at byte {} of the data, and the tensor before it ends at byte {}; {}",
                            tensor.offset, end, kMakeAgain));
        end += tensor.bytes;  // cannot overflow: at most 2^60 beyond the data
        if (end > data_bytes)
            refuse(file, tensor.name,
                   fmt::format("it ends at byte {} of the file, which has {}; the file is cut off: {}",
                               start + end, start + data_bytes, kMakeAgain));
    }
    if (end != data_bytes)
        refuse(file, fmt::format("{} bytes follow the last tensor, from byte {} on; {}", data_bytes - end,
                                 start + end, kMakeAgain));
}

}  // namespace

Header parse_header(std::string_view text, const fs::path& file, std::uint64_t data_bytes) {
    if (!text.starts_with('{'))
        refuse(file, fmt::format("its header does not begin with {{ at byte {}, so that it is no safetensors "
                                 "file; {}",
                                 kLengthBytes, kMakeAgain));
    HeaderReader reader(file);
    reader.parse(text, kLengthBytes);
    Header header = reader.take();
    std::sort(header.tensors.begin(), header.tensors.end(),
              [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
    for (std::size_t i = 1; i < header.tensors.size(); ++i)
        if (header.tensors[i].name == header.tensors[i - 1].name)
            refuse(file, header.tensors[i].name,
                   fmt::format("it stands twice in the header; {}", kMakeAgain));
    check_sizes(header.tensors, file);
    const std::uint64_t start = kLengthBytes + text.size();
    check_coverage(header.tensors, file, start, data_bytes);
    for (TensorInfo& tensor : header.tensors) tensor.offset += start;
    return header;
}

}  // namespace maestro::safetensors
