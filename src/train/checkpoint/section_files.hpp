// The section files of a run's checkpoints: who makes them, and which elements each rank writes where. Their
// form is the same in all checkpoints, so that the ranks exchange it once. A parameter that two stages hold
// copies of is written once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/pulse.hpp"
#include "comm/communicator.hpp"
#include "io/section_image.hpp"
#include "train/checkpoint/stage_shard.hpp"

namespace maestro::train {

class SectionFiles {
public:
    /// A file, as all ranks know it.
    struct File {
        std::string section;
        std::vector<io::StoredParameter> parameters;  ///< of all stages, in their order
        std::vector<io::ArrayPlaces> places;          ///< by parameter
        std::uint64_t bytes = 0;                      ///< its size
        std::uint64_t elements = 0;                   ///< of all arrays
        int maker = 0;                                ///< rank that makes it
    };
    /// What this rank writes of a file for one of its stages.
    struct Output {
        StageShard stage;
        std::vector<Share> shares;
        std::vector<std::uint64_t> places;  ///< by share: of its array
    };

    /// Collective over `world`, whose ranks together write the files of all `sections`. Parameters and
    /// optimizers of the shards outlive it.
    SectionFiles(const comm::Communicator& world, int sections, std::vector<StageShard> shards, Pulse& pulse);

    const std::vector<File>& files() const { return files_; }        ///< by section
    const std::vector<Output>& outputs() const { return outputs_; }  ///< of this rank
    /// The image of a file that this rank makes, in the checkpoint after `step`.
    struct Image {
        std::size_t file;  ///< section
        io::FileImage image;
    };
    std::vector<Image> images(std::int64_t step, Pulse& pulse) const;

private:
    int rank_;
    std::vector<File> files_;
    std::vector<Output> outputs_;
};

}  // namespace maestro::train
