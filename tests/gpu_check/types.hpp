// Short names for the lists of operations.
#pragma once

#include <initializer_list>

#include "workbench.hpp"

namespace maestro::gpu_check {

using Run = std::function<void()>;
inline constexpr auto kMemory = Operation::Roof::memory;
inline constexpr auto kArithmetic = Operation::Roof::arithmetic;
inline const std::vector<DType> kAll{DType::f64, DType::f32, DType::bf16};
inline const std::vector<DType> kSums{DType::f64, DType::f32};

/// The type of statistics and of weight gradients.
inline DType sums_of(DType type) {
    return type == DType::f64 ? DType::f64 : DType::f32;
}

inline std::vector<Operation> concatenate(std::initializer_list<std::vector<Operation>> lists) {
    std::vector<Operation> all;
    for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
    return all;
}

}  // namespace maestro::gpu_check
