// Families of published models: what their layers consist of, which keys of a deck follow from a folder's
// config.json, and which of its tensors hold which parameters. A further family is a further entry of the
// table in family.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/shard.hpp"
#include "model/module.hpp"

namespace maestro::families {

/// Values of the deck's [model.NAME] by key, as text.
using ModelKeys = std::map<std::string, std::string>;

/// Rows of a parameter and the tensor of a folder that consists of them. The pieces of a parameter cover its
/// rows in order.
struct Piece {
    std::string tensor;               ///< "model.layers.0.self_attn.q_proj.weight"
    std::vector<std::int64_t> shape;  ///< of the tensor
    std::int64_t elements() const;
    bool operator==(const Piece&) const = default;
};

struct Family {
    std::string_view name;        ///< model.NAME.family
    std::string_view model_type;  ///< in config.json; empty: this program's models, which have no folder
    model::LayerForm language, vision;
    model::VisionForm vision_form = {};
    std::string_view language_prefix = "model.", vision_prefix = {};  ///< of tensors; empty: no such model

    bool has_vision() const { return model_type.empty() || !vision_prefix.empty(); }
};

/// Null where there is none of this name.
const Family* find_family(std::string_view name);

/// Returns the keys that the text of FOLDER/config.json determines; `path` is named in errors. Where the
/// folder has models of several kinds, they are those of the model of `kind`, "language" or "vision". Throws
/// Error(bad_data, all_ranks) for a model that is not built, and for values that are missing or of the wrong
/// type.
ModelKeys read_config(std::string_view text, const std::string& path, std::string_view kind);

/// Returns the tensors that hold a parameter of this shape, of a model of a family with folders, in each form
/// that a folder may have. The first is that of published models, in which folders are written. In others a
/// tied embedding has the name of the head, or one tensor of transformers 5 has all experts of a layer:
/// "model.layers.0.mlp.experts.gate_up_proj" [E, 2I, C] for gate_proj and up_proj of E experts. Throws
/// Error(broken_invariant) for an unknown parameter.
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
/// Divides elements of a parameter among its pieces, of which a layer with experts has hundreds. Returns, by
/// piece, extents whose `logical` counts the elements of the piece's tensor; `local` remains as it is.
std::vector<std::vector<Extent>> extents_by_piece(std::span<const Piece> pieces,
                                                  std::span<const Extent> extents);
/// The tensors of the embedding and of the output head, of a language model; empty otherwise. Of a tied pair
/// a folder has the first, the second, or equal ones.
struct TiedTensors {
    std::string embedding, head;
};
TiedTensors tied_tensors(const model::ModelSpec& spec);
/// Whether this tensor belongs to the folder's model of the other kind.
bool is_of_other_kind(const model::ModelSpec& spec, std::string_view tensor);
/// Whether a model loads without this tensor of its folder, which holds nothing that it computes with.
bool is_ignored(std::string_view tensor);

}  // namespace maestro::families
