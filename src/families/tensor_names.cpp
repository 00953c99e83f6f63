#include "families/tensor_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <variant>

#include "base/check.hpp"
#include "families/family.hpp"

namespace maestro::families {

namespace {

constexpr std::string_view kHead = "lm_head.weight";

const FolderModel& model_of(const model::ModelSpec& spec) {
    return *find_family(spec.family)->find(spec.kind);
}

/// The attention of the layer of this number, "12.".
const model::AttentionForm& attention_of(const model::ModelSpec& spec, std::string_view number) {
    int layer = 0;
    std::from_chars(number.data(), number.data() + number.size(), layer);
    return std::get<model::AttentionForm>(spec.mixer(layer));
}

/// `number`: of the layer.
std::int64_t rows_of(const model::ModelSpec& spec, std::string_view number, Rows rows, std::int64_t all) {
    switch (rows) {
        case Rows::queries:
            return std::int64_t{attention_of(spec, number).heads} * attention_of(spec, number).head_dim;
        case Rows::keys:
            return std::int64_t{attention_of(spec, number).kv_heads} * attention_of(spec, number).head_dim;
        case Rows::mlp:
            return spec.mlp;
        case Rows::expert_mlp:
            return spec.experts.mlp;
        case Rows::all:
            break;
    }
    return all;
}

std::vector<std::int64_t> shape_of(const model::ModelSpec& spec, TensorForm form,
                                   std::vector<std::int64_t> shape, std::int64_t rows) {
    if (form == TensorForm::convolution)
        return {shape[0], spec.channels, frames_of(spec.vision_form.patches), spec.patch, spec.patch};
    shape[0] = rows;
    return shape;
}

/// The forms of the experts of a layer, whose tensors begin with `layer`.
std::vector<std::vector<Piece>> expert_forms(const model::ModelSpec& spec, const TensorNames& names,
                                             const std::string& layer,
                                             const std::vector<std::int64_t>& shape) {
    const std::int64_t experts = spec.experts.count, rows = shape[0] / experts;
    const std::string name = fmt::format("{}{}", layer, names.all_experts);
    const std::vector<Piece> all{{name, {experts, rows, shape[1]}}};
    if (names.form == TensorForm::transposed_experts)
        return {{{name, {experts, shape[1], rows}, transposed(experts, rows, shape[1])}}, all};
    std::vector<Piece> each;
    for (std::int64_t e = 0; e < experts; ++e)
        for (const TensorRows& held : names.tensors)
            if (!held.tensor.empty())
                each.push_back({fmt::format("{}mlp.experts.{}.{}", layer, e, held.tensor),
                                {rows_of(spec, {}, held.rows, rows), shape[1]}});
    return {std::move(each), all};
}

}  // namespace

std::vector<std::vector<Piece>> forms_of(const model::ModelSpec& spec, std::string_view parameter,
                                         const std::vector<std::int64_t>& shape) {
    const FolderModel& model = model_of(spec);
    const std::vector<Piece> head{{std::string(kHead), shape}};
    if (parameter == "head.weight") {
        if (spec.tie_embeddings) return forms_of(spec, "embedding.weight", shape);
        return {head};
    }
    for (const TensorGroup& group : model.tensors) {
        if (!parameter.starts_with(group.parameters)) continue;
        std::size_t begin = group.parameters.size();
        if (group.numbered) begin = parameter.find('.', begin) + 1;
        const std::string_view number =
            parameter.substr(group.parameters.size(), begin - group.parameters.size());
        const auto names = std::find_if(group.names.begin(), group.names.end(), [&](const TensorNames& each) {
            return each.parameter == parameter.substr(begin);
        });
        if (names == group.names.end()) continue;
        const std::string prefix = fmt::format("{}{}{}", model.prefix, group.tensors, number);
        if (names->form == TensorForm::experts || names->form == TensorForm::transposed_experts)
            return expert_forms(spec, *names, prefix, shape);
        std::vector<Piece> pieces;
        for (const TensorRows& held : names->tensors)
            if (!held.tensor.empty())
                pieces.push_back(
                    {fmt::format("{}{}", prefix, held.tensor),
                     shape_of(spec, names->form, shape, rows_of(spec, number, held.rows, shape[0]))});
        if (parameter == "embedding.weight" && spec.tie_embeddings) return {std::move(pieces), head};
        return {std::move(pieces)};
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

TiedTensors tied_tensors(const model::ModelSpec& spec) {
    if (model::Units(spec).encodes()) return {};
    return {pieces_of(spec, "embedding.weight", {0}).front().tensor, std::string(kHead)};
}

bool is_of_other_model(const model::ModelSpec& spec, std::string_view tensor) {
    const std::span<const FolderModel> models = find_family(spec.family)->models;
    // What has no prefix of another model belongs to the language model, as the head does.
    const auto owner = std::find_if(models.begin() + 1, models.end(),
                                    [&](const FolderModel& each) { return tensor.starts_with(each.prefix); });
    return (owner == models.end() ? models.begin() : owner)->kind != spec.kind;
}

bool is_ignored(std::string_view tensor) {
    // Heads that predict several tokens at once are not modelled, and frequencies follow from the
    // configuration.
    return tensor.starts_with("mtp.") || tensor.ends_with(".rotary_emb.inv_freq");
}

}  // namespace maestro::families
