// The element types of safetensors files.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace maestro::safetensors {

/// All types that the format has had up to version 0.8 of the reference, in its order, by which the reference
/// also sorts the tensors of a file (from the last type to the first).
enum class StoredType : std::uint8_t {
    bool8,
    f4,
    f6_e2m3,
    f6_e3m2,
    u8,
    i8,
    f8_e5m2,
    f8_e4m3,
    f8_e8m0,
    f8_e4m3fnuz,
    f8_e5m2fnuz,
    i16,
    u16,
    f16,
    bf16,
    i32,
    u32,
    f32,
    c64,
    f64,
    i64,
    u64,
};

struct StoredTypeInfo {
    StoredType type;
    std::string_view name;  ///< in a header
    int bits;               ///< of an element
};

inline constexpr std::array<StoredTypeInfo, 22> kStoredTypes = {{
    {StoredType::bool8, "BOOL", 8},
    {StoredType::f4, "F4", 4},
    {StoredType::f6_e2m3, "F6_E2M3", 6},
    {StoredType::f6_e3m2, "F6_E3M2", 6},
    {StoredType::u8, "U8", 8},
    {StoredType::i8, "I8", 8},
    {StoredType::f8_e5m2, "F8_E5M2", 8},
    {StoredType::f8_e4m3, "F8_E4M3", 8},
    {StoredType::f8_e8m0, "F8_E8M0", 8},
    {StoredType::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
    {StoredType::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
    {StoredType::i16, "I16", 16},
    {StoredType::u16, "U16", 16},
    {StoredType::f16, "F16", 16},
    {StoredType::bf16, "BF16", 16},
    {StoredType::i32, "I32", 32},
    {StoredType::u32, "U32", 32},
    {StoredType::f32, "F32", 32},
    {StoredType::c64, "C64", 64},
    {StoredType::f64, "F64", 64},
    {StoredType::i64, "I64", 64},
    {StoredType::u64, "U64", 64},
}};

constexpr const StoredTypeInfo& info_of(StoredType type) {
    return kStoredTypes[static_cast<std::size_t>(type)];
}
constexpr std::string_view name_of(StoredType type) {
    return info_of(type).name;
}
/// Whether weights may have this type: BF16, F16, F32 and F64.
constexpr bool is_readable(StoredType type) {
    return type == StoredType::bf16 || type == StoredType::f16 || type == StoredType::f32 ||
           type == StoredType::f64;
}
/// Whether weights are written in this type: BF16, F16 and F32.
constexpr bool is_writable(StoredType type) {
    return is_readable(type) && type != StoredType::f64;
}
/// Bytes of an element of a type that is_readable().
constexpr std::uint64_t bytes_of(StoredType type) {
    return static_cast<std::uint64_t>(info_of(type).bits / 8);
}
constexpr std::optional<StoredType> stored_type(std::string_view name) {
    for (const StoredTypeInfo& info : kStoredTypes)
        if (info.name == name) return info.type;
    return std::nullopt;
}

}  // namespace maestro::safetensors
