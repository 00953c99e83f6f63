#include "safetensors/output_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.hpp"
#include "safetensors/header.hpp"
#include "safetensors/safetensors_folder.hpp"

namespace maestro::safetensors {

namespace {

std::uint64_t bytes_of(const TensorSpec& tensor) {
    return static_cast<std::uint64_t>(tensor.elements()) * bytes_of(tensor.type);
}

/// The numbers of the tensors in each file.
std::vector<std::vector<std::size_t>> distribute(const std::vector<TensorSpec>& tensors,
                                                 std::uint64_t max_shard_bytes) {
    std::vector<std::vector<std::size_t>> files;
    std::vector<std::size_t> current;
    std::uint64_t filled = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const std::uint64_t bytes = bytes_of(tensors[i]);
        if (bytes > max_shard_bytes) {
            files.push_back({i});
            continue;
        }
        if (filled + bytes > max_shard_bytes) {
            files.push_back(std::exchange(current, {}));
            filled = 0;
        }
        current.push_back(i);
        filled += bytes;
    }
    if (!current.empty() || files.empty()) files.push_back(std::move(current));
    return files;
}

std::string as_json(const std::string& text) {
    return nlohmann::json(text).dump();
}

/// Lays out one file, byte for byte as the reference's save_file(tensors, file, {"format": "pt"}).
OutputLayout::File make_file(OutputLayout& layout, std::vector<std::size_t> members) {
    std::sort(members.begin(), members.end(), [&](std::size_t a, std::size_t b) {
        const TensorSpec &x = layout.tensors[a], &y = layout.tensors[b];
        return std::tie(y.type, x.name) < std::tie(x.type, y.name);
    });
    std::string json = R"({"__metadata__":{"format":"pt"})";
    std::uint64_t end = 0;
    for (const std::size_t i : members) {
        const TensorSpec& tensor = layout.tensors[i];
        const std::uint64_t begin = std::exchange(end, end + bytes_of(tensor));
        layout.places[i].offset = begin;
        std::string shape;
        for (const std::int64_t size : tensor.shape)
            shape += fmt::format("{}{}", shape.empty() ? "" : ",", size);
        json += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                            as_json(tensor.name), name_of(tensor.type), shape, begin, end);
    }
    json += "}";
    json.append((kLengthBytes - json.size() % kLengthBytes) % kLengthBytes, ' ');
    MAESTRO_CHECK(json.size() <= kMaxHeaderBytes, "{} tensors need a header of {} bytes", members.size(),
                  json.size());
    OutputLayout::File file{.name = {}, .header = {}, .bytes = kLengthBytes + json.size() + end};
    for (std::uint64_t byte = 0; byte < kLengthBytes; ++byte)
        file.header.push_back(static_cast<char>(json.size() >> (8 * byte)));
    file.header += json;
    for (const std::size_t i : members) {
        layout.places[i].file = layout.files.size();
        layout.places[i].offset += file.header.size();
    }
    return file;
}

std::string index_of(const OutputLayout& layout) {
    std::uint64_t total = 0;
    std::map<std::string, std::string> map;
    for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
        total += bytes_of(layout.tensors[i]);
        map.emplace(layout.tensors[i].name, layout.files[layout.places[i].file].name);
    }
    const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
    return index.dump(2, ' ', true) + "\n";
}

}  // namespace

std::int64_t TensorSpec::elements() const {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    return count;
}

OutputLayout lay_out(std::vector<TensorSpec> tensors, std::uint64_t max_shard_bytes) {
    std::set<std::string> names = {"__metadata__"};
    for (const TensorSpec& tensor : tensors) {
        MAESTRO_CHECK(is_writable(tensor.type), "{}: weights are not written as {}", tensor.name,
                      name_of(tensor.type));
        MAESTRO_CHECK(names.insert(tensor.name).second, "two tensors are named {}", tensor.name);
    }
    OutputLayout layout{.tensors = std::move(tensors)};
    layout.places.resize(layout.tensors.size());
    auto files = distribute(layout.tensors, max_shard_bytes);
    for (auto& members : files) layout.files.push_back(make_file(layout, std::move(members)));
    const std::size_t count = layout.files.size();
    for (std::size_t i = 0; i < count; ++i)
        layout.files[i].name =
            count == 1 ? kSingleFile : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, count);
    if (count > 1) layout.index = index_of(layout);
    return layout;
}

}  // namespace maestro::safetensors
