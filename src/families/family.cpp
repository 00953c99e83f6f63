#include "families/family.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "families/json_text.hpp"
#include "model/kind.hpp"

namespace maestro::families {

namespace {

using model::ModelSpec;

constexpr std::array<FolderModel, 2> kMaestroModels = {
    {{.kind = ModelSpec::Kind::language, .experts = FolderModel::Experts::possible},
     {.kind = ModelSpec::Kind::vision}}};
/// This program's models, by default in the form of Qwen3.
constexpr Family kMaestro{.name = "maestro", .models = kMaestroModels};

constexpr std::array kFamilies = {&kMaestro, &kLlama,    &kMistral, &kQwen2,
                                  &kQwen3,   &kQwen3Moe, &kQwen3Vl, &kQwen3VlMoe};

}  // namespace

std::span<const Family* const> families() {
    return kFamilies;
}

const Family* find_family(std::string_view name) {
    const auto* const found =
        std::find_if(kFamilies.begin(), kFamilies.end(), [&](const Family* f) { return f->name == name; });
    return found == kFamilies.end() ? nullptr : *found;
}

const FolderModel* Family::find(ModelSpec::Kind kind) const {
    const auto found =
        std::find_if(models.begin(), models.end(), [&](const FolderModel& m) { return m.kind == kind; });
    return found == models.end() ? nullptr : &*found;
}

ModelKeys read_config(std::string_view text, const std::string& path, std::string_view kind) {
    // config.json as transformers 4 and 5 write it.
    const ConfigObject config(parse_object(text, path), path);
    const std::string type = config.text("model_type", "");
    if (type.empty()) config.refuse("model_type", "is missing; name the folder of a whole model");
    const Family* const family = find_family(type);
    if (!family || !family->has_folders()) {
        std::vector<std::string_view> allowed;
        for (const Family* const each : kFamilies)
            if (each->has_folders()) allowed.push_back(each->name);
        config.refuse("model_type",
                      fmt::format("'{}' is not built; allowed: {}", type, fmt::join(allowed, ", ")));
    }
    const model::ModelKind* const asked = model::find_kind(kind);
    const FolderModel* found = asked ? family->find(asked->kind) : nullptr;
    if (!found) found = &family->models.front();
    ModelKeys keys;
    keys["family"] = family->name;
    keys["kind"] = model::kind_of(found->kind).word;
    found->read(config, keys);
    return keys;
}

}  // namespace maestro::families
