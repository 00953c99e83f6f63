#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.hpp"
#include "families/family.hpp"

namespace maestro::families {

namespace {

/// How many rows of a parameter a tensor has.
enum class Rows { all, queries, keys, mlp };

struct Part {
    std::string_view tensor;
    Rows rows = Rows::all;
};

struct Names {
    std::string_view parameter;  ///< after "layers.N." where it belongs to a layer
    std::array<Part, 3> parts;
};

constexpr std::array<Names, 8> kOfLayer = {{
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
}};

constexpr std::string_view kEmbedding = "model.embed_tokens.weight", kHead = "lm_head.weight";

std::int64_t rows_of(const model::ModelSpec& spec, Rows rows, std::int64_t all) {
    switch (rows) {
        case Rows::queries:
            return std::int64_t{spec.heads} * spec.head_dim;
        case Rows::keys:
            return std::int64_t{spec.kv_heads} * spec.head_dim;
        case Rows::mlp:
            return spec.mlp;
        case Rows::all:
            break;
    }
    return all;
}

}  // namespace

std::vector<Piece> pieces_of(const model::ModelSpec& spec, std::string_view parameter, std::int64_t rows) {
    if (parameter == "embedding.weight") return {{std::string(kEmbedding), rows}};
    if (parameter == "norm.weight") return {{"model.norm.weight", rows}};
    if (parameter == "head.weight") return {{std::string(spec.tie_embeddings ? kEmbedding : kHead), rows}};
    constexpr std::string_view kLayers = "layers.";
    if (parameter.starts_with(kLayers)) {
        const std::size_t end = parameter.find('.', kLayers.size());
        const std::string prefix = fmt::format("model.{}", parameter.substr(0, end + 1));
        const std::string_view suffix = parameter.substr(end + 1);
        for (const Names& names : kOfLayer) {
            if (names.parameter != suffix) continue;
            std::vector<Piece> pieces;
            for (const Part& part : names.parts)
                if (!part.tensor.empty())
                    pieces.push_back(
                        {fmt::format("{}{}", prefix, part.tensor), rows_of(spec, part.rows, rows)});
            return pieces;
        }
    }
    MAESTRO_FAIL("no tensor of family {} holds {}", spec.family, parameter);
}

std::vector<std::vector<Extent>> extents_by_piece(std::span<const Piece> pieces, std::int64_t columns,
                                                  std::span<const Extent> extents) {
    std::vector<std::vector<Extent>> by_piece;
    std::int64_t begin = 0;  // the first element of the piece in the parameter
    for (const Piece& piece : pieces) {
        const std::int64_t end = begin + piece.rows * columns;
        std::vector<Extent>& held = by_piece.emplace_back();
        for (const Extent& e : extents) {
            const std::int64_t from = std::max(e.logical, begin), to = std::min(e.logical + e.count, end);
            if (from < to) held.push_back({from - begin, e.local + from - e.logical, to - from});
        }
        begin = end;
    }
    return by_piece;
}

TiedTensors tied_tensors(const model::ModelSpec&) {
    return {std::string(kEmbedding), std::string(kHead)};
}

bool is_ignored(std::string_view tensor) {
    // Heads that predict several tokens at once are not modelled, and frequencies follow from the
    // configuration.
    return tensor.starts_with("mtp.") || tensor.ends_with(".rotary_emb.inv_freq");
}

}  // namespace maestro::families
