// Families of published models: which models a folder has, what their layers consist of, which keys of a deck
// follow from its config.json, and which of its tensors hold which parameters. Each family is an object, in a
// file of its name, and an entry of the table in family.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "families/config_object.hpp"
#include "families/piece.hpp"
#include "families/tensor_names.hpp"
#include "model/module.hpp"

namespace maestro::families {

/// Values of the deck's [model.NAME] by key, as text.
using ModelKeys = std::map<std::string, std::string>;

/// A model of a family's folders.
struct FolderModel {
    model::ModelSpec::Kind kind = model::ModelSpec::Kind::language;
    std::string_view prefix = {};  ///< of its tensors
    model::LayerForm layer = {};
    model::VisionForm vision = {};
    /// Whether its layers have experts.
    enum class Experts { never, always, possible } experts = Experts::never;
    std::span<const TensorGroup> tensors = {};
    /// Adds the keys that a config.json determines, whose root is `config`. Throws Error(bad_data, all_ranks)
    /// for a model that the program does not compute, and for values that are missing or of the wrong type.
    void (*read)(const ConfigObject& config, ModelKeys& keys) = nullptr;
};

struct Family {
    std::string_view name;                ///< model.NAME.family, and `model_type` in config.json
    std::span<const FolderModel> models;  ///< at most one of a kind, the language model first

    /// Null where it has no model of this kind.
    const FolderModel* find(model::ModelSpec::Kind kind) const;
    /// Whether other programs know its models, by folders.
    bool has_folders() const { return models.front().read != nullptr; }
};

// In files of these names.
extern const Family kLlama, kMistral, kQwen2, kQwen3, kQwen3Moe, kQwen3Vl, kQwen3VlMoe;

/// All of them: first this program's models, which have no folder.
std::span<const Family* const> families();
/// Null where there is none of this name.
const Family* find_family(std::string_view name);

/// Returns the keys that the text of FOLDER/config.json determines; `path` is named in errors. Where the
/// folder has no model of `kind` (ModelKind::word), they are those of its language model, with that kind.
/// Errors as FolderModel::read, and for a family that is not in the table.
ModelKeys read_config(std::string_view text, const std::string& path, std::string_view kind);

/// Returns the tensors that hold a parameter of this shape, of a model of a family with folders, in each form
/// that a folder may have. The first is that of published models, in which folders are written. In others a
/// tied embedding has the name of the head, or one tensor of transformers 5 has all experts of a layer:
/// "model.layers.0.mlp.experts.gate_up_proj" [E, 2I, C] for gate_proj and up_proj of E experts. Two forms may
/// have tensors of one name and unlike shapes. Throws Error(broken_invariant) for an unknown parameter.
std::vector<std::vector<Piece>> forms_of(const model::ModelSpec& spec, std::string_view parameter,
                                         const std::vector<std::int64_t>& shape);
/// The first of them.
std::vector<Piece> pieces_of(const model::ModelSpec& spec, std::string_view parameter,
                             const std::vector<std::int64_t>& shape);
/// The same of a parameter of an adapter (parallel/low_rank_adapter.hpp), as PEFT names the tensors of
/// adapter_model.safetensors: "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight".
std::vector<Piece> adapter_pieces(const model::ModelSpec& spec, const Lora& lora, std::string_view parameter,
                                  const std::vector<std::int64_t>& shape);
/// Returns which target of LoRA (kLoraTargets) a linear layer is, "q_proj" of
/// "model.layers.0.self_attn.q_proj", or an empty text.
std::string_view lora_target_of(std::string_view layer);
/// The tensors of the embedding and of the output head, of a language model; empty otherwise. Of a tied pair
/// a folder has the first, the second, or equal ones.
struct TiedTensors {
    std::string embedding, head;
};
TiedTensors tied_tensors(const model::ModelSpec& spec);
/// Whether this tensor belongs to another model of the folder.
bool is_of_other_model(const model::ModelSpec& spec, std::string_view tensor);
/// Whether a model loads without this tensor of its folder, which holds nothing that it computes with.
bool is_ignored(std::string_view tensor);

}  // namespace maestro::families
