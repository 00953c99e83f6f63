// The sizes of a model and the forms of its layers, as plain values.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "spec/mixer_form.hpp"
#include "spec/patch_order.hpp"

namespace maestro::model {

/// What a transformer layer consists of, where families of models differ. By default as in Qwen3.
struct LayerForm {
    enum class Norm { rms, layer } norm = Norm::rms;
    /// SwiGLU with three matrices, or two linear layers with GELU (tanh approximation) between them.
    enum class Mlp { swiglu, gelu } mlp = Mlp::swiglu;
    /// Which linear layers have a bias: none, the one of queries, keys and values, or all.
    enum class Bias { none, qkv, all } bias = Bias::none;
    bool head_norm = true;  ///< whether queries and keys are normalized by head
    /// Whether published weights have queries, keys and values in one matrix, which LoRA adapts as one.
    bool fused_qkv = false;
    bool operator==(const LayerForm&) const = default;
};

/// What stands before and after the layers of a vision model, where families differ. By default as in
/// Qwen2-VL, with less in the merger.
struct VisionForm {
    PatchOrder patches = PatchOrder::pixels;
    bool wide_merger = false;  ///< merge^2 * width channels within the merger, else the output width
    bool exact_gelu = false;   ///< in the merger, else the tanh approximation
    bool operator==(const VisionForm&) const = default;
};

/// The experts of a language model whose layers have several MLPs, of which a router chooses some for each
/// token (mixture of experts: Shazeer et al., ICLR 2017).
struct ExpertsSpec {
    enum class Router { softmax, sigmoid };
    /// What keeps the experts equally loaded: a term of the loss for each sample (the complementary
    /// sequence-wise balance loss of DeepSeek-V3), or a bias of the scores by which the router chooses, which
    /// each step moves by the loads of its samples (Wang et al., "Auxiliary-loss-free load balancing
    /// strategy for mixture-of-experts", 2024).
    enum class Balance { none, loss, bias };
    int count = 0;         ///< E; 0: the model has none
    int per_token = 0;     ///< k, those that a token is sent to
    int mlp = 0;           ///< hidden channels of one expert
    int shared_mlp = 0;    ///< hidden channels of an MLP for all tokens, with a separate gate; 0: none
    int dense_layers = 0;  ///< the first layers, which have the model's MLP instead
    Router router = Router::softmax;
    bool normalize = true;  ///< whether the weights of a token's experts are divided by their sum
    Balance balance = Balance::none;
    double balance_strength = 0;  ///< factor of the loss, or step of the bias

    /// Whether layer `layer` of the model has experts.
    bool in_layer(int layer) const { return count > 0 && layer >= dense_layers; }
    bool operator==(const ExpertsSpec&) const = default;
};

/// The sizes of a model, a plain copy of the deck's [model.NAME].
struct ModelSpec {
    enum class Kind { vision, language } kind = Kind::language;
    std::string name;
    std::string family = "maestro";
    LayerForm form = {};
    VisionForm vision_form = {};
    int layers = 1;
    int width = 64;
    std::vector<MixerForm> mixers = {AttentionForm{}};  ///< the distinct forms of its layers, at least one
    std::vector<int> mixer_of_layer = {};               ///< indices of `mixers`; empty: all have the first
    int mlp = 128;
    int vocabulary = 0;  ///< language models only
    double norm_eps = 1e-6;
    bool tie_embeddings = true;  ///< language models only
    ExpertsSpec experts = {};    ///< language models only
    int picture_token = -1;      ///< language models only: the token that stands for a picture; -1: any
    int patch = 0;               ///< vision models only, like merge and channels
    int merge = 1;
    int channels = 1;
    /// Vision models only: of a token in the language model; 0: the width of the section that it feeds.
    int output_width = 0;
    /// Vision models only: the side of the learned table of positions, which is interpolated to a picture's
    /// size; 0: none.
    int position_table = 0;
    /// Vision models only: the layers whose output also goes to the language model, by a merger each, and is
    /// added to the pictures' rows after its first layers ("DeepStack": Meng et al., 2024).
    std::vector<int> deepstack = {};

    /// Returns the index of the form of a layer's mixer.
    int mixer_index(int layer) const {
        return mixer_of_layer.empty() ? 0 : mixer_of_layer[static_cast<std::size_t>(layer)];
    }
    const MixerForm& mixer(int layer) const { return mixers[static_cast<std::size_t>(mixer_index(layer))]; }
    /// Returns the first layer that consists of the same as `layer`.
    int first_like(int layer) const {
        int first = 0;
        while (mixer_index(first) != mixer_index(layer) || experts.in_layer(first) != experts.in_layer(layer))
            ++first;
        return first;
    }
    /// Returns the KV heads, which layers with attention have in like number; 1 without such layers.
    int kv_heads() const;
    bool operator==(const ModelSpec&) const = default;
};

}  // namespace maestro::model
