// In the place of GoogleTest on machines without it, for the check of a GPU alone: what the tests of
// operations use of it, with its output and its --gtest_filter (patterns of * and ?, joined by ":", those
// after "-" left out).
#pragma once

#include <cmath>
#include <functional>
#include <sstream>
#include <string>

namespace testing {

class Test {
public:
    virtual ~Test() = default;
    virtual void SetUp() {}
    virtual void TearDown() {}
    virtual void TestBody() = 0;
};

namespace stand_in {

/// What a test appends by <<.
class Words {
public:
    template <class T>
    Words& operator<<(const T& value) {
        text_ << value;
        return *this;
    }
    std::string str() const { return text_.str(); }

private:
    std::ostringstream text_;
};

void record_failure(const char* file, int line, const std::string& what);
void record_skip(const std::string& why);

struct Failure {
    const char* file;
    int line;
    std::string what;
    void operator=(const Words& words) const {
        const std::string more = words.str();
        record_failure(file, line, more.empty() ? what : what + "\n" + more);
    }
};
struct Skip {
    void operator=(const Words& words) const { record_skip(words.str()); }
};

/// Tells, while it lives, every failure where it is.
class Trace {
public:
    Trace(const char* file, int line, const std::string& what);
    ~Trace();
    Trace(const Trace&) = delete;
    Trace& operator=(const Trace&) = delete;
};

bool add_test(const char* suite, const char* name, std::function<Test*()> make);
/// Runs the tests that `filter` names; the process's exit status.
int run_tests(const std::string& filter);

template <class T>
std::string shown(const T& value) {
    std::ostringstream out;
    out.precision(17);
    if constexpr (requires { out << value; })
        out << value;
    else if constexpr (requires { value.begin(); })
        for (const auto& item : value) out << shown(item) << " ";
    else
        out << "(an object)";
    return out.str();
}

/// Empty where the test holds, else what does not.
template <class A, class B, class Holds>
std::string compared(const char* text, const A& a, const B& b, Holds&& holds) {
    return holds(a, b) ? std::string{} : std::string(text) + ": " + shown(a) + " against " + shown(b);
}
inline std::string truth(const char* text, bool holds) {
    return holds ? std::string{} : std::string(text) + " does not hold";
}
inline std::string near(const char* text, double a, double b, double distance) {
    return std::abs(a - b) <= distance
               ? std::string{}
               : std::string(text) + ": " + shown(a) + " and " + shown(b) + " differ by " +
                     shown(std::abs(a - b)) + ", more than " + shown(distance);
}

}  // namespace stand_in
}  // namespace testing

// A failed EXPECT goes on, a failed ASSERT leaves the function: `leave` is nothing or return.
#define MAESTRO_STAND_IN_TEST(wrong_, leave)                                 \
    switch (0)                                                               \
    case 0:                                                                  \
    default:                                                                 \
        if (const std::string wrong_found = (wrong_); wrong_found.empty()) { \
        } else                                                               \
            leave ::testing::stand_in::Failure{__FILE__, __LINE__, wrong_found} = ::testing::stand_in::Words()
#define MAESTRO_STAND_IN_COMPARE(a, sign, b, holds) \
    ::testing::stand_in::compared(#a " " sign " " #b, a, b, holds{})
#define MAESTRO_STAND_IN_NEAR(a, b, distance) ::testing::stand_in::near(#a " near " #b, a, b, distance)

#define EXPECT_EQ(a, b) MAESTRO_STAND_IN_TEST(MAESTRO_STAND_IN_COMPARE(a, "==", b, std::equal_to<>), )
#define ASSERT_EQ(a, b) MAESTRO_STAND_IN_TEST(MAESTRO_STAND_IN_COMPARE(a, "==", b, std::equal_to<>), return )
#define EXPECT_NE(a, b) MAESTRO_STAND_IN_TEST(MAESTRO_STAND_IN_COMPARE(a, "!=", b, std::not_equal_to<>), )
#define EXPECT_GT(a, b) MAESTRO_STAND_IN_TEST(MAESTRO_STAND_IN_COMPARE(a, ">", b, std::greater<>), )
#define EXPECT_GE(a, b) MAESTRO_STAND_IN_TEST(MAESTRO_STAND_IN_COMPARE(a, ">=", b, std::greater_equal<>), )
#define EXPECT_LT(a, b) MAESTRO_STAND_IN_TEST(MAESTRO_STAND_IN_COMPARE(a, "<", b, std::less<>), )
#define EXPECT_LE(a, b) MAESTRO_STAND_IN_TEST(MAESTRO_STAND_IN_COMPARE(a, "<=", b, std::less_equal<>), )
#define EXPECT_TRUE(a) MAESTRO_STAND_IN_TEST(::testing::stand_in::truth(#a, static_cast<bool>(a)), )
#define ASSERT_TRUE(a) MAESTRO_STAND_IN_TEST(::testing::stand_in::truth(#a, static_cast<bool>(a)), return )
#define EXPECT_FALSE(a) MAESTRO_STAND_IN_TEST(::testing::stand_in::truth("not " #a, !(a)), )
#define EXPECT_NEAR(a, b, distance) MAESTRO_STAND_IN_TEST(MAESTRO_STAND_IN_NEAR(a, b, distance), )
#define ASSERT_NEAR(a, b, distance) MAESTRO_STAND_IN_TEST(MAESTRO_STAND_IN_NEAR(a, b, distance), return )
/// Four units in the last place, as GoogleTest has it.
#define EXPECT_DOUBLE_EQ(a, b) EXPECT_NEAR(a, b, 4 * 0x1p-53 * std::abs(static_cast<double>(b)))
#define EXPECT_THROW(statement, Kind)                                \
    MAESTRO_STAND_IN_TEST(([&]() -> std::string {                    \
                              try {                                  \
                                  statement;                         \
                              } catch (const Kind&) {                \
                                  return {};                         \
                              }                                      \
                              return #statement " throws no " #Kind; \
                          })(), )
#define ADD_FAILURE() \
    ::testing::stand_in::Failure{__FILE__, __LINE__, "failed"} = ::testing::stand_in::Words()
#define GTEST_SKIP() return ::testing::stand_in::Skip() = ::testing::stand_in::Words()
#define SCOPED_TRACE(what) const ::testing::stand_in::Trace trace_of_this_scope(__FILE__, __LINE__, what)

#define TEST_F(Suite, Name)                                                                     \
    class Suite##_##Name##_Test : public Suite {                                                \
        void TestBody() override;                                                               \
    };                                                                                          \
    [[maybe_unused]] static const bool Suite##_##Name##_added =                                 \
        ::testing::stand_in::add_test(#Suite, #Name, [] { return new Suite##_##Name##_Test; }); \
    void Suite##_##Name##_Test::TestBody()
