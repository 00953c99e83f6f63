// What one rank writes of one checkpoint. Needs neither MPI nor HDF5, so that a thread can do it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "backend/host_reader.hpp"
#include "base/pulse.hpp"
#include "io/file_image.hpp"
#include "train/checkpoint/section_files.hpp"

namespace maestro::train {

struct CheckpointWrite {
    using Image = SectionFiles::Image;  ///< `file` may also be that of train.h5
    struct Output {
        std::size_t file;                    ///< section
        const SectionFiles::Output* source;  ///< of the caller, who keeps it
        std::unique_ptr<backend::DeviceToHostReader> values;
    };

    std::filesystem::path partial;
    std::filesystem::path metrics;  ///< of which the checkpoint counts the rows; empty on all ranks but one
    std::vector<Image> images;      ///< of the files that this rank makes
    std::vector<Output> outputs;
    /// Of this rank's bytes of each file, those of the sections and then train.h5: their AdHash, and how many
    /// of them are elements of arrays.
    std::vector<std::uint64_t> hashes, elements;

    /// Writes, syncs, reads back and compares. Error(io_error).
    void run(Pulse& pulse);
};

}  // namespace maestro::train
