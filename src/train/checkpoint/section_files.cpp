#include "train/checkpoint/section_files.hpp"

#include <fmt/format.h>

#include <map>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "base/check.hpp"
#include "comm/agree.hpp"

namespace maestro::train {

namespace {

/// Index of the parameters of a file by their names. A parameter of two stages stands there once.
using Index = std::unordered_map<std::string, std::size_t>;

Index index_of(const SectionFiles::File& file) {
    Index index;
    for (std::size_t i = 0; i < file.parameters.size(); ++i) index.emplace(file.parameters[i].name, i);
    return index;
}

/// Returns the parameters of all shards, a line each: section, its name, stage, rank that makes the file or
/// -1, name, whether it has moments, dimensions. The first rank of each stage lists them.
std::string lines_of(const std::vector<StageShard>& shards, int rank) {
    std::string lines;
    for (const StageShard& shard : shards) {
        if (!shard.first) continue;
        for (const parallel::Parameter& p : shard.store.parameters())
            lines +=
                fmt::format("{} {} {} {} {} {:d} {}\n", shard.section, shard.name, shard.stage,
                            shard.makes_file() ? rank : -1, p.name, p.trainable, fmt::join(p.shape, " "));
    }
    return lines;
}

/// Collective. Returns the files without the places of arrays, the same on all ranks: no rank holds all
/// parameters of a section with several stages.
std::vector<SectionFiles::File> exchange(const comm::Communicator& world, int sections,
                                         const std::vector<StageShard>& shards) {
    std::string all = fmt::format("{}", fmt::join(world.gather(lines_of(shards, world.rank())), ""));
    world.broadcast(all);
    std::vector<SectionFiles::File> files(static_cast<std::size_t>(sections));
    std::vector<std::map<int, std::vector<io::StoredParameter>>> stages(files.size());
    std::istringstream text(all);
    for (std::string line; std::getline(text, line);) {
        std::istringstream words(line);
        std::size_t section = 0;
        int stage = 0, maker = -1;
        std::string name;
        io::StoredParameter p;
        words >> section >> name >> stage >> maker >> p.name >> p.moments;
        for (std::int64_t dimension = 0; words >> dimension;) p.shape.push_back(dimension);
        files[section].section = name;
        if (maker >= 0) files[section].maker = maker;
        stages[section][stage].push_back(std::move(p));
    }
    for (std::size_t s = 0; s < files.size(); ++s) {
        Index known;
        for (auto& [stage, parameters] : stages[s])
            for (io::StoredParameter& p : parameters) {
                if (!known.emplace(p.name, known.size()).second) continue;
                files[s].elements += static_cast<std::uint64_t>(whole(p.shape).size()) * (p.moments ? 3 : 1);
                files[s].parameters.push_back(std::move(p));
            }
    }
    return files;
}

}  // namespace

SectionFiles::SectionFiles(const comm::Communicator& world, int sections, std::vector<StageShard> shards,
                           Pulse& pulse)
    : rank_(world.rank()), files_(exchange(world, sections, shards)) {
    comm::agree(world, [&] {
        for (File& file : files_) {
            if (file.maker != rank_) continue;
            io::SectionImage described = io::describe_section(file.section, 0, file.parameters, pulse);
            file.places = std::move(described.places);
            file.bytes = described.image.bytes;
        }
    });
    for (File& file : files_) {
        world.broadcast(file.places, file.maker);
        world.broadcast(std::span(&file.bytes, 1), file.maker);
    }
    for (StageShard& shard : shards) {
        Output output{.stage = shard, .shares = shares_of(shard), .places = {}};
        const File& file = files_[static_cast<std::size_t>(shard.section)];
        const Index index = index_of(file);
        for (const Share& share : output.shares)
            output.places.push_back(
                file.places[index.at(share.parameter->name)][static_cast<std::size_t>(share.what)]);
        outputs_.push_back(std::move(output));
    }
}

std::vector<SectionFiles::Image> SectionFiles::images(std::int64_t step, Pulse& pulse) const {
    std::vector<Image> images;
    for (std::size_t s = 0; s < files_.size(); ++s) {
        const File& file = files_[s];
        if (file.maker != rank_) continue;
        io::SectionImage described = io::describe_section(file.section, step, file.parameters, pulse);
        MAESTRO_CHECK(described.image.bytes == file.bytes && described.places == file.places,
                      "{} has another form after step {}", described.image.file, step);
        images.push_back({s, std::move(described.image)});
    }
    return images;
}

}  // namespace maestro::train
