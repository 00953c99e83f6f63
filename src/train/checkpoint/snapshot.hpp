// A copy of what a checkpoint holds of this rank, taken between two steps and written while the next ones
// change the original.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "backend/host_reader.hpp"
#include "train/checkpoint/section_files.hpp"

namespace maestro::train {

/// Owns memory of the host. Frozen weights do not change: where the host can read them in place they are not
/// copied, and from a device with separate memory once.
class Snapshot {
public:
    /// Allocates the memory and touches it, so that the first copy is as fast as later ones. The outputs
    /// outlive it. Throws Error(device_memory).
    explicit Snapshot(const std::vector<SectionFiles::Output>& outputs);
    /// Copies the shares as the operations called so far leave them, and waits for that. Nothing may read the
    /// last copy any more. Returns whether all trained weights are finite, which it looks at in passing.
    bool copy(Pulse& pulse);
    /// Returns a reader of the copies of a output's shares, for any thread.
    std::unique_ptr<backend::DeviceToHostReader> read(std::size_t output) const;
    std::size_t bytes() const { return bytes_; }

private:
    struct Copy {
        std::vector<Tensor> values;  ///< by share of the output: copies, or what stays in place
        std::vector<std::size_t> repeated, single;  ///< shares that are copied every time, and once
    };
    bool copy_shares(std::size_t output, const std::vector<std::size_t>& shares, Pulse& pulse);

    const std::vector<SectionFiles::Output>& outputs_;
    std::size_t bytes_ = 0;
    std::unique_ptr<std::byte[]> memory_;
    std::vector<Copy> copies_;  ///< by output
    bool copied_ = false;       ///< the single ones
};

/// The tensors of a output's shares.
std::vector<Tensor> tensors_of(const SectionFiles::Output& output);

}  // namespace maestro::train
