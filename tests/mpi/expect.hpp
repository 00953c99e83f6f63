// Expectations of MPI tests, which throw where they are not met.
#pragma once

#include <string>
#include <string_view>

#include "base/check.hpp"

namespace maestro::test {

/// call() throws an Error of that code whose message holds `fragment`.
template <class Call>
void expect_error(ExitCode code, std::string_view fragment, Call&& call) {
    try {
        call();
    } catch (const Error& error) {
        const std::string what = error.what();
        MAESTRO_CHECK(error.code() == code && what.find(fragment) != std::string::npos,
                      "not {} with \"{}\": {}", static_cast<int>(code), fragment, what);
        return;
    }
    MAESTRO_CHECK(false, "no error {} with \"{}\"", static_cast<int>(code), fragment);
}

}  // namespace maestro::test
