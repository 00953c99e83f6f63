// The replacements of fmt and xxhash behave like the libraries.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ios>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>

namespace stand_in {
#define XXH64 XXH64_of_the_stand_in
#include "xxhash/xxhash.h"
#undef XXH64
#define fmt fmt_of_the_stand_in
#include "fmt/fmt/core.h"
#undef fmt
}  // namespace stand_in

namespace {

TEST(StandIns, XxhashHasTheDigestsOfTheLibrary) {
    std::string text;
    for (int length = 0; length < 200; ++length) {
        for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1} << 63})
            EXPECT_EQ(stand_in::XXH64_of_the_stand_in(text.data(), text.size(), seed),
                      XXH64(text.data(), text.size(), seed))
                << length;
        text += static_cast<char>(length * 37);
    }
}

TEST(StandIns, FmtFillsItsFields) {
    const auto same = [](const char* text, const auto&... values) {
        EXPECT_EQ(stand_in::fmt_of_the_stand_in::format(text, values...),
                  fmt::format(fmt::runtime(text), values...));
    };
    same("no field");
    same("{}", 3);
    same("{} of {}: {}", std::string("one"), std::string_view("two"), "three");
    const std::array<std::int64_t, 3> list{2, 3, 5};
    EXPECT_EQ(stand_in::fmt_of_the_stand_in::join(list.begin(), list.end(), ", "), "2, 3, 5");
    EXPECT_EQ(stand_in::fmt_of_the_stand_in::join(list.begin(), list.begin(), ", "), "");
    EXPECT_EQ(stand_in::fmt_of_the_stand_in::join(list, "-"), "2-3-5");
    same("{:.0f} s, {:.2f}, {}", 2.5, 1.005, 0.125);
    same("{}{} {}", true, 1.5, std::int64_t{-7});
}

}  // namespace
