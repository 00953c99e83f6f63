#include "backend/cuda/cudnn_graph.hpp"

#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the front end calls the library through this handle
}

namespace maestro::backend {

namespace fe = cudnn_frontend::graph;
using cudnn_frontend::DataType_t;
using Node = std::shared_ptr<fe::Tensor_attributes>;

namespace {

constexpr std::size_t kMinVersion =
    91800;  ///< the first whose backward is deterministic on architecture 100, too

/// The path of a library at build time, or its file name, which the loader searches for, if that is gone.
std::string library_path(const std::filesystem::path& built_with) {
    return std::filesystem::exists(built_with) ? built_with.string() : built_with.filename().string();
}

/// Describes the tensors of one attention class to a graph.
class GraphTensors {
public:
    GraphTensors(Graph& graph, const AttentionClass& c) : graph_(graph), c_(c) {}

    /// Ragged offsets: where each sequence begins in an array. Null for padded sequences.
    Node offsets(AttentionArray which) {
        if (c_.padded) return nullptr;
        return graph_.tensor(list(which, c_.sequences + 1).set_data_type(DataType_t::INT64));
    }
    Node lengths(AttentionArray which) {
        return graph_.tensor(list(which, c_.sequences).set_data_type(DataType_t::INT32));
    }
    /// A tensor [T, heads, dim] in rows of `width` elements.
    Node rows(AttentionArray which, std::int64_t heads, std::int64_t width, const Node& offsets) {
        const Node node = graph_.tensor(fe::Tensor_attributes());
        describe(node, which, heads, width, offsets);
        return node;
    }
    Node statistics(const Node& offsets) {
        const Node node = graph_.tensor(fe::Tensor_attributes());
        describe_statistics(node, offsets);
        return node;
    }
    void describe(const Node& node, AttentionArray which, std::int64_t heads, std::int64_t width,
                  const Node& offsets) const {
        node->set_uid(uid_of(which))
            .set_dim({c_.sequences, heads, c_.max_seqlen, c_.dim})
            .set_stride({c_.max_seqlen * width, c_.dim, width, 1})
            .set_data_type(DataType_t::BFLOAT16);
        if (offsets) node->set_ragged_offset(offsets);
    }
    void describe_statistics(const Node& node, const Node& offsets) const {
        node->set_uid(uid_of(AttentionArray::lse))
            .set_dim({c_.sequences, c_.heads, c_.max_seqlen, 1})
            .set_data_type(DataType_t::FLOAT);
        if (offsets)
            node->set_stride({c_.max_seqlen * c_.heads, 1, c_.heads, 1}).set_ragged_offset(offsets);
        else
            node->set_stride({c_.max_seqlen * c_.heads, c_.max_seqlen, 1, 1});
    }

private:
    static fe::Tensor_attributes list(AttentionArray which, std::int64_t size) {
        return fe::Tensor_attributes()
            .set_uid(uid_of(which))
            .set_dim({size, 1, 1, 1})
            .set_stride({1, 1, 1, 1});
    }
    Graph& graph_;
    const AttentionClass& c_;
};

/// Attributes that forward and backward have in common.
template <class Attributes>
Attributes attributes_of(const AttentionClass& c, GraphTensors& d) {
    Attributes a;
    a.set_attn_scale(static_cast<float>(1 / std::sqrt(static_cast<double>(c.dim))))
        .set_padding_mask(true)
        .set_seq_len_q(d.lengths(AttentionArray::q_lengths))
        .set_seq_len_kv(d.lengths(AttentionArray::k_lengths));
    if (c.causal)
        a.set_diagonal_alignment(cudnn_frontend::DiagonalAlignment_t::TOP_LEFT)
            .set_diagonal_band_right_bound(0);
    return a;
}

struct Inputs {
    Inputs(const AttentionClass& c, GraphTensors& d)
        : q_offsets(d.offsets(AttentionArray::q_offsets)),
          k_offsets(d.offsets(AttentionArray::k_offsets)),
          lse_offsets(d.offsets(AttentionArray::lse_offsets)),
          q(d.rows(AttentionArray::q, c.heads, c.heads * c.dim, q_offsets)),
          k(d.rows(AttentionArray::k, c.kv_heads, c.kv_heads * c.dim, k_offsets)),
          values(d.rows(AttentionArray::values, c.kv_heads, c.value_width,
                        d.offsets(AttentionArray::value_offsets))) {}
    Node q_offsets, k_offsets, lse_offsets, q, k, values;
};

void describe_forward(Graph& graph, const AttentionClass& c, GraphTensors& d) {
    const Inputs in(c, d);
    const auto [out, lse] =
        graph.sdpa(in.q, in.k, in.values, attributes_of<fe::SDPA_attributes>(c, d).set_generate_stats(true));
    d.describe(out, AttentionArray::out, c.heads, c.heads * c.dim, in.q_offsets);
    d.describe_statistics(lse, in.lse_offsets);
    out->set_output(true);
    lse->set_output(true);
}

void describe_backward(Graph& graph, const AttentionClass& c, GraphTensors& d) {
    const Inputs in(c, d);
    const std::int64_t width = c.heads * c.dim;
    const Node out = d.rows(AttentionArray::out, c.heads, width, in.q_offsets),
               dout = d.rows(AttentionArray::dout, c.heads, width, in.q_offsets);
    const auto [dq, dk, dvalues] = graph.sdpa_backward(
        in.q, in.k, in.values, out, dout, d.statistics(in.lse_offsets),
        attributes_of<fe::SDPA_backward_attributes>(c, d).set_deterministic_algorithm(true));
    d.describe(dq, AttentionArray::dq, c.heads, width, in.q_offsets);
    d.describe(dk, AttentionArray::dk, c.kv_heads, c.kv_heads * c.dim, in.k_offsets);
    d.describe(dvalues, AttentionArray::dvalues, c.kv_heads, c.gradient_width,
               d.offsets(AttentionArray::dvalue_offsets));
    for (const Node& node : {dq, dk, dvalues}) node->set_output(true);
}

}  // namespace

std::shared_ptr<Graph> attention_graph(const AttentionClass& c, int architecture) {
    auto graph = std::make_shared<Graph>();
    graph->set_io_data_type(DataType_t::BFLOAT16)
        .set_intermediate_data_type(DataType_t::FLOAT)
        .set_compute_data_type(DataType_t::FLOAT)
        .set_sm_version(architecture);
    GraphTensors tensors(*graph, c);
    if (c.backward)
        describe_backward(*graph, c, tensors);
    else
        describe_forward(*graph, c, tensors);
    return graph;
}

std::size_t cudnn_version() {
    void*& library = cudnn_frontend::cudnn_dlhandle;
    if (!library) {
        // The front end loads the CUDA runtime from the library that this variable names.
        setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", library_path(MAESTRO_CUDART_LIBRARY).c_str(), 0);
        library = dlopen(library_path(MAESTRO_CUDNN_LIBRARY).c_str(), RTLD_NOW);
    }
    const std::size_t version = library ? cudnn_frontend::detail::get_backend_version() : 0;
    // The front end reads from the environment which backward passes do without the gradients of all scores.
    // The memory plan depends on it.
    if (version >= kLinearBackward)
        setenv("CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT", std::to_string(kMostScoreGradients).c_str(), 1);
    return version >= kMinVersion ? version : 0;
}

}  // namespace maestro::backend
