#include "bench.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "backend/device.hpp"
#include "json_line.hpp"
#include "types.hpp"

namespace maestro::gpu_check {

namespace {

/// Tensors that are much larger than the caches, and the GEMMs of a language section of 1B parameters.
const Sizes kRows{
    .rows = 16'384, .columns = 4096, .heads = 16, .kv_heads = 8, .head_columns = 128, .vocabulary = 32'768};
const Sizes kLossSizes{.rows = 4096, .vocabulary = 65'536};
const std::vector<Sizes> kGemmSizes{{.rows = 8192, .inputs = 2048, .outputs = 2048},
                                    {.rows = 8192, .inputs = 2048, .outputs = 16'384},
                                    {.rows = 8192, .inputs = 8192, .outputs = 2048},
                                    {.rows = 8192, .inputs = 8192, .outputs = 8192}};
const std::vector<Sizes> kAttentionSizes{{.rows = 8192, .heads = 16, .kv_heads = 8, .head_columns = 64},
                                         {.rows = 8192, .heads = 16, .kv_heads = 8, .head_columns = 128}};
const Sizes kSmall{.rows = 40,
                   .columns = 128,
                   .heads = 2,
                   .kv_heads = 1,
                   .head_columns = 64,
                   .vocabulary = 96,
                   .inputs = 64,
                   .outputs = 48};

std::vector<Sizes> sizes_of(const Operation& operation, bool small) {
    if (small) return {kSmall};
    if (operation.roof == kArithmetic)
        return operation.shape_kind == Operation::Shape::gemm ? kGemmSizes : kAttentionSizes;
    return {operation.shape_kind == Operation::Shape::loss ? kLossSizes : kRows};
}

/// The median time of a run, over groups of runs that take some milliseconds each.
double median_seconds(const std::function<void()>& run, Stream stream, bool small) {
    DeviceTimer timer(stream);
    for (int i = 0; i < (small ? 1 : 3); ++i) run();
    timer.start();
    run();
    const double once = std::max(timer.stop(), 1e-6);
    const int group = small ? 1 : static_cast<int>(std::clamp(4e-3 / once, 1.0, 50.0));
    std::vector<double> list(small ? 1 : 15);
    for (double& seconds : list) {
        timer.start();
        for (int i = 0; i < group; ++i) run();
        seconds = timer.stop() / group;
    }
    std::sort(list.begin(), list.end());
    return std::max(list[list.size() / 2], 1e-9);
}

void add_sizes(JsonLine& line, const Sizes& s) {
    const std::pair<const char*, std::int64_t> list[] = {{"rows", s.rows},
                                                         {"columns", s.columns},
                                                         {"heads", s.heads},
                                                         {"kv_heads", s.kv_heads},
                                                         {"head_columns", s.head_columns},
                                                         {"vocabulary", s.vocabulary},
                                                         {"inputs", s.inputs},
                                                         {"outputs", s.outputs}};
    for (const auto& [name, size] : list) line.add(name, static_cast<double>(size));
}

void measure_one(const Operation& operation, DType type, const Sizes& sizes, backend::Backend& gpu,
                 const Peaks& peaks, bool small) {
    JsonLine line("bench");
    line.add("operation", operation.name).add("dtype", name_of(type)).add("shape", operation.shape(sizes));
    add_sizes(line, sizes);
    const Cost cost =
        cost_of(operation, type, sizes, {gpu.threads(), gpu.shares_memory(), gpu.attention_support()});
    const std::size_t available =
        backend::free_memory({.gpu = true, .number = 0, .reason = {}, .gemm = {}}) / 10 * 9;
    if (cost.tensors + cost.scratch > available)
        return line
            .add("skipped", fmt::format("needs {} MiB, {} are free", (cost.tensors + cost.scratch) >> 20,
                                        available >> 20))
            .print();
    Workbench bench(gpu, cost.tensors, cost.scratch, true);
    const double seconds = median_seconds(operation.prepare(bench, type, sizes), gpu.stream(), small);
    const bool memory = operation.roof == kMemory;
    const double rate = (memory ? cost.bytes : cost.flops) / seconds;
    const double roof = memory ? peaks.copy_bytes : type == DType::bf16 ? peaks.bf16_flops : peaks.f32_flops;
    line.add("bound", memory ? "memory" : "arithmetic")
        .add("seconds", seconds)
        .add("bytes", cost.bytes)
        .add("flops", cost.flops)
        .add("rate", rate)
        .add("roof", roof)
        .add("share", roof > 0 ? rate / roof : NAN)
        .print();
}

}  // namespace

int measure(backend::Backend& gpu, const Peaks& peaks, const BenchOptions& options) {
    const auto begin = std::chrono::steady_clock::now();
    int left_out = 0;
    for (const Operation& operation : operations()) {
        if (operation.name.find(options.only) == std::string::npos) continue;
        for (const DType type : operation.types) {
            if (type == DType::f64) continue;  // f64 is for tests only
            for (const Sizes& sizes : sizes_of(operation, options.small)) {
                const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
                if (spent.count() > options.seconds)
                    ++left_out;
                else
                    measure_one(operation, type, sizes, gpu, peaks, options.small);
            }
        }
    }
    return left_out;
}

}  // namespace maestro::gpu_check
