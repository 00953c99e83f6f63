#include "train/checkpoint/block_walk.hpp"

#include <exception>
#include <vector>

namespace maestro::train {

namespace {

/// Reads the elements by several threads, each a part of them. Thread 0 reports progress. Throws the error of
/// the first part that has one.
void read_in_parts(Range elements, float* values, int threads, const ReadBlock& read, Pulse& pulse) {
    if (threads == 1) return read(elements, values, pulse);
    std::vector<std::exception_ptr> errors(static_cast<std::size_t>(threads));
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int i = 0; i < threads; ++i) {
        const Range part = part_of(elements.size(), i, threads);
        Pulse silent;
        try {
            if (part.size() > 0)
                read({elements.begin + part.begin, elements.begin + part.end}, values + part.begin,
                     i == 0 ? pulse : silent);
        } catch (...) {
            errors[static_cast<std::size_t>(i)] = std::current_exception();
        }
    }
    for (const std::exception_ptr& error : errors)
        if (error) std::rethrow_exception(error);
}

}  // namespace

void load_parameter(const parallel::Parameter& p, parallel::ParameterStore& store, int threads,
                    std::int64_t most, const ReadBlock& read, Pulse& pulse) {
    const parallel::ParameterGroup& group = store.group_of(p);
    store.mark_initialized(p);
    const bool in_place = p.type == DType::f32 && store.backend().shares_memory();
    std::vector<float> values;
    for_blocks(group.shard_of(p), most * threads, [&](Range block) {
        const int busy = static_cast<int>((block.size() + most - 1) / most);
        if (in_place) return read_in_parts(block, p.weight.as<float>() + block.begin, busy, read, pulse);
        values.resize(static_cast<std::size_t>(block.size()));
        read_in_parts(block, values.data(), busy, read, pulse);
        group.set_weights(p, block, Tensor(values.data(), DType::f32, {block.size()}));
    });
}

}  // namespace maestro::train
