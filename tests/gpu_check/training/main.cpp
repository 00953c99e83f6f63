// gpu_training: checks on GPUs what a training run needs beyond single operations. Prints one JSON object per
// line.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "backend/device.hpp"
#include "base/error.hpp"
#include "fmt/format.h"
#include "training/checks.hpp"

namespace {

using namespace maestro;

constexpr const char* kUsage =
    "usage: gpu_training collectives|queues|windows|step [OPTION]...\n"
    "  --small           small sizes\n"
    "  --seconds=S       deadline of what waits for other ranks or for a GPU\n"
    "  --missing-rank=N  collectives: rank N sits out, to test the deadline\n"
    "  --disturbance=X   step: X is added to a weight on the GPU, to test the comparison\n";

const std::map<std::string, std::function<int(const gpu_check::CheckOptions&)>> kChecks{
    {"collectives", gpu_check::check_collectives},
    {"queues", gpu_check::check_queues},
    {"windows", gpu_check::check_windows},
    {"step", gpu_check::check_step},
};

gpu_check::CheckOptions read(int count, char** list) {
    gpu_check::CheckOptions options;
    for (int i = 2; i < count; ++i) {
        const std::string word = list[i], value = word.substr(word.find('=') + 1);
        if (word == "--small")
            options.small = true;
        else if (word.rfind("--seconds=", 0) == 0)
            options.seconds = std::atof(value.c_str());
        else if (word.rfind("--missing-rank=", 0) == 0)
            options.missing_rank = std::atoi(value.c_str());
        else if (word.rfind("--disturbance=", 0) == 0)
            options.disturbance = std::atof(value.c_str());
        else
            throw Error(ExitCode::usage, fmt::format("unknown: {}\n{}", word, kUsage));
    }
    return options;
}

}  // namespace

int main(int count, char** list) {
    try {
        const auto check = count < 2 ? kChecks.end() : kChecks.find(list[1]);
        if (check == kChecks.end()) throw Error(ExitCode::usage, kUsage);
        backend::set_library_environment();
        return check->second(read(count, list)) > 0;
    } catch (const Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return static_cast<int>(error.code());
    }
}
