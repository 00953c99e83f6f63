#include "spec/model_spec.hpp"

#include <variant>

namespace maestro::model {

int ModelSpec::kv_heads() const {
    for (const MixerForm& mixer : mixers)
        if (const auto* attention = std::get_if<AttentionForm>(&mixer)) return attention->kv_heads;
    return 1;
}

}  // namespace maestro::model
