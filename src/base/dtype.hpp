// Element types. bf16 is storage only: arithmetic happens in float. f64 serves checks, of gradients and of
// whole runs (run.precision).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace maestro {

enum class DType : std::uint8_t { f32, bf16, f64, i32, u8 };

struct bf16 {
    std::uint16_t bits = 0;
    bf16() = default;
    /// Rounds to nearest even; NaN stays NaN.
    explicit bf16(float value) {
        const auto u = std::bit_cast<std::uint32_t>(value);
        const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
        bits = static_cast<std::uint16_t>(nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
    explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// The type that arithmetic on T uses: double for double, float for the rest.
template <class T>
using Accumulate = std::conditional_t<std::is_same_v<T, double>, double, float>;

constexpr std::size_t size_of(DType type) {
    switch (type) {
        case DType::f32:
            return 4;
        case DType::bf16:
            return 2;
        case DType::f64:
            return 8;
        case DType::i32:
            return 4;
        case DType::u8:
            return 1;
    }
    return 0;
}

constexpr const char* name_of(DType type) {
    switch (type) {
        case DType::f32:
            return "f32";
        case DType::bf16:
            return "bf16";
        case DType::f64:
            return "f64";
        case DType::i32:
            return "i32";
        case DType::u8:
            return "u8";
    }
    return "?";
}

template <class T>
constexpr DType dtype_of() {
    if constexpr (std::is_same_v<T, float>)
        return DType::f32;
    else if constexpr (std::is_same_v<T, bf16>)
        return DType::bf16;
    else if constexpr (std::is_same_v<T, double>)
        return DType::f64;
    else if constexpr (std::is_same_v<T, std::int32_t>)
        return DType::i32;
    else {
        static_assert(std::is_same_v<T, std::uint8_t>);
        return DType::u8;
    }
}

}  // namespace maestro
