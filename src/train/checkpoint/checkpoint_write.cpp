#include "train/checkpoint/checkpoint_write.hpp"

#include <fmt/format.h>

#include "io/file_writer.hpp"
#include "storage/file.hpp"

namespace maestro::train {

namespace {

/// Returns the elements of a chunk as the file stores them. Frozen weights of a bf16 run are kept in that
/// type alone; they are converted in `converted`, which is reused.
const float* as_floats(const backend::DeviceToHostReader::Chunk& chunk, DType type,
                       std::vector<float>& converted) {
    if (type == DType::f32) return static_cast<const float*>(chunk.data);
    const auto* values = static_cast<const bf16*>(chunk.data);
    converted.resize(static_cast<std::size_t>(chunk.end - chunk.begin));
    for (std::size_t i = 0; i < converted.size(); ++i) converted[i] = static_cast<float>(values[i]);
    return converted.data();
}

void write_shares(io::FileWriter& file, const CheckpointWrite::Output& work) {
    std::vector<float> converted;
    for (backend::DeviceToHostReader::Chunk chunk; work.values->next(chunk);) {
        const Share& share = work.source->shares[chunk.tensor];
        file.write(work.source->places[chunk.tensor], share.parameter->shape, share.parameter->shard,
                   {share.range.begin + chunk.begin, share.range.begin + chunk.end},
                   as_floats(chunk, share.values.dtype, converted));
    }
}

void read_shares_back(io::FileWriter& file, const SectionFiles::Output& output) {
    for (std::size_t i = 0; i < output.shares.size(); ++i) {
        const Share& share = output.shares[i];
        file.read_back(output.places[i], share.parameter->shape, share.parameter->shard, share.range);
    }
}

}  // namespace

void CheckpointWrite::run(Pulse& pulse) {
    if (!metrics.empty()) {
        // A checkpoint may not promise rows that a loss of power takes back.
        pulse.doing(fmt::format("syncing {}", metrics.string()));
        storage::sync(metrics);
        storage::sync(metrics.parent_path());
    }
    std::vector<io::FileWriter> writers;
    for (const Image& work : images) {
        writers.emplace_back(partial, work.image.file, pulse).write(work.image);
        writers.back().sync();
    }
    for (const Output& work : outputs) {
        writers.emplace_back(partial, io::file_of_section(work.source->stage.name), pulse);
        write_shares(writers.back(), work);
        writers.back().sync();
    }
    // Only now, because a rank may write to one file as the one who makes it and as one of its ranks. See
    // FileWriter: what has been read may not be written to.
    for (std::size_t i = 0; i < writers.size(); ++i) {
        io::FileWriter& file = writers[i];
        const bool image = i < images.size();
        if (image)
            file.read_back(images[i].image);
        else
            read_shares_back(file, *outputs[i - images.size()].source);
        file.verify();
        const std::size_t at = image ? images[i].file : outputs[i - images.size()].file;
        hashes[at] += file.hash();
        elements[at] += static_cast<std::uint64_t>(file.elements());
    }
}

}  // namespace maestro::train
