// gpu_operations: every operation on a GPU, checked and measured; one JSON object a line on stdout.
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
    "usage: gpu_operations describe|parity|bench [OPTION]...\n"
    "  --only=NAME     operations with this in their name\n"
    "  --small         the smallest sizes\n"
    "  --run-only      parity: run, compare nothing (for compute-sanitizer)\n"
    "  --unwritten     parity: results hold nothing before (for initcheck)\n"
    "  --seconds=S     bench: no operation is begun after so many\n";

struct Words {
    std::string command, only;
    bool small = false, run_only = false, unwritten = false;
    double seconds = 120;
};

Words read(int count, char** list) {
    if (count < 2) throw Error(ExitCode::usage, kUsage);
    Words words;
    words.command = list[1];
    for (int i = 2; i < count; ++i) {
        const std::string word = list[i];
        if (word.rfind("--only=", 0) == 0)
            words.only = word.substr(7);
        else if (word.rfind("--seconds=", 0) == 0)
            words.seconds = std::atof(word.c_str() + 10);
        else if (word == "--small")
            words.small = true;
        else if (word == "--run-only")
            words.run_only = true;
        else if (word == "--unwritten")
            words.unwritten = true;
        else
            throw Error(ExitCode::usage, fmt::format("unknown: {}\n{}", word, kUsage));
    }
    return words;
}

int run(const Words& words) {
    const backend::Gpus gpus = backend::find_gpus();
    if (gpus.count == 0) throw Error(ExitCode::bad_deck, fmt::format("no GPU here: {}", gpus.why_none));
    const auto gpu = backend::make_cuda(0);
    const std::size_t copied = words.small ? 1 << 16 : std::size_t{1} << 30;
    if (words.command == "describe") {
        gpu_check::describe_gpu(*gpu, gpu_check::roofs_of(*gpu, copied));
        return 0;
    }
    if (words.command == "parity")
        return gpu_check::check_parity(*gpu, {.only = words.only,
                                              .small = words.small,
                                              .compare = !words.run_only,
                                              .poison = !words.unwritten}) > 0;
    if (words.command == "bench")
        return gpu_check::measure(*gpu, gpu_check::roofs_of(*gpu, copied),
                                  {.only = words.only, .small = words.small, .seconds = words.seconds}) > 0;
    throw Error(ExitCode::usage, fmt::format("unknown: {}\n{}", words.command, kUsage));
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
