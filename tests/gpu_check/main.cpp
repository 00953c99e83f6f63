// gpu_operations: checks and measures every operation on a GPU. Prints one JSON object per line.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "backend/gpus.hpp"
#include "bench.hpp"
#include "parity.hpp"

namespace {

using namespace maestro;

constexpr const char* kUsage =
    "usage: gpu_operations describe|parity|cudnn|bench [OPTION]...\n"
    "  --only=NAME     only operations whose name contains NAME\n"
    "  --small         the smallest sizes\n"
    "  --run-only      parity: run without comparing (for compute-sanitizer)\n"
    "  --uninitialized parity: results are not initialized (for initcheck)\n"
    "  --seconds=S     bench: no operation starts after S seconds\n";

struct Arguments {
    std::string command, only;
    bool small = false, run_only = false, uninitialized = false;
    double seconds = 120;
};

Arguments read(int count, char** list) {
    if (count < 2) throw Error(ExitCode::usage, kUsage);
    Arguments arguments;
    arguments.command = list[1];
    for (int i = 2; i < count; ++i) {
        const std::string word = list[i];
        if (word.rfind("--only=", 0) == 0)
            arguments.only = word.substr(7);
        else if (word.rfind("--seconds=", 0) == 0)
            arguments.seconds = std::atof(word.c_str() + 10);
        else if (word == "--small")
            arguments.small = true;
        else if (word == "--run-only")
            arguments.run_only = true;
        else if (word == "--uninitialized")
            arguments.uninitialized = true;
        else
            throw Error(ExitCode::usage, fmt::format("unknown: {}\n{}", word, kUsage));
    }
    return arguments;
}

int run(const Arguments& arguments) {
    const backend::Gpus gpus = backend::find_gpus();
    if (gpus.count == 0) throw Error(ExitCode::bad_deck, fmt::format("no GPU here: {}", gpus.why_none));
    const auto gpu = backend::make_cuda(0);
    const std::size_t copied = arguments.small ? 1 << 16 : std::size_t{1} << 30;
    if (arguments.command == "describe") {
        gpu_check::describe_gpu(*gpu, gpu_check::peaks_of(*gpu, copied));
        return 0;
    }
    if (arguments.command == "parity")
        return gpu_check::check_parity(*gpu, {.only = arguments.only,
                                              .small = arguments.small,
                                              .compare = !arguments.run_only,
                                              .poison = !arguments.uninitialized}) > 0;
    if (arguments.command == "cudnn") return gpu_check::check_cudnn(*gpu, arguments.small) > 0;
    if (arguments.command == "bench")
        return gpu_check::measure(
                   *gpu, gpu_check::peaks_of(*gpu, copied),
                   {.only = arguments.only, .small = arguments.small, .seconds = arguments.seconds}) > 0;
    throw Error(ExitCode::usage, fmt::format("unknown: {}\n{}", arguments.command, kUsage));
}

}  // namespace

int main(int count, char** list) {
    try {
        return run(read(count, list));
    } catch (const Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return static_cast<int>(error.code());
    }
}
