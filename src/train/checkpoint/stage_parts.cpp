#include "train/checkpoint/stage_parts.hpp"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "backend/host_access.hpp"
#include "comm/agree.hpp"
#include "io/checkpoint_reader.hpp"
#include "io/section_writer.hpp"
#include "train/checkpoint/weights.hpp"

namespace maestro::train {

namespace {

/// Returns which of the elements of `p` held here this rank writes. Ranks that hold copies of an element
/// leave it to the first of them.
std::vector<Range> written_here(const StagePart& part, const parallel::Parameter& p) {
    const parallel::ParameterGroup& group = part.store.group_of(p);
    const Range range = group.shard_of(p);
    return range.size() > 0 ? group.first_copies(p, range) : std::vector<Range>{};
}

/// The parameters of a section's file. No rank holds all of them if the section has several stages.
class Catalogue {
public:
    /// Ignores a parameter of this name that was added before: a copy on another stage.
    void add(io::StoredParameter parameter) {
        if (index_.emplace(parameter.name, parameters_.size()).second)
            parameters_.push_back(std::move(parameter));
    }
    const std::vector<io::StoredParameter>& parameters() const { return parameters_; }
    std::size_t index_of(const std::string& name) const { return index_.at(name); }
    /// Returns the elements of all arrays.
    std::int64_t elements() const {
        std::int64_t count = 0;
        for (const io::StoredParameter& p : parameters_) count += whole(p.shape).size() * (p.moments ? 3 : 1);
        return count;
    }

private:
    std::vector<io::StoredParameter> parameters_;
    std::unordered_map<std::string, std::size_t> index_;  ///< by name
};

/// Collective. Returns the catalogue of each section, the same on all ranks.
std::vector<Catalogue> catalogues_of(const comm::Communicator& world, int sections,
                                     std::span<const StagePart> parts) {
    // A line for each parameter: section, stage, name, whether it has moments, dimensions.
    std::string lines;
    for (const StagePart& part : parts) {
        if (!part.first) continue;
        for (const parallel::Parameter& p : part.store.parameters())
            lines += fmt::format("{} {} {} {:d} {}\n", part.section, part.stage, p.name, p.trainable,
                                 fmt::join(p.shape, " "));
    }
    std::string all = fmt::format("{}", fmt::join(world.gather(lines), ""));
    world.broadcast(all);
    std::vector<std::map<int, std::vector<io::StoredParameter>>> stages(static_cast<std::size_t>(sections));
    std::istringstream text(all);
    for (std::string line; std::getline(text, line);) {
        std::istringstream words(line);
        int section = 0, stage = 0;
        io::StoredParameter p;
        words >> section >> stage >> p.name >> p.moments;
        for (std::int64_t dimension = 0; words >> dimension;) p.shape.push_back(dimension);
        stages[static_cast<std::size_t>(section)][stage].push_back(std::move(p));
    }
    std::vector<Catalogue> catalogues(stages.size());
    for (std::size_t s = 0; s < stages.size(); ++s)
        for (auto& [stage, parameters] : stages[s])
            for (io::StoredParameter& p : parameters) catalogues[s].add(std::move(p));
    return catalogues;
}

/// A range of an array that this rank writes.
struct Elements {
    const parallel::Parameter* parameter;
    std::uint64_t place;  ///< of the array in the file
    Range range;          ///< among the elements held here
    Tensor values;
};

std::vector<Elements> elements_written_here(const StagePart& part, const Catalogue& catalogue,
                                            const std::vector<io::ArrayPlaces>& places) {
    std::vector<Elements> elements;
    for (const parallel::Parameter& p : part.store.parameters()) {
        const io::ArrayPlaces& at = places[catalogue.index_of(p.name)];
        for (const Range& range : written_here(part, p)) {
            const auto write = [&](io::Stored what, const Tensor& values) {
                elements.push_back({&p, at[static_cast<std::size_t>(what)], range, values});
            };
            write(io::Stored::weight, part.store.group_of(p).shard_weights(p, range));
            if (!p.trainable) continue;
            const std::int64_t first = part.store.group_of(p).shard_of(p).begin;
            const auto moments = [&](const Tensor& all) {
                return all.slice(range.begin - first, range.end - first);
            };
            write(io::Stored::first, moments(part.optimizer->first_moments(p)));
            write(io::Stored::second, moments(part.optimizer->second_moments(p)));
        }
    }
    return elements;
}

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

/// Returns how many elements it wrote.
std::int64_t write_part(const StagePart& part, const std::filesystem::path& partial,
                        const Catalogue& catalogue, const std::vector<io::ArrayPlaces>& places,
                        Pulse& pulse) {
    io::SectionWriter file(partial, part.name, pulse);
    const std::vector<Elements> elements = elements_written_here(part, catalogue, places);
    std::vector<Tensor> tensors;
    for (const Elements& e : elements) tensors.push_back(e.values);
    const auto values = part.store.backend().read_to_host(std::move(tensors));
    std::vector<float> converted;
    for (backend::DeviceToHostReader::Chunk chunk; values->next(chunk);) {
        const Elements& e = elements[chunk.tensor];
        file.write(e.place, e.parameter->shape, e.parameter->shard,
                   {e.range.begin + chunk.begin, e.range.begin + chunk.end},
                   as_floats(chunk, e.values.dtype, converted));
    }
    file.sync();
    return file.elements();
}

}  // namespace

void check_finite(const StagePart& part, std::int64_t step) {
    if (!part.store.backend().shares_memory() &&
        (!part.optimizer || part.optimizer->all_finite(*part.scratch)))
        return;
    for (const parallel::Parameter& p : part.store.parameters()) {
        if (!p.trainable) continue;
        for (const Range& range : written_here(part, p)) {
            const backend::HostCopy copy(part.store.backend(),
                                         part.store.group_of(p).shard_weights(p, range));
            const float* weights = copy.tensor().as<float>();
            for (const Extent& extent : extents_of(p.shape, p.shard, range))
                for (std::int64_t i = 0; i < extent.count; ++i)
                    if (const float weight = weights[extent.local - range.begin + i]; !std::isfinite(weight))
                        throw Error(
                            ExitCode::not_finite,
                            fmt::format(
                                "section {}: element {} of {} is {} after step {}; this checkpoint is not "
                                "kept. Go on from the last one with a smaller optimizer.learning_rate",
                                part.name, extent.logical + i, p.name, weight, step));
        }
    }
}

std::vector<io::ManifestEntry> write_sections(const comm::Communicator& world,
                                              const std::filesystem::path& partial, std::int64_t step,
                                              int sections, std::span<const StagePart> parts, Pulse& pulse) {
    std::vector<io::SectionFile> files(static_cast<std::size_t>(sections));
    std::vector<std::int64_t> makers(files.size(), 0), elements(files.size(), 0);
    const std::vector<Catalogue> catalogues = catalogues_of(world, sections, parts);
    comm::agree(world, [&] {
        for (const StagePart& part : parts)
            if (part.makes_file()) {
                files[part.section] = io::create_section(partial, part.name, step,
                                                         catalogues[part.section].parameters(), pulse);
                makers[part.section] = world.rank();
            }
    });
    world.allreduce_sum(std::span(makers));
    for (std::size_t s = 0; s < files.size(); ++s)
        world.broadcast(files[s].places, static_cast<int>(makers[s]));
    comm::agree(world, [&] {
        for (const StagePart& part : parts)
            elements[part.section] +=
                write_part(part, partial, catalogues[part.section], files[part.section].places, pulse);
    });
    world.allreduce_sum(std::span(elements));
    std::vector<io::ManifestEntry> made;
    comm::agree(world, [&] {
        for (const StagePart& part : parts) {
            if (!part.makes_file()) continue;
            const std::int64_t due = catalogues[part.section].elements();
            MAESTRO_CHECK(elements[part.section] == due, "section {}: {} elements written of {}", part.name,
                          elements[part.section], due);
            made.push_back(io::verify_section(partial, part.name, files[part.section].bytes, pulse));
        }
    });
    return made;
}

void load_moments(const std::string& checkpoint, const std::string& section,
                  const parallel::ParameterStore& store, Optimizer& optimizer, Pulse& pulse) {
    const io::SectionReader stored(checkpoint, section_in(checkpoint, section), pulse);
    for (const parallel::Parameter& p : store.parameters()) {
        if (!p.trainable) continue;
        const Range shard = store.group_of(p).shard_of(p);
        if (shard.size() <= 0) continue;
        optimizer.set_moments(p, stored.read(p.name, p.shape, io::Stored::first, p.shard, shard),
                              stored.read(p.name, p.shape, io::Stored::second, p.shard, shard));
    }
}

}  // namespace maestro::train
