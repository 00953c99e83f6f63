// What a call throws, as a value to look at.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/error.hpp"

namespace maestro::testing_support {

struct Thrown {
    ExitCode code = ExitCode::done;
    std::string what;
};

/// The Error that call() throws; the test fails where it throws none.
template <class Call>
Thrown error_of(Call&& call) {
    try {
        call();
    } catch (const Error& error) {
        return {error.code(), error.what()};
    }
    ADD_FAILURE() << "no error was thrown";
    return {};
}

}  // namespace maestro::testing_support
