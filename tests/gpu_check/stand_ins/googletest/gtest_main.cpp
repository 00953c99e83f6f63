#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace testing::stand_in {

namespace {

struct Entry {
    std::string name;
    std::function<Test*()> make;
};

struct State {
    std::vector<Entry> tests;
    std::vector<std::string> traces;
    bool failed = false, skipped = false;  // the test that runs
};

State& state() {
    static State only;
    return only;
}

/// Does a pattern of * and ? fit the whole name?
bool fits(const char* pattern, const char* name) {
    if (*pattern == '\0') return *name == '\0';
    if (*pattern == '*') return fits(pattern + 1, name) || (*name != '\0' && fits(pattern, name + 1));
    return *name != '\0' && (*pattern == '?' || *pattern == *name) && fits(pattern + 1, name + 1);
}

bool fits_any(const std::string& patterns, const std::string& name) {
    std::istringstream list(patterns);
    for (std::string pattern; std::getline(list, pattern, ':');)
        if (fits(pattern.c_str(), name.c_str())) return true;
    return false;
}

bool chosen(const std::string& filter, const std::string& name) {
    const std::size_t minus = filter.find('-');
    const std::string wanted = filter.substr(0, minus);
    if (minus != std::string::npos && fits_any(filter.substr(minus + 1), name)) return false;
    return wanted.empty() || fits_any(wanted, name);
}

void run(const Entry& entry) {
    State& s = state();
    s.failed = s.skipped = false;
    try {
        const std::unique_ptr<Test> test(entry.make());
        test->SetUp();
        if (!s.failed && !s.skipped) test->TestBody();
        test->TearDown();
    } catch (const std::exception& error) {
        record_failure("unknown file", 0, std::string("an exception left the test: ") + error.what());
    }
    s.traces.clear();
}

}  // namespace

void record_failure(const char* file, int line, const std::string& what) {
    state().failed = true;
    std::printf("%s:%d: Failure\n%s\n", file, line, what.c_str());
    for (const std::string& trace : state().traces) std::printf("Trace: %s\n", trace.c_str());
}

void record_skip(const std::string& why) {
    state().skipped = true;
    std::printf("Skipped\n%s\n", why.c_str());
}

Trace::Trace(const char* file, int line, const std::string& what) {
    state().traces.push_back(std::string(file) + ":" + std::to_string(line) + ": " + what);
}
Trace::~Trace() {
    if (!state().traces.empty()) state().traces.pop_back();
}

bool add_test(const char* suite, const char* name, std::function<Test*()> make) {
    state().tests.push_back({std::string(suite) + "." + name, std::move(make)});
    return true;
}

int run_tests(const std::string& filter) {
    int passed = 0, skipped = 0;
    std::vector<std::string> failed;
    for (const Entry& entry : state().tests) {
        if (!chosen(filter, entry.name)) continue;
        std::printf("[ RUN      ] %s\n", entry.name.c_str());
        run(entry);
        const char* word = state().failed    ? "[  FAILED  ]"
                           : state().skipped ? "[  SKIPPED ]"
                                             : "[       OK ]";
        std::printf("%s %s\n", word, entry.name.c_str());
        std::fflush(stdout);
        if (state().failed)
            failed.push_back(entry.name);
        else
            ++(state().skipped ? skipped : passed);
    }
    std::printf("[  PASSED  ] %d tests.\n", passed);
    if (skipped > 0) std::printf("[  SKIPPED ] %d tests.\n", skipped);
    if (!failed.empty()) std::printf("[  FAILED  ] %zu tests, listed below:\n", failed.size());
    for (const std::string& name : failed) std::printf("[  FAILED  ] %s\n", name.c_str());
    return failed.empty() ? 0 : 1;
}

}  // namespace testing::stand_in

int main(int count, char** words) {
    constexpr const char* kFilter = "--gtest_filter=";
    std::string filter;
    for (int i = 1; i < count; ++i)
        if (std::strncmp(words[i], kFilter, std::strlen(kFilter)) == 0)
            filter = words[i] + std::strlen(kFilter);
    return testing::stand_in::run_tests(filter);
}
