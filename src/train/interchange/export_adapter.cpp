#include "train/interchange/export_adapter.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string_view>

#include "base/error.hpp"
#include "base/log.hpp"
#include "comm/agree.hpp"
#include "families/family.hpp"
#include "safetensors/input_file.hpp"
#include "safetensors/safetensors_writer.hpp"
#include "storage/file.hpp"
#include "train/checkpoint/adapter_folder.hpp"
#include "train/checkpoint/block_walk.hpp"
#include "train/checkpoint/folder_weights.hpp"
#include "train/interchange/exported_parameter.hpp"

namespace maestro::train {

namespace {

constexpr std::string_view kWeight = ".weight";

/// The adapters of all sections, which PEFT describes together.
Lora together(const std::string& checkpoint, const std::vector<ExportedSection>& sections) {
    Lora all;
    const ExportedSection* first = nullptr;
    for (const ExportedSection& section : sections) {
        if (!section.lora.enabled()) continue;
        if (first && (section.lora.rank != all.rank || section.lora.alpha != all.alpha))
            throw Error(ExitCode::usage,
                        fmt::format("{}: sections {} and {} have adapters of unlike rank or alpha, and one "
                                    "folder holds one of each; give --section",
                                    checkpoint, first->section, section.section),
                        Scope::all_ranks);
        if (!first) first = &section;
        all.rank = section.lora.rank;
        all.alpha = section.lora.alpha;
        all.targets.insert(all.targets.end(), section.lora.targets.begin(), section.lora.targets.end());
    }
    if (!first)
        throw Error(ExitCode::usage,
                    fmt::format("{}: section {} has no adapter; leave --adapter out", checkpoint,
                                sections.front().section),
                    Scope::all_ranks);
    return all;
}

/// A parameter of an adapter, and the section that it is stored in.
struct Source {
    std::size_t section;
    ExportedParameter parameter;
};

}  // namespace

AdapterDelta::AdapterDelta(const io::SectionReader& stored, const model::ModelSpec& spec, const Lora& lora,
                           const std::string& parameter, const std::vector<std::int64_t>& shape) {
    if (!lora.enabled() || !parameter.ends_with(kWeight)) return;
    const std::string prefix = parameter.substr(0, parameter.size() - kWeight.size());
    if (!stored.has(prefix + ".lora_A.weight")) return;
    scale_ = lora.scale();
    rank_ = lora.rank;
    columns_ = shape[1];
    std::int64_t row = 0, of_a = 0, of_b = 0;
    for (const families::Piece& piece : families::pieces_of(spec, parameter, shape)) {
        const std::string_view layer =
            std::string_view(piece.tensor).substr(0, piece.tensor.size() - kWeight.size());
        if (lora.has(families::lora_target_of(layer))) {
            matrices_.push_back({{row, row + piece.shape[0]}, of_a, of_b});
            of_a += rank_;
            of_b += piece.shape[0];
        }
        row += piece.shape[0];
    }
    const auto read = [&](const char* matrix, std::vector<std::int64_t> of_shape) {
        return stored.read(prefix + matrix, of_shape, io::Stored::weight, whole(of_shape));
    };
    a_ = read(".lora_A.weight", {of_a, columns_});
    b_ = read(".lora_B.weight", {of_b, rank_});
}

void AdapterDelta::add_to(Range block, float* values) const {
    std::vector<double> sums(static_cast<std::size_t>(columns_));
    for (const Matrix& matrix : matrices_) {
        const std::int64_t first = std::max(matrix.rows.begin, block.begin / columns_),
                           end = std::min(matrix.rows.end, (block.end + columns_ - 1) / columns_);
        for (std::int64_t row = first; row < end; ++row) {
            std::fill(sums.begin(), sums.end(), 0.0);
            const float* const b = b_.data() + (matrix.first_of_b + row - matrix.rows.begin) * rank_;
            for (std::int64_t r = 0; r < rank_; ++r) {
                const double factor = scale_ * static_cast<double>(b[r]);
                const float* const a = a_.data() + (matrix.first_of_a + r) * columns_;
                for (std::int64_t c = 0; c < columns_; ++c)
                    sums[static_cast<std::size_t>(c)] += factor * static_cast<double>(a[c]);
            }
            const Range held{std::max(row * columns_, block.begin),
                             std::min((row + 1) * columns_, block.end)};
            for (std::int64_t at = held.begin; at < held.end; ++at) {
                float& value = values[at - block.begin];
                value = static_cast<float>(static_cast<double>(value) +
                                           sums[static_cast<std::size_t>(at - row * columns_)]);
            }
        }
    }
}

void export_adapter(const comm::Communicator& world, const std::string& checkpoint,
                    const std::vector<ExportedSection>& sections, const AnswerEnds& ends,
                    const std::string& folder, Pulse& pulse, Interruption& interruption) {
    const Lora lora = together(checkpoint, sections);
    std::vector<Source> sources;
    std::vector<safetensors::TensorSpec> tensors;
    for (std::size_t s = 0; s < sections.size(); ++s)
        for (const auto& [name, shape, type] : parameters_of(sections[s].spec, sections[s].lora)) {
            if (!parallel::is_adapter(name)) continue;
            const auto pieces = families::adapter_pieces(sections[s].spec, sections[s].lora, name, shape);
            sources.push_back({s, {name, shape, pieces, tensors.size()}});
            for (const families::Piece& piece : pieces)
                tensors.push_back({piece.tensor, safetensors::StoredType::f32, piece.shape});
        }
    // PEFT loads one file.
    safetensors::OutputLayout layout =
        safetensors::lay_out(std::move(tensors), std::numeric_limits<std::uint64_t>::max());
    layout.files.front().name = kAdapterWeights;
    safetensors::SafetensorsWriter writer(folder, layout, pulse);
    const Interruption::CleanUp clean_up(interruption, [&writer] { writer.discard(); });
    write_in_parts(world, writer, [&] {
        std::vector<io::SectionReader> stored;
        for (const ExportedSection& section : sections)
            stored.emplace_back(checkpoint, section.section, pulse);
        for (const Source& source : sources) {
            const auto& [name, shape, pieces, first_tensor] = source.parameter;
            const Shard all = whole(shape);
            const Range part = part_of(all.size(), world.rank(), world.size());
            pulse.doing("exporting " + name);
            for_blocks(part, kCheckpointBlock, [&](Range block) {
                const std::vector<float> values =
                    stored[source.section].read(name, shape, io::Stored::weight, all, block);
                source.parameter.write(block, values.data(), writer);
            });
        }
    });
    interruption.let_finish(world);
    comm::agree(world, [&] {
        if (world.rank() != 0) return;
        const std::filesystem::path at(folder);
        // Where the section did not start from a model folder, PEFT is told of the model when it loads.
        const std::filesystem::path model(sections.front().folder);
        const bool has_model = safetensors::has_file(model / "config.json");
        storage::write_text_durably(
            at / kAdapterConfig,
            adapter_config(lora,
                           has_model ? std::filesystem::absolute(model).lexically_normal().string() : ""));
        writer.publish();
        log::info("{}: adapter of {} tensors, rank {}", folder, layout.tensors.size(), lora.rank);
        const auto missing = has_model ? missing_ends(model, ends, pulse) : ends.value_or(std::vector<int>());
        if (!missing.empty())
            log::info(
                "the answers that were trained end with token {}, which is no eos_token_id of {}; give it to "
                "the program that generates",
                fmt::join(missing, ", "), has_model ? model.string() : "the model");
    });
}

}  // namespace maestro::train
