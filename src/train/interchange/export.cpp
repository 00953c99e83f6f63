#include "train/interchange/export.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "base/checksum.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "comm/agree.hpp"
#include "families/family.hpp"
#include "io/checkpoint_reader.hpp"
#include "safetensors/safetensors_folder.hpp"
#include "safetensors/safetensors_writer.hpp"
#include "storage/file.hpp"
#include "train/checkpoint/block_walk.hpp"
#include "train/checkpoint/checkpoint_search.hpp"
#include "train/checkpoint/folder_weights.hpp"
#include "train/checkpoint/weights.hpp"
#include "train/interchange/export_adapter.hpp"
#include "train/interchange/exported_parameter.hpp"
#include "train/setup/answer_ends.hpp"
#include "workload/scenario.hpp"

namespace maestro::train {

namespace {

namespace fs = std::filesystem;
using Settings = std::map<std::string, std::string>;

std::string setting(const Settings& settings, const std::string& key) {
    const auto at = settings.find(key);
    return at == settings.end() ? std::string() : at->second;
}

/// The path in one form: with or without a slash at its end it names one folder.
std::string folder_named(const std::string& weights) {
    const std::string path = fs::path(weights).lexically_normal().string();
    return path.size() > 1 && path.ends_with('/') ? path.substr(0, path.size() - 1) : path;
}

ExportedSection describe(const Settings& settings, const std::string& section) {
    ExportedSection found{.section = section,
                          .folder = folder_named(setting(settings, "section." + section + ".weights")),
                          .spec = workload::spec_of(
                              config::model_of(settings, setting(settings, "section." + section + ".model"))),
                          .lora = config::lora_of(settings, section)};
    if (!families::find_family(found.spec.family)->has_folders())
        throw Error(ExitCode::bad_data,
                    fmt::format("section {}: a model of family {} has no form that other programs load; "
                                "export sections that started from a model folder",
                                section, found.spec.family),
                    Scope::all_ranks);
    return found;
}

/// Returns the sections to export: the one that was asked for, the only one, or all where they are the models
/// of one folder.
std::vector<ExportedSection> choose_sections(const std::string& checkpoint, const Settings& settings,
                                             const std::string& asked) {
    const std::vector<std::string> names = io::sections_of(checkpoint);
    if (std::find(names.begin(), names.end(), asked) != names.end()) return {describe(settings, asked)};
    std::vector<ExportedSection> all;
    std::set<std::pair<std::string, model::ModelSpec::Kind>> kinds;
    if (asked.empty())
        for (const std::string& name : names) {
            all.push_back(describe(settings, name));
            kinds.emplace(all.back().folder, all.back().spec.kind);
        }
    const bool one_folder = std::all_of(
        all.begin(), all.end(), [&](const ExportedSection& e) { return e.folder == all.front().folder; });
    if (!all.empty() && one_folder && kinds.size() == all.size()) return all;
    throw Error(ExitCode::usage,
                fmt::format("{}: {}; give --section, one of {}", checkpoint,
                            asked.empty() ? "has sections that are not parts of one model folder"
                                          : "has no section '" + asked + "'",
                            fmt::join(names, ", ")),
                Scope::all_ranks);
}

/// The element type of a tensor of the folder that the section started from, `otherwise` where it has none.
safetensors::StoredType type_of(safetensors::SafetensorsFolder& from, const std::string& tensor,
                                safetensors::StoredType otherwise = safetensors::StoredType::bf16) {
    if (!from.has(tensor)) return otherwise;
    const safetensors::StoredType type = from.find(tensor).tensor->type;
    return safetensors::is_writable(type) ? type : safetensors::StoredType::f32;
}

/// What an exported folder consists of, and the part of it that each rank writes.
class Contents {
public:
    Contents(const std::string& checkpoint, const std::vector<ExportedSection>& sections,
             safetensors::SafetensorsFolder& from, Pulse& pulse)
        : checkpoint_(checkpoint), from_(from), pulse_(pulse) {
        for (const ExportedSection& e : sections) {
            sections_.push_back({e, {}});
            for (const auto& [name, shape, type] : parameters_of(e.spec)) {
                const auto pieces = families::pieces_of(e.spec, name, shape),
                           before = pieces_in(from, e.spec, name, shape);
                sections_.back().parameters.push_back({name, shape, pieces, tensors_.size()});
                for (std::size_t i = 0; i < pieces.size(); ++i) {
                    const families::Piece& source = before[std::min(i, before.size() - 1)];
                    tensors_.push_back(
                        {pieces[i].tensor, type_of(from, source.tensor, type), pieces[i].shape});
                }
            }
        }
        // A folder of which one model was trained remains a whole folder.
        copied_ = tensors_.size();
        for (const auto& entry : from.entries()) {
            const auto other = [&](const ExportedSection& e) {
                return families::is_of_other_model(e.spec, entry.tensor);
            };
            if (!families::is_ignored(entry.tensor) && std::all_of(sections.begin(), sections.end(), other))
                tensors_.push_back(
                    {entry.tensor, type_of(from, entry.tensor), from.find(entry.tensor).tensor->shape});
        }
    }
    const std::vector<safetensors::TensorSpec>& tensors() const { return tensors_; }
    std::size_t copied() const { return tensors_.size() - copied_; }  ///< from the folder, unchanged

    /// Writes part `rank` of `ranks` of every tensor. The tensors of `writer` are those of tensors().
    void write(int rank, int ranks, safetensors::SafetensorsWriter& writer) {
        for (const Section& section : sections_) {
            const io::SectionReader stored(checkpoint_, section.of.section, pulse_);
            for (const ExportedParameter& source : section.parameters) {
                const AdapterDelta delta(stored, section.of.spec, section.of.lora, source.name, source.shape);
                for_part(whole(source.shape).size(), source.pieces.front().together(), rank, ranks,
                         [&](Range block) { write_block(stored, source, delta, block, writer); });
            }
        }
        for (std::size_t t = copied_; t < tensors_.size(); ++t) {
            const auto found = from_.find(tensors_[t].name);
            for_part(found.tensor->elements, 1, rank, ranks, [&](Range block) {
                pulse_.doing("copying " + tensors_[t].name);
                std::vector<float> values(static_cast<std::size_t>(block.size()));
                found.file->read(*found.tensor, block, values.data(), pulse_);
                const Extent extent{block.begin, 0, block.size()};
                writer.write(t, std::span(&extent, 1), values.data());
            });
        }
    }

private:
    struct Section {
        ExportedSection of;
        std::vector<ExportedParameter> parameters;
    };

    /// Calls body(block) for the blocks of this rank's part, which begin at multiples of `unit`.
    template <class Body>
    static void for_part(std::int64_t elements, std::int64_t unit, int rank, int ranks, Body&& body) {
        const Range part = part_of(elements / unit, rank, ranks);
        for_blocks({part.begin * unit, part.end * unit},
                   std::max(kCheckpointBlock / unit, std::int64_t{1}) * unit, body);
    }
    void write_block(const io::SectionReader& stored, const ExportedParameter& source,
                     const AdapterDelta& delta, Range block, safetensors::SafetensorsWriter& writer) {
        const Shard all = whole(source.shape);
        pulse_.doing("exporting " + source.name);
        std::vector<float> values = stored.read(source.name, source.shape, io::Stored::weight, all, block);
        delta.add_to(block, values.data());
        source.write(block, values.data(), writer);
    }

    std::string checkpoint_;
    safetensors::SafetensorsFolder& from_;
    Pulse& pulse_;
    std::vector<Section> sections_;
    std::vector<safetensors::TensorSpec> tensors_;
    std::size_t copied_;  ///< the first tensor that comes from the folder
};

/// Files of the folder that tools need beside the weights.
bool is_companion(const std::string& name) {
    for (const char* exact : {"config.json", "generation_config.json", "vocab.json", "merges.txt",
                              "special_tokens_map.json", "added_tokens.json"})
        if (name == exact) return true;
    return name.starts_with("tokenizer") || name.starts_with("chat_template") ||
           name.ends_with("processor_config.json");
}

/// Copies the files, and writes into generation_config.json with which tokens the answers end that were
/// trained. Returns a line for the log about these, or nothing.
std::string copy_companions(const fs::path& from, const fs::path& to, const AnswerEnds& trained,
                            Pulse& pulse) {
    for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
        const fs::path name = entry.path().filename();
        if (!is_companion(name.string()) || !entry.is_regular_file()) continue;
        pulse.doing("copying " + name.string());
        storage::write_text_durably(to / name, storage::read_text(entry.path()));
    }
    if (!trained)
        return "the checkpoint does not record which tokens end the answers that were trained; "
               "eos_token_id is that of the folder";
    const std::vector<std::int32_t> missing = missing_ends(from, trained, pulse);
    if (missing.empty()) return "";
    storage::write_text_durably(to / kGenerationConfig, generation_config(from, missing, pulse));
    return fmt::format("{}: eos_token_id also names {}, the ends of the answers that were trained",
                       (to / kGenerationConfig).string(), fmt::join(missing, ", "));
}

/// Ranks that see other files would write other bytes.
void check_same_layout(const comm::Communicator& world, const safetensors::OutputLayout& layout,
                       const std::string& folder) {
    Checksum checksum;
    for (const auto& file : layout.files) checksum.add(file.header.data(), file.header.size());
    const auto all = world.allgather(checksum.value());
    if (std::count(all.begin(), all.end(), all.front()) != static_cast<std::ptrdiff_t>(all.size()))
        throw Error(ExitCode::io_error,
                    fmt::format("{}: ranks see different files there; wait until the network file system "
                                "shows the same to all nodes, then run again",
                                folder),
                    Scope::all_ranks);
}

}  // namespace

void run_export(const comm::Communicator& world, const config::CommandLine& line, Pulse& pulse,
                Interruption& interruption) {
    const std::string checkpoint = need_checkpoint(world, line.checkpoint, pulse);
    io::TrainState state;
    std::vector<ExportedSection> sections;
    comm::agree(world, [&] {
        state = io::read_train_state(checkpoint, pulse);
        sections = choose_sections(checkpoint, state.settings, line.section);
    });
    if (line.adapter)
        return export_adapter(world, checkpoint, sections, state.ends, line.to, pulse, interruption);
    const std::string& folder = sections.front().folder;
    std::optional<safetensors::SafetensorsFolder> from;
    std::optional<Contents> contents;
    comm::agree(world, [&] {
        if (!safetensors::has_file(fs::path(folder) / "config.json"))
            throw Error(ExitCode::input_missing,
                        fmt::format("{}: the folder that section {} started from is missing; its config.json "
                                    "and tokenizer belong to the export. Run from the directory of the "
                                    "training, or put it back",
                                    folder.empty() ? "\"\"" : folder, sections.front().section));
        from.emplace(folder, pulse);
        contents.emplace(checkpoint, sections, *from, pulse);
    });
    const safetensors::OutputLayout layout = safetensors::lay_out(contents->tensors());
    check_same_layout(world, layout, folder);
    safetensors::SafetensorsWriter writer(line.to, layout, pulse);
    const Interruption::CleanUp clean_up(interruption, [&writer] { writer.discard(); });
    write_in_parts(world, writer, [&] { contents->write(world.rank(), world.size(), writer); });
    interruption.let_finish(world);
    comm::agree(world, [&] {
        if (world.rank() != 0) return;
        const std::string ends = copy_companions(folder, line.to, state.ends, pulse);
        writer.publish();
        std::vector<std::string> names;
        for (const ExportedSection& e : sections) names.push_back(e.section);
        log::info("{}: {} tensors of {} of {}{}", line.to, contents->tensors().size() - contents->copied(),
                  fmt::join(names, " and "), checkpoint,
                  contents->copied() > 0
                      ? fmt::format(", and {} of {}, unchanged", contents->copied(), folder)
                      : "");
        if (!ends.empty()) log::info("{}", ends);
    });
}

}  // namespace maestro::train
