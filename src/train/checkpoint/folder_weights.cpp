#include "train/checkpoint/folder_weights.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "backend/backend.hpp"
#include "families/family.hpp"
#include "model/module.hpp"
#include "model/teacher_head.hpp"
#include "safetensors/message.hpp"
#include "train/checkpoint/block_walk.hpp"

namespace maestro::train {

namespace {

/// Tools would untie unequal ones, each in its way.
void check_tied(safetensors::SafetensorsFolder& folder, const model::ModelSpec& spec, Pulse& pulse) {
    const families::TiedTensors names = families::tied_tensors(spec);
    if (!spec.tie_embeddings || !folder.has(names.embedding) || !folder.has(names.head)) return;
    const auto embedding = folder.find(names.embedding), head = folder.find(names.head);
    constexpr std::int64_t kBlock = 1 << 18;
    std::vector<float> one(kBlock), other(kBlock);
    bool equal = embedding.tensor->shape == head.tensor->shape;
    for (std::int64_t at = 0; equal && at < embedding.tensor->elements; at += kBlock) {
        const Range range{at, std::min(at + kBlock, embedding.tensor->elements)};
        embedding.file->read(*embedding.tensor, range, one.data(), pulse);
        head.file->read(*head.tensor, range, other.data(), pulse);
        equal = std::equal(one.begin(), one.begin() + range.size(), other.begin());
    }
    if (!equal)
        throw Error(ExitCode::bad_data,
                    fmt::format("{}: \"{}\" differs from \"{}\", which config.json ties to it; set "
                                "tie_word_embeddings to false there, or remove one of the two",
                                head.file->path().string(), names.head, names.embedding));
}

/// The tensor of the piece.
safetensors::SafetensorsFolder::Found find_piece(safetensors::SafetensorsFolder& folder,
                                                 const families::Piece& piece) {
    const auto found = folder.find(piece.tensor);
    found.file->check_type(*found.tensor);
    if (found.tensor->shape != piece.shape)
        throw Error(ExitCode::bad_data,
                    fmt::format("{}: tensor \"{}\" has the shape [{}], but by config.json [{}]; "
                                "the folder's files do not belong together",
                                found.file->path().string(), piece.tensor,
                                fmt::join(found.tensor->shape, ", "), fmt::join(piece.shape, ", ")));
    return found;
}

}  // namespace

std::vector<DeclaredParameter> parameters_of(const model::ModelSpec& spec, const Lora& lora) {
    const auto meta = backend::make_meta();
    model::Role role{};
    role.section = spec.name;
    if (!model::Units(spec).encodes()) role.loss_terms = {model::LossTerm{}};
    role.output_width = model::row_width({EdgeTensor::embeddings, spec}, spec.output_width);
    role.lora = lora;
    role.compute = DType::bf16;  // which shows what the model keeps precise
    const auto module = model::make_module(*meta, spec, role);
    std::vector<DeclaredParameter> all;
    for (const parallel::Parameter& p : module->parameters().parameters())
        all.push_back({p.name, p.shape,
                       p.type == DType::bf16 ? safetensors::StoredType::bf16 : safetensors::StoredType::f32});
    return all;
}

std::vector<families::Piece> pieces_in(safetensors::SafetensorsFolder& folder, const model::ModelSpec& spec,
                                       std::string_view parameter, const std::vector<std::int64_t>& shape) {
    using Form = std::vector<families::Piece>;
    const std::vector<Form> forms = families::forms_of(spec, parameter, shape);
    const auto is_here = [&](const Form& form) { return folder.has(form.front().tensor); };
    const auto fits = [&](const Form& form) {
        return is_here(form) && folder.find(form.front().tensor).tensor->shape == form.front().shape;
    };
    auto held = std::find_if(forms.begin(), forms.end(), fits);
    if (held == forms.end()) held = std::find_if(forms.begin(), forms.end(), is_here);
    return held == forms.end() ? forms.front() : *held;
}

void check_folder(const std::string& path, const model::ModelSpec& spec, Pulse& pulse) {
    safetensors::SafetensorsFolder folder(path, pulse);
    folder.open_all();
    std::set<std::string, std::less<>> used;
    for (const auto& [name, shape, type] : parameters_of(spec))
        for (const families::Piece& piece : pieces_in(folder, spec, name, shape)) {
            find_piece(folder, piece);
            used.insert(piece.tensor);
        }
    std::vector<std::string> others;
    for (const auto& entry : folder.entries())
        if (!used.contains(entry.tensor) && !families::is_ignored(entry.tensor) &&
            !families::is_of_other_model(spec, entry.tensor))
            others.push_back(entry.tensor);
    check_tied(folder, spec, pulse);
    if (spec.tie_embeddings) std::erase(others, families::tied_tensors(spec).head);
    if (!others.empty())
        throw Error(ExitCode::bad_data,
                    fmt::format("{}: tensor {}{} is not part of a model of family {} with this "
                                "config.json; use the folder of such a model",
                                path, safetensors::in_quotes(others.front()),
                                others.size() > 1 ? fmt::format(" and {} others", others.size() - 1) : "",
                                spec.family));
}

void load_from_tensors(const parallel::Parameter& p, parallel::ParameterStore& store,
                       const std::vector<families::Piece>& pieces,
                       const std::vector<safetensors::SafetensorsFolder::Found>& tensors, Pulse& pulse) {
    const auto read = [&](Range block, float* values, Pulse& of_thread) {
        std::vector<Extent> extents = extents_of(p.shape, p.shard, block);
        for (Extent& e : extents) e.local -= block.begin;
        const auto by_piece = families::extents_by_piece(pieces, extents);
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            if (by_piece[i].empty()) continue;
            of_thread.doing(
                fmt::format("reading {} of {}", pieces[i].tensor, tensors[i].file->path().string()));
            tensors[i].file->read(*tensors[i].tensor, by_piece[i], values, of_thread);
        }
    };
    std::int64_t together = 1;
    for (const families::Piece& piece : pieces) together = std::max(together, piece.together());
    // They stay in a core's cache until they are weights. Those of a transposed matrix lie apart in the file,
    // and each block reads what is between them.
    constexpr std::int64_t kLeast = 1 << 17, kMost = 1 << 22;
    constexpr int kMaxThreads = 8;
    load_parameter(p, store, std::min(store.backend().threads(), kMaxThreads),
                   std::clamp(together, kLeast, kMost), read, pulse);
}

void load_from_folder(safetensors::SafetensorsFolder& folder, const model::ModelSpec& spec,
                      const std::string& source, const parallel::Parameter& p,
                      parallel::ParameterStore& store, Pulse& pulse) {
    const std::vector<families::Piece> pieces = pieces_in(folder, spec, source, p.shape);
    std::vector<safetensors::SafetensorsFolder::Found> tensors;
    for (const families::Piece& piece : pieces) tensors.push_back(find_piece(folder, piece));
    load_from_tensors(p, store, pieces, tensors, pulse);
}

void load_folder(const std::string& path, const model::ModelSpec& spec, parallel::ParameterStore& store,
                 Pulse& pulse) {
    safetensors::SafetensorsFolder folder(path, pulse);
    // The head of a teacher comes from the teacher's folder.
    for (const parallel::Parameter& p : store.parameters())
        if (!model::is_teacher_head(p.name) && !parallel::is_adapter(p.name))
            load_from_folder(folder, spec, p.name, p, store, pulse);
}

}  // namespace maestro::train
