#include "train/run/export.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text_file.hpp"
#include "comm/agree.hpp"
#include "families/family.hpp"
#include "io/checkpoint_reader.hpp"
#include "safetensors/safetensors_folder.hpp"
#include "safetensors/safetensors_writer.hpp"
#include "train/checkpoint/checkpoint_search.hpp"
#include "train/checkpoint/folder_weights.hpp"
#include "train/checkpoint/weights.hpp"
#include "workload/scenario.hpp"

namespace maestro::train {

namespace {

namespace fs = std::filesystem;
using Settings = std::map<std::string, std::string>;

std::string setting(const Settings& settings, const std::string& key) {
    const auto at = settings.find(key);
    return at == settings.end() ? std::string() : at->second;
}

/// The section to export: the one that was asked for, or the only one.
std::string choose_section(const std::string& checkpoint, const std::string& asked) {
    const std::vector<std::string> names = io::sections_of(checkpoint);
    if (std::find(names.begin(), names.end(), asked) != names.end()) return asked;
    if (asked.empty() && names.size() == 1) return names.front();
    throw Error(ExitCode::usage,
                fmt::format("{}: {}; give --section, one of {}", checkpoint,
                            asked.empty() ? "has several sections" : "has no section '" + asked + "'",
                            fmt::join(names, ", ")),
                Scope::all_ranks);
}

/// A parameter of the model, and the tensors that its rows become.
struct Source {
    std::string name;
    std::vector<std::int64_t> shape;
    std::vector<families::Piece> pieces;
    std::size_t first_tensor;  ///< of the layout: that of the first piece
};

/// Element types as in the folder that the section started from, else bf16.
safetensors::StoredType type_of(safetensors::SafetensorsFolder& from, const std::string& tensor) {
    if (!from.has(tensor)) return safetensors::StoredType::bf16;
    const safetensors::StoredType type = from.find(tensor).tensor->type;
    return safetensors::is_writable(type) ? type : safetensors::StoredType::f32;
}

/// This rank's part of every parameter, from the checkpoint to the files.
void write_part(const comm::Communicator& world, const io::SectionReader& stored,
                const std::vector<Source>& sources, safetensors::SafetensorsWriter& writer, Pulse& pulse) {
    constexpr std::int64_t kBlock = 1 << 22;  // elements, 16 MiB
    for (const Source& source : sources) {
        const Shard all = whole(source.shape);
        const Range part = part_of(all.size(), world.rank(), world.size());
        for (std::int64_t at = part.begin; at < part.end; at += kBlock) {
            const Range block{at, std::min(at + kBlock, part.end)};
            pulse.doing("exporting " + source.name);
            const std::vector<float> values =
                stored.read(source.name, source.shape, io::Stored::weight, all, block);
            const Extent extent{block.begin, 0, block.size()};
            const auto by_piece =
                families::extents_by_piece(source.pieces, all.columns.size(), std::span(&extent, 1));
            for (std::size_t i = 0; i < by_piece.size(); ++i)
                if (!by_piece[i].empty()) writer.write(source.first_tensor + i, by_piece[i], values.data());
        }
    }
    writer.sync();
}

/// Files of the folder that tools need beside the weights.
bool is_companion(const std::string& name) {
    for (const char* exact : {"config.json", "generation_config.json", "vocab.json", "merges.txt",
                              "special_tokens_map.json", "added_tokens.json"})
        if (name == exact) return true;
    return name.starts_with("tokenizer") || name.starts_with("chat_template") ||
           name.ends_with("processor_config.json");
}

void copy_companions(const fs::path& from, const fs::path& to) {
    for (const fs::directory_entry& entry : fs::directory_iterator(from))
        if (is_companion(entry.path().filename().string()) && entry.is_regular_file())
            fs::copy_file(entry.path(), to / entry.path().filename(), fs::copy_options::overwrite_existing);
}

}  // namespace

void run_export(const comm::Communicator& world, const config::CommandLine& line, Pulse& pulse) {
    const std::string checkpoint = need_checkpoint(world, line.checkpoint, pulse);
    const Settings settings = io::read_train_state(checkpoint, pulse).settings;
    const std::string section = choose_section(checkpoint, line.section);
    const std::string model = setting(settings, "section." + section + ".model"),
                      weights = setting(settings, "section." + section + ".weights");
    const model::ModelSpec spec = workload::spec_of(config::model_of(settings, model));
    if (families::find_family(spec.family)->model_type.empty())
        throw Error(ExitCode::bad_data,
                    fmt::format("section {}: a model of family {} has no form that other programs load; "
                                "export sections that started from a model folder",
                                section, spec.family),
                    Scope::all_ranks);

    if (!fs::exists(fs::path(weights) / "config.json"))
        throw Error(ExitCode::input_missing,
                    fmt::format("{}: the folder that section {} started from is missing; its config.json "
                                "and tokenizer belong to the export. Run from the directory of the training, "
                                "or put it back",
                                weights.empty() ? "\"\"" : weights, section),
                    Scope::all_ranks);
    safetensors::SafetensorsFolder from(weights, pulse);
    std::vector<Source> sources;
    std::vector<safetensors::TensorSpec> tensors;
    for (const auto& [name, shape] : parameters_of(spec)) {
        Source source{name, shape, families::pieces_of(spec, name, shape[0]), tensors.size()};
        for (const families::Piece& piece : source.pieces) {
            std::vector<std::int64_t> piece_shape = shape;
            piece_shape[0] = piece.rows;
            tensors.push_back({piece.tensor, type_of(from, piece.tensor), piece_shape});
        }
        sources.push_back(std::move(source));
    }
    const safetensors::OutputLayout layout = safetensors::lay_out(std::move(tensors));
    safetensors::SafetensorsWriter writer(line.to, layout, pulse);
    comm::agree(world, [&] {
        if (world.rank() == 0) writer.prepare();
    });
    comm::agree(world, [&] {
        write_part(world, io::SectionReader(checkpoint, section, pulse), sources, writer, pulse);
    });
    comm::agree(world, [&] {
        if (world.rank() != 0) return;
        copy_companions(weights, line.to);
        writer.publish();
        log::info("{}: {} tensors of section {} of {}", line.to, layout.tensors.size(), section, checkpoint);
    });
}

}  // namespace maestro::train
