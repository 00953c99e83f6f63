// In the place of GoogleMock, for the check of a GPU alone: ElementsAre of plain values.
#pragma once

#include <gtest/gtest.h>

#include <tuple>

namespace testing {

template <class... Values>
auto ElementsAre(const Values&... values) {
    return [expected = std::tuple(values...)](const auto& list) {
        return list.size() == sizeof...(Values) && std::apply(
                                                       [&](const auto&... value) {
                                                           auto at = list.begin();
                                                           return ((*at++ == value) && ...);
                                                       },
                                                       expected);
    };
}

}  // namespace testing

#define EXPECT_THAT(list, matches) EXPECT_TRUE((matches)(list)) << ::testing::stand_in::shown(list)
