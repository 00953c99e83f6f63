#include "train/checkpoint/folder_weights.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "backend/backend.hpp"
#include "families/family.hpp"
#include "model/module.hpp"
#include "safetensors/message.hpp"

namespace maestro::train {

namespace {

/// The name of the tensor in this folder, which may have a tied head instead of the embedding.
std::string name_in(const safetensors::SafetensorsFolder& folder, const model::ModelSpec& spec,
                    const families::Piece& piece) {
    const auto [embedding, head] = families::tied_tensors(spec);
    const bool head_alone = spec.tie_embeddings && piece.tensor == embedding && !folder.has(embedding);
    return head_alone && folder.has(head) ? head : piece.tensor;
}

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
                                                 const model::ModelSpec& spec, const families::Piece& piece) {
    const auto found = folder.find(name_in(folder, spec, piece));
    found.file->check_type(*found.tensor);
    if (found.tensor->shape != piece.shape)
        throw Error(ExitCode::bad_data,
                    fmt::format("{}: tensor \"{}\" has the shape [{}], but by config.json [{}]; "
                                "the folder's files do not belong together",
                                found.file->path().string(), piece.tensor,
                                fmt::join(found.tensor->shape, ", "), fmt::join(piece.shape, ", ")));
    return found;
}

/// Reads the held elements `block` of a parameter.
void read_block(safetensors::SafetensorsFolder& folder, const model::ModelSpec& spec,
                const std::string& source, const parallel::Parameter& p, Range block, float* values,
                Pulse& pulse) {
    std::vector<Extent> extents = extents_of(p.shape, p.shard, block);
    for (Extent& e : extents) e.local -= block.begin;
    const std::vector<families::Piece> pieces = families::pieces_of(spec, source, p.shape);
    const auto by_piece = families::extents_by_piece(pieces, whole(p.shape).columns.size(), extents);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        if (by_piece[i].empty()) continue;
        const auto found = find_piece(folder, spec, pieces[i]);
        pulse.doing(fmt::format("reading {} of {}", pieces[i].tensor, folder.path().string()));
        found.file->read(*found.tensor, by_piece[i], values, pulse);
    }
}

}  // namespace

std::vector<std::pair<std::string, std::vector<std::int64_t>>> parameters_of(const model::ModelSpec& spec,
                                                                             const Lora& lora) {
    const auto meta = backend::make_meta();
    model::Role role{};
    role.section = spec.name;
    role.loss = spec.kind == model::ModelSpec::Kind::language;
    role.output_width = model::row_width({EdgeTensor::embeddings, spec}, spec.output_width);
    role.lora = lora;
    const auto module = model::make_module(*meta, spec, role);
    std::vector<std::pair<std::string, std::vector<std::int64_t>>> all;
    for (const parallel::Parameter& p : module->parameters().parameters()) all.emplace_back(p.name, p.shape);
    return all;
}

void check_folder(const std::string& path, const model::ModelSpec& spec, Pulse& pulse) {
    safetensors::SafetensorsFolder folder(path, pulse);
    folder.open_all();
    std::set<std::string, std::less<>> used;
    for (const auto& [name, shape] : parameters_of(spec))
        for (const families::Piece& piece : families::pieces_of(spec, name, shape)) {
            find_piece(folder, spec, piece);
            used.insert(name_in(folder, spec, piece));
        }
    std::vector<std::string> others;
    for (const auto& entry : folder.entries())
        if (!used.contains(entry.tensor) && !families::is_ignored(entry.tensor) &&
            !families::is_of_other_kind(spec, entry.tensor))
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

void load_parameter(const parallel::Parameter& p, parallel::ParameterStore& store, const ReadBlock& read) {
    // Elements, 2 MiB: what small allocations leave of larger blocks on the heap does not fit the next ones.
    constexpr std::int64_t kBlock = 1 << 19;
    const parallel::ParameterGroup& group = store.group_of(p);
    const Range held = group.shard_of(p);
    store.mark_initialized(p);
    std::vector<float> values;
    for (std::int64_t at = held.begin; at < held.end; at += kBlock) {
        const Range block{at, std::min(at + kBlock, held.end)};
        values.resize(static_cast<std::size_t>(block.size()));
        read(block, values.data());
        const auto set = [&](auto& list, DType type) {
            group.set_weights(p, block, Tensor(list.data(), type, {block.size()}));
        };
        if (store.compute() == DType::f64) {
            std::vector<double> wide(values.begin(), values.end());
            set(wide, DType::f64);
        } else {
            set(values, DType::f32);
        }
    }
}

void load_from_folder(safetensors::SafetensorsFolder& folder, const model::ModelSpec& spec,
                      const std::string& source, const parallel::Parameter& p,
                      parallel::ParameterStore& store, Pulse& pulse) {
    load_parameter(p, store, [&](Range block, float* values) {
        read_block(folder, spec, source, p, block, values, pulse);
    });
}

void load_folder(const std::string& path, const model::ModelSpec& spec, parallel::ParameterStore& store,
                 Pulse& pulse) {
    safetensors::SafetensorsFolder folder(path, pulse);
    // The head of a teacher comes from the teacher's folder.
    for (const parallel::Parameter& p : store.parameters())
        if (!p.name.starts_with("teacher_head") && !parallel::is_adapter(p.name))
            load_from_folder(folder, spec, p.name, p, store, pulse);
}

}  // namespace maestro::train
