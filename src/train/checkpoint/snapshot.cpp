#include "train/checkpoint/snapshot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "base/error.hpp"
#include "ops/dispatch.hpp"

namespace maestro::train {

namespace {

constexpr std::int64_t kBlock = 1 << 18;  ///< bytes that one thread copies at a time

/// Calls action(begin, bytes) for blocks of [0, size), on all threads of the rank.
template <class Action>
void by_blocks(std::int64_t size, Action&& action) {
    ops::parallel_for((size + kBlock - 1) / kBlock, kBlock, [&](std::int64_t i) {
        action(i * kBlock, static_cast<std::size_t>(std::min(kBlock, size - i * kBlock)));
    });
}

}  // namespace

std::vector<Tensor> tensors_of(const SectionFiles::Output& output) {
    std::vector<Tensor> tensors;
    for (const Share& share : output.shares) tensors.push_back(share.values);
    return tensors;
}

Snapshot::Snapshot(const std::vector<SectionFiles::Output>& outputs) : outputs_(outputs) {
    std::vector<Tensor*> targets;
    for (const SectionFiles::Output& output : outputs) {
        Copy& copy = copies_.emplace_back();
        copy.values = tensors_of(output);
        for (std::size_t i = 0; i < output.shares.size(); ++i) {
            const bool trained = output.shares[i].parameter->trainable;
            if (!trained && output.stage.store.backend().shares_memory()) continue;
            (trained ? copy.repeated : copy.single).push_back(i);
            targets.push_back(&copy.values[i]);
            bytes_ += copy.values[i].bytes();
        }
    }
    try {
        memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes_);
    } catch (const std::bad_alloc&) {
        throw Error(ExitCode::device_memory,
                    fmt::format("cannot allocate {} MiB of memory for the copy from which a checkpoint is "
                                "written",
                                bytes_ >> 20));
    }
    by_blocks(static_cast<std::int64_t>(bytes_),
              [&](std::int64_t at, std::size_t bytes) { std::memset(memory_.get() + at, 0, bytes); });
    std::byte* next = memory_.get();
    for (Tensor* target : targets) {
        target->data = next;
        next += target->bytes();
    }
}

bool Snapshot::copy(Pulse& pulse) {
    bool finite = true;
    for (std::size_t p = 0; p < copies_.size(); ++p) {
        finite &= copy_shares(p, copies_[p].repeated, pulse);
        if (!copied_) copy_shares(p, copies_[p].single, pulse);
    }
    copied_ = true;
    return finite;
}

/// Returns whether the trained weights among the shares are finite.
bool Snapshot::copy_shares(std::size_t output, const std::vector<std::size_t>& shares, Pulse& pulse) {
    const SectionFiles::Output& source = outputs_[output];
    std::vector<Tensor> originals;
    for (const std::size_t i : shares) originals.push_back(source.shares[i].values);
    std::atomic<bool> finite = true;
    const auto reader = source.stage.store.backend().read_to_host(originals);
    for (backend::DeviceToHostReader::Chunk chunk; reader->next(chunk); pulse.beat()) {
        const Share& share = source.shares[shares[chunk.tensor]];
        const Tensor& to = copies_[output].values[shares[chunk.tensor]];
        const auto element = static_cast<std::int64_t>(size_of(to.dtype));
        std::byte* const target = static_cast<std::byte*>(to.data) + chunk.begin * element;
        const bool checked = share.parameter->trainable && share.what == io::Stored::weight;
        by_blocks((chunk.end - chunk.begin) * element, [&](std::int64_t at, std::size_t bytes) {
            std::memcpy(target + at, static_cast<const std::byte*>(chunk.data) + at, bytes);
            // Reads the copy, which is in the cache.
            if (checked && !all_finite(reinterpret_cast<const float*>(target + at),
                                       static_cast<std::int64_t>(bytes / sizeof(float))))
                finite = false;
        });
    }
    return finite;
}

std::unique_ptr<backend::DeviceToHostReader> Snapshot::read(std::size_t output) const {
    return backend::read_in_place(copies_[output].values);
}

}  // namespace maestro::train
