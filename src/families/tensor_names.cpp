#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "base/check.hpp"
#include "families/family.hpp"

namespace maestro::families {

namespace {

/// How many rows of a parameter a tensor has.
enum class Rows { all, queries, keys, mlp, expert_mlp };

struct Part {
    std::string_view tensor;
    Rows rows = Rows::all;
};

struct Names {
    std::string_view parameter;  ///< after "layers.N." where it belongs to a layer
    std::array<Part, 3> parts;   ///< of each expert, if the parameter is of experts
    /// The tensor [experts, rows of each, columns] that may stand for those of all experts.
    std::string_view all_experts = {};
};

constexpr std::array<Names, 11> kOfLayer = {{
    {"attention.norm.weight", {{{"input_layernorm.weight"}}}},
    {"attention.qkv.weight",
     {{{"self_attn.q_proj.weight", Rows::queries},
       {"self_attn.k_proj.weight", Rows::keys},
       {"self_attn.v_proj.weight", Rows::keys}}}},
    {"attention.q_norm.weight", {{{"self_attn.q_norm.weight"}}}},
    {"attention.k_norm.weight", {{{"self_attn.k_norm.weight"}}}},
    {"attention.output.weight", {{{"self_attn.o_proj.weight"}}}},
    {"mlp.norm.weight", {{{"post_attention_layernorm.weight"}}}},
    {"mlp.gate_up.weight", {{{"mlp.gate_proj.weight", Rows::mlp}, {"mlp.up_proj.weight", Rows::mlp}}}},
    {"mlp.down.weight", {{{"mlp.down_proj.weight"}}}},
    {"mlp.router.weight", {{{"mlp.gate.weight"}}}},
    {"mlp.experts.gate_up.weight",
     {{{"gate_proj.weight", Rows::expert_mlp}, {"up_proj.weight", Rows::expert_mlp}}},
     "mlp.experts.gate_up_proj"},
    {"mlp.experts.down.weight", {{{"down_proj.weight"}}}, "mlp.experts.down_proj"},
}};

constexpr std::array<Names, 12> kOfVisionLayer = {{
    {"attention.norm.weight", {{{"norm1.weight"}}}},
    {"attention.norm.bias", {{{"norm1.bias"}}}},
    {"attention.qkv.weight", {{{"attn.qkv.weight"}}}},
    {"attention.qkv.bias", {{{"attn.qkv.bias"}}}},
    {"attention.output.weight", {{{"attn.proj.weight"}}}},
    {"attention.output.bias", {{{"attn.proj.bias"}}}},
    {"mlp.norm.weight", {{{"norm2.weight"}}}},
    {"mlp.norm.bias", {{{"norm2.bias"}}}},
    {"mlp.up.weight", {{{"mlp.linear_fc1.weight"}}}},
    {"mlp.up.bias", {{{"mlp.linear_fc1.bias"}}}},
    {"mlp.down.weight", {{{"mlp.linear_fc2.weight"}}}},
    {"mlp.down.bias", {{{"mlp.linear_fc2.bias"}}}},
}};
constexpr std::array<Names, 6> kOfMerger = {{
    {"norm.weight", {{{"norm.weight"}}}},
    {"norm.bias", {{{"norm.bias"}}}},
    {"merger.weight", {{{"linear_fc1.weight"}}}},
    {"merger.bias", {{{"linear_fc1.bias"}}}},
    {"projector.weight", {{{"linear_fc2.weight"}}}},
    {"projector.bias", {{{"linear_fc2.bias"}}}},
}};
constexpr std::array<Names, 2> kOfLanguage = {{
    {"embedding.weight", {{{"embed_tokens.weight"}}}},
    {"norm.weight", {{{"norm.weight"}}}},
}};
constexpr std::array<Names, 3> kOfVision = {{
    {"patch.weight", {{{"patch_embed.proj.weight"}}}},
    {"patch.bias", {{{"patch_embed.proj.bias"}}}},
    {"position.weight", {{{"pos_embed.weight"}}}},
}};
constexpr std::string_view kHead = "lm_head.weight";

/// Parameters with a common beginning, and the beginning of their tensors. With `numbered`, both go on with
/// the same number and a dot.
struct Group {
    std::string_view parameters, tensors;
    bool numbered = false;
    std::span<const Names> names;
};

const std::array<Group, 2> kLanguageGroups = {
    {{"layers.", "layers.", true, kOfLayer}, {"", "", false, kOfLanguage}}};
const std::array<Group, 4> kVisionGroups = {{{"layers.", "blocks.", true, kOfVisionLayer},
                                             {"deepstack.", "deepstack_merger_list.", true, kOfMerger},
                                             {"", "merger.", false, kOfMerger},
                                             {"", "", false, kOfVision}}};

std::int64_t rows_of(const model::ModelSpec& spec, Rows rows, std::int64_t all) {
    switch (rows) {
        case Rows::queries:
            return std::int64_t{spec.heads} * spec.head_dim;
        case Rows::keys:
            return std::int64_t{spec.kv_heads} * spec.head_dim;
        case Rows::mlp:
            return spec.mlp;
        case Rows::expert_mlp:
            return spec.experts.mlp;
        case Rows::all:
            break;
    }
    return all;
}

std::vector<std::int64_t> shape_of(const model::ModelSpec& spec, std::string_view parameter,
                                   std::vector<std::int64_t> shape, std::int64_t rows) {
    // A convolution in the folder, a linear layer over patches here.
    if (parameter == "patch.weight")
        return {shape[0], spec.channels, frames_of(spec.vision_form.patches), spec.patch, spec.patch};
    shape[0] = rows;
    return shape;
}

/// The forms of the experts of a layer, whose tensors begin with `layer`.
std::vector<std::vector<Piece>> expert_forms(const model::ModelSpec& spec, const Names& names,
                                             const std::string& layer,
                                             const std::vector<std::int64_t>& shape) {
    const std::int64_t experts = spec.experts.count, rows = shape[0] / experts;
    std::vector<Piece> each;
    for (std::int64_t e = 0; e < experts; ++e)
        for (const Part& part : names.parts)
            if (!part.tensor.empty())
                each.push_back({fmt::format("{}mlp.experts.{}.{}", layer, e, part.tensor),
                                {rows_of(spec, part.rows, rows), shape[1]}});
    return {std::move(each), {{fmt::format("{}{}", layer, names.all_experts), {experts, rows, shape[1]}}}};
}

}  // namespace

std::int64_t Piece::elements() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::vector<std::vector<Piece>> forms_of(const model::ModelSpec& spec, std::string_view parameter,
                                         const std::vector<std::int64_t>& shape) {
    const Family& family = *find_family(spec.family);
    const bool vision = spec.kind == model::ModelSpec::Kind::vision;
    const std::vector<Piece> head{{std::string(kHead), shape}};
    if (parameter == "head.weight") {
        if (spec.tie_embeddings) return forms_of(spec, "embedding.weight", shape);
        return {head};
    }
    const std::string_view all = vision ? family.vision_prefix : family.language_prefix;
    for (const Group& group : vision ? std::span<const Group>(kVisionGroups) : kLanguageGroups) {
        if (!parameter.starts_with(group.parameters)) continue;
        std::size_t begin = group.parameters.size();
        if (group.numbered) begin = parameter.find('.', begin) + 1;
        const std::string_view number =
            parameter.substr(group.parameters.size(), begin - group.parameters.size());
        for (const Names& names : group.names) {
            if (names.parameter != parameter.substr(begin)) continue;
            const std::string prefix = fmt::format("{}{}{}", all, group.tensors, number);
            if (!names.all_experts.empty()) return expert_forms(spec, names, prefix, shape);
            std::vector<Piece> pieces;
            for (const Part& part : names.parts)
                if (!part.tensor.empty())
                    pieces.push_back({fmt::format("{}{}", prefix, part.tensor),
                                      shape_of(spec, parameter, shape, rows_of(spec, part.rows, shape[0]))});
            if (parameter == "embedding.weight" && spec.tie_embeddings) return {std::move(pieces), head};
            return {std::move(pieces)};
        }
    }
    MAESTRO_FAIL("no tensor of family {} holds {}", spec.family, parameter);
}

std::vector<Piece> pieces_of(const model::ModelSpec& spec, std::string_view parameter,
                             const std::vector<std::int64_t>& shape) {
    return forms_of(spec, parameter, shape).front();
}

std::string_view lora_target_of(std::string_view layer) {
    for (const std::string_view target : kLoraTargets)
        if (layer.ends_with(target) && layer.size() > target.size() &&
            layer[layer.size() - target.size() - 1] == '.')
            return target;
    return {};
}

std::vector<Piece> adapter_pieces(const model::ModelSpec& spec, const Lora& lora, std::string_view parameter,
                                  const std::vector<std::int64_t>& shape) {
    constexpr std::string_view kWeight = ".weight";
    const std::size_t end = parameter.rfind(".lora_");
    MAESTRO_CHECK(end != std::string_view::npos, "{} is not of an adapter", parameter);
    const std::string_view matrix = parameter.substr(end);  // ".lora_A.weight"
    std::vector<Piece> pieces;
    for (const Piece& piece :
         pieces_of(spec, fmt::format("{}{}", parameter.substr(0, end), kWeight), shape)) {
        const std::string_view layer =
            std::string_view(piece.tensor).substr(0, piece.tensor.size() - kWeight.size());
        if (!lora.has(lora_target_of(layer))) continue;
        pieces.push_back({fmt::format("base_model.model.{}{}", layer, matrix),
                          {matrix.starts_with(".lora_A") ? lora.rank : piece.shape[0], shape[1]}});
    }
    return pieces;
}

std::vector<std::vector<Extent>> extents_by_piece(std::span<const Piece> pieces,
                                                  std::span<const Extent> extents) {
    std::vector<std::int64_t> begins{0};  // the first element of each piece in the parameter, and the end
    for (const Piece& piece : pieces) begins.push_back(begins.back() + piece.elements());
    std::vector<std::vector<Extent>> by_piece(pieces.size());
    for (const Extent& e : extents) {
        const auto after = std::upper_bound(begins.begin(), begins.end(), e.logical);
        auto piece = static_cast<std::size_t>(after - begins.begin()) - 1;
        for (std::int64_t at = e.logical; at < e.logical + e.count && piece < pieces.size(); ++piece) {
            const std::int64_t end = std::min(e.logical + e.count, begins[piece + 1]);
            if (at < end) by_piece[piece].push_back({at - begins[piece], e.local + at - e.logical, end - at});
            at = end;
        }
    }
    return by_piece;
}

TiedTensors tied_tensors(const model::ModelSpec& spec) {
    if (spec.kind != model::ModelSpec::Kind::language) return {};
    return {pieces_of(spec, "embedding.weight", {0}).front().tensor, std::string(kHead)};
}

bool is_of_other_kind(const model::ModelSpec& spec, std::string_view tensor) {
    const std::string_view vision = find_family(spec.family)->vision_prefix;
    if (vision.empty()) return false;
    return tensor.starts_with(vision) != (spec.kind == model::ModelSpec::Kind::vision);
}

bool is_ignored(std::string_view tensor) {
    // Heads that predict several tokens at once are not modelled, and frequencies follow from the
    // configuration.
    return tensor.starts_with("mtp.") || tensor.ends_with(".rotary_emb.inv_freq");
}

}  // namespace maestro::families
