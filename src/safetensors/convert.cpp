#include "safetensors/convert.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.hpp"
#include "base/dtype.hpp"

namespace maestro::safetensors {

static_assert(std::endian::native == std::endian::little, "files of weights are little-endian");

namespace {

constexpr std::uint32_t kInfinity = 0x7f800000u, kMagnitude = 0x7fffffffu;

bool is_finite(float value) {
    return (std::bit_cast<std::uint32_t>(value) & kMagnitude) < kInfinity;
}

/// Without branches, so that loops over it are vectorized. Denormal numbers are converted as integers: a
/// processor that treats denormal floats as 0 does not lose them.
float decode_f16(std::uint16_t bits) {
    const std::uint32_t magnitude = bits & 0x7fffu, exponent = magnitude >> 10;
    const std::uint32_t normal = (magnitude << 13) + (112u << 23), special = (magnitude << 13) | kInfinity;
    const auto denormal =
        std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f);
    const std::uint32_t found = exponent == 0 ? denormal : exponent == 31 ? special : normal;
    return std::bit_cast<float>(found | (static_cast<std::uint32_t>(bits & 0x8000u) << 16));
}

std::uint16_t encode_f16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & kMagnitude;
    std::uint32_t rounded;
    if (magnitude > kInfinity) {
        rounded = 0x7e00u;
    } else if (magnitude >= 0x47800000u) {  // 2^16
        rounded = 0x7c00u;
    } else if (magnitude >= 0x38800000u) {  // 2^-14, the least normal number: a carry may reach infinity
        rounded = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    } else if (magnitude < 0x33000000u) {  // below 2^-25
        rounded = 0;
    } else {  // whole multiples of 2^-24
        const std::uint32_t shift = 126u - (magnitude >> 23), fraction = (magnitude & 0x7fffffu) | 0x800000u;
        const std::uint32_t half = 1u << (shift - 1), rest = fraction & ((1u << shift) - 1);
        rounded = fraction >> shift;
        rounded += rest > half || (rest == half && (rounded & 1u) != 0) ? 1u : 0u;
    }
    return static_cast<std::uint16_t>(sign | rounded);
}

/// Both loops look for what is not finite by a maximum, which is vectorized together with the conversion;
/// only where there is such a value does a second loop search for it.
template <class Stored, class Decode>
std::int64_t decode(const std::byte* stored, std::int64_t count, float* values, Decode&& decode_one) {
    std::uint32_t largest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        Stored element;
        std::memcpy(&element, stored + i * static_cast<std::int64_t>(sizeof element), sizeof element);
        const float value = decode_one(element);
        values[i] = value;
        largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & kMagnitude);
    }
    if (largest < kInfinity) return -1;
    return std::find_if_not(values, values + count, is_finite) - values;
}

/// `exponent` selects the exponent's bits of a stored element.
template <class Stored, class Encode>
std::int64_t encode(const float* values, std::int64_t count, std::byte* stored, Stored exponent,
                    Encode&& encode_one) {
    Stored largest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        const Stored element = encode_one(values[i]);
        largest = std::max(largest, static_cast<Stored>(element & exponent));
        std::memcpy(stored + i * static_cast<std::int64_t>(sizeof element), &element, sizeof element);
    }
    if (largest != exponent) return -1;
    return std::find_if(values, values + count,
                        [&](float value) { return (encode_one(value) & exponent) == exponent; }) -
           values;
}

}  // namespace

float f16_to_f32(std::uint16_t bits) {
    return decode_f16(bits);
}

std::uint16_t f32_to_f16(float value) {
    return encode_f16(value);
}

std::int64_t to_f32(StoredType type, const std::byte* stored, std::int64_t count, float* values) {
    if (type == StoredType::bf16)
        return decode<std::uint16_t>(stored, count, values, [](std::uint16_t bits) {
            return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
        });
    if (type == StoredType::f16) return decode<std::uint16_t>(stored, count, values, decode_f16);
    if (type == StoredType::f32)
        return decode<float>(stored, count, values, [](float value) { return value; });
    if (type == StoredType::f64)
        return decode<double>(stored, count, values, [](double value) { return static_cast<float>(value); });
    MAESTRO_FAIL("weights of type {}", name_of(type));
}

std::int64_t from_f32(StoredType type, const float* values, std::int64_t count, std::byte* stored) {
    if (type == StoredType::bf16)
        return encode<std::uint16_t>(values, count, stored, 0x7f80u,
                                     [](float value) { return bf16(value).bits; });
    if (type == StoredType::f16) return encode<std::uint16_t>(values, count, stored, 0x7c00u, encode_f16);
    if (type == StoredType::f32)
        return encode<std::uint32_t>(values, count, stored, kInfinity,
                                     [](float value) { return std::bit_cast<std::uint32_t>(value); });
    MAESTRO_FAIL("weights are not written as {}", name_of(type));
}

}  // namespace maestro::safetensors
