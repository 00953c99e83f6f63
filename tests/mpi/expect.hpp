// Expectations of MPI tests. A failed one throws and ends the job: the other ranks would wait for the rank
// that failed.
#pragma once

#include <string>
#include <string_view>

#include "base/check.hpp"

namespace maestro::test {

/// Expects call() to throw an Error with this code and with `fragment` in its message.
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
