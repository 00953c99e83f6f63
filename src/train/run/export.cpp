#include "train/run/export.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

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
#include "train/run/export_adapter.hpp"
#include "train/run/exported_parameter.hpp"
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
    if (families::find_family(found.spec.family)->model_type.empty())
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

/// The element type of a tensor of the folder that the section started from, else bf16.
safetensors::StoredType type_of(safetensors::SafetensorsFolder& from, const std::string& tensor) {
    if (!from.has(tensor)) return safetensors::StoredType::bf16;
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
            for (const auto& [name, shape] : parameters_of(e.spec)) {
                const auto pieces = families::pieces_of(e.spec, name, shape),
                           before = pieces_in(from, e.spec, name, shape);
                sections_.back().parameters.push_back({name, shape, pieces, tensors_.size()});
                for (std::size_t i = 0; i < pieces.size(); ++i) {
                    const families::Piece& source = before[std::min(i, before.size() - 1)];
                    tensors_.push_back({pieces[i].tensor, type_of(from, source.tensor), pieces[i].shape});
                }
            }
        }
        // A folder of which one model was trained remains a whole folder.
        copied_ = tensors_.size();
        for (const auto& entry : from.entries()) {
            const auto other = [&](const ExportedSection& e) {
                return families::is_of_other_kind(e.spec, entry.tensor);
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
                for_blocks(whole(source.shape).size(), rank, ranks,
                           [&](Range block) { write_block(stored, source, delta, block, writer); });
            }
        }
        for (std::size_t t = copied_; t < tensors_.size(); ++t) {
            const auto found = from_.find(tensors_[t].name);
            for_blocks(found.tensor->elements, rank, ranks, [&](Range block) {
                pulse_.doing("copying " + tensors_[t].name);
                std::vector<float> values(static_cast<std::size_t>(block.size()));
                found.file->read(*found.tensor, block, values.data(), pulse_);
                const Extent extent{block.begin, 0, block.size()};
                writer.write(t, std::span(&extent, 1), values.data());
            });
        }
        writer.sync();
    }

private:
    struct Section {
        ExportedSection of;
        std::vector<ExportedParameter> parameters;
    };

    template <class Body>
    static void for_blocks(std::int64_t elements, int rank, int ranks, Body&& body) {
        constexpr std::int64_t kBlock = 1 << 22;  // elements, 16 MiB
        const Range part = part_of(elements, rank, ranks);
        for (std::int64_t at = part.begin; at < part.end; at += kBlock)
            body(Range{at, std::min(at + kBlock, part.end)});
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

void copy_companions(const fs::path& from, const fs::path& to) {
    for (const fs::directory_entry& entry : fs::directory_iterator(from))
        if (is_companion(entry.path().filename().string()) && entry.is_regular_file())
            fs::copy_file(entry.path(), to / entry.path().filename(), fs::copy_options::overwrite_existing);
}

}  // namespace

void run_export(const comm::Communicator& world, const config::CommandLine& line, Pulse& pulse,
                Interruption& interruption) {
    const std::string checkpoint = need_checkpoint(world, line.checkpoint, pulse);
    const Settings settings = io::read_train_state(checkpoint, pulse).settings;
    const std::vector<ExportedSection> sections = choose_sections(checkpoint, settings, line.section);
    if (line.adapter) return export_adapter(world, checkpoint, sections, line.to, pulse, interruption);
    const std::string& folder = sections.front().folder;
    if (!fs::exists(fs::path(folder) / "config.json"))
        throw Error(ExitCode::input_missing,
                    fmt::format("{}: the folder that section {} started from is missing; its config.json "
                                "and tokenizer belong to the export. Run from the directory of the training, "
                                "or put it back",
                                folder.empty() ? "\"\"" : folder, sections.front().section),
                    Scope::all_ranks);
    safetensors::SafetensorsFolder from(folder, pulse);
    Contents contents(checkpoint, sections, from, pulse);
    const safetensors::OutputLayout layout = safetensors::lay_out(contents.tensors());
    safetensors::SafetensorsWriter writer(line.to, layout, pulse);
    const Interruption::CleanUp clean_up(interruption, [&writer] { writer.discard(); });
    comm::agree(world, [&] {
        if (world.rank() == 0) writer.prepare();
    });
    comm::agree(world, [&] { contents.write(world.rank(), world.size(), writer); });
    interruption.let_finish(world);
    comm::agree(world, [&] {
        if (world.rank() != 0) return;
        copy_companions(folder, line.to);
        writer.publish();
        std::vector<std::string> names;
        for (const ExportedSection& e : sections) names.push_back(e.section);
        log::info(
            "{}: {} tensors of {} of {}{}", line.to, contents.tensors().size() - contents.copied(),
            fmt::join(names, " and "), checkpoint,
            contents.copied() > 0 ? fmt::format(", and {} of {}, unchanged", contents.copied(), folder) : "");
    });
}

}  // namespace maestro::train
