// Files of tests/golden/safetensors, which the reference implementation wrote, and hostile ones made here.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/output_layout.hpp"

namespace maestro::safetensors_test {

inline const std::filesystem::path kGolden = MAESTRO_SOURCE_DIR "/tests/golden/safetensors";

inline std::string bytes_of(const std::filesystem::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

inline void write_bytes(const std::filesystem::path& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string length_of(std::uint64_t length) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(length >> (8 * i)));
    return bytes;
}

/// A file with this JSON and these data.
inline std::string file_with(std::string_view json, std::string_view data) {
    return length_of(json.size()).append(json).append(data);
}

/// Data of elements of any type.
template <class T>
std::string data_of(const std::vector<T>& elements) {
    return {reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(T)};
}

/// Undoes escape() of make_safetensors.py.
inline std::string unescape(std::string_view text) {
    std::string bytes;
    for (std::size_t i = 0; i < text.size(); ++i)
        if (text[i] == '\\') {
            bytes.push_back(static_cast<char>(std::stoi(std::string(text.substr(i + 2, 2)), nullptr, 16)));
            i += 3;
        } else {
            bytes.push_back(text[i]);
        }
    return bytes;
}

/// The model of single/ and sharded/, MODEL in make_safetensors.py.
inline std::vector<safetensors::TensorSpec> model() {
    using enum safetensors::StoredType;
    return {{"model.embed_tokens.weight", bf16, {10, 8}},
            {"model.layers.0.linear_attn.A_log", f32, {4}},
            {"model.layers.0.linear_attn.conv1d.weight", bf16, {6, 1, 4}},
            {"model.layers.0.self_attn.q_proj.weight", bf16, {8, 8}},
            {"model.layers.0.self_attn.k_proj.weight", f16, {3, 8}},
            {"model.layers.0.mlp.gate_proj.weight", bf16, {16, 16}},
            {"model.layers.0.scale", f32, {}},
            {"model.layers.0.none", bf16, {0, 8}},
            {"model.layers.1.self_attn.q_proj.weight", bf16, {8, 8}},
            {"model.layers.1.mlp.up_proj.weight", f16, {20, 7}},
            {"lm_head.weight", bf16, {10, 8}}};
}
inline constexpr std::uint64_t kMaxShard = 400;

/// Its weights before they are rounded: weight() in make_safetensors.py.
inline std::vector<float> weights(std::size_t number, std::int64_t count) {
    std::vector<float> values;
    for (std::int64_t i = 1; i <= count; ++i) {
        const auto bits =
            static_cast<std::uint32_t>(static_cast<std::uint64_t>(i) * 2654435761u + 97 * number);
        values.push_back(static_cast<float>(bits / 2147483648.0 - 1));
    }
    return values;
}

}  // namespace maestro::safetensors_test
