// Elements of files as f32, and back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "safetensors/stored_type.hpp"

namespace maestro::safetensors {

/// values[i] = element i of `stored`, exactly, except that F64 is rounded to nearest even. `type` is
/// readable; F32 may be converted in place. Returns the index of the first value that is not finite (in F64:
/// or too large for f32), else -1.
std::int64_t to_f32(StoredType type, const std::byte* stored, std::int64_t count, float* values);
/// Element i of `stored` = values[i], rounded to nearest even. `type` is writable. Returns the index of the
/// first value that is not finite, or becomes so by rounding, else -1.
std::int64_t from_f32(StoredType type, const float* values, std::int64_t count, std::byte* stored);

/// F16 (IEEE binary16) by its bits: exact, and rounded to nearest even.
float f16_to_f32(std::uint16_t bits);
std::uint16_t f32_to_f16(float value);

}  // namespace maestro::safetensors
