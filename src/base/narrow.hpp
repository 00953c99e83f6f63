// Checked conversion to a smaller integer type.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

#include "base/check.hpp"

namespace maestro {

/// Returns `value` as To. Throws Error(broken_invariant) where it does not fit; `what` names it in the
/// message, in the plural. Decks in which this can happen are refused before (workload/memory.cpp).
template <class To, class From>
constexpr To narrow(From value, std::string_view what) {
    static_assert(std::is_integral_v<To> && std::is_integral_v<From> && sizeof(To) <= sizeof(From));
    const To narrowed = static_cast<To>(value);
    MAESTRO_CHECK(static_cast<From>(narrowed) == value && (narrowed < To{}) == (value < From{}),
                  "{} {}, at most {} fit", value, what, std::numeric_limits<To>::max());
    return narrowed;
}

}  // namespace maestro
