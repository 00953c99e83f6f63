// Simulated execution of cuDNN graphs: computes attention by its definition, in double precision, when the
// stream reaches the graph. It relies only on the graph's description of its tensors and on their addresses,
// so that errors in the description show as wrong results.
#include <fmt/core.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>

#include "backend/cuda/cudnn_execution.hpp"
#include "base/check.hpp"
#include "base/dtype.hpp"
#include "cudnn/graphs.hpp"
#include "hosted/hosted.hpp"
#include "hosted/stop.hpp"
#include "support/plain_attention.hpp"

namespace {

using maestro::bf16;
using maestro::testing_support::Json;
using maestro::testing_support::Numbers;
using maestro::testing_support::PlainAttention;
using Pointers = std::unordered_map<std::int64_t, void*>;

std::int64_t integer(const void* data, const std::string& type, std::int64_t i) {
    if (type == "INT64") return static_cast<const std::int64_t*>(data)[i];
    if (type == "INT32") return static_cast<const std::int32_t*>(data)[i];
    hosted::stop("cuDNN: offsets or lengths of type " + type);
}

/// A tensor [sequences, heads, rows, elements] as the graph describes it, with its memory. Without ragged
/// offsets there are padding rows behind each sequence. They must be finite in inputs, and become NaN in
/// outputs, because cuDNN guarantees nothing about them.
class GraphTensor {
public:
    GraphTensor(const Json& graph, const Pointers& pointers, std::int64_t uid) {
        const Json& tensor = find(graph, uid);
        dim_ = tensor.at("dim").get<std::vector<std::int64_t>>();
        stride_ = tensor.at("stride").get<std::vector<std::int64_t>>();
        type_ = tensor.at("data_type").get<std::string>();
        data_ = pointers.at(uid);
        if (tensor.contains("ragged_offset_uid")) {
            const auto offsets = tensor.at("ragged_offset_uid").get<std::int64_t>();
            const Json& list = find(graph, offsets);
            if (list.at("dim")[0].get<std::int64_t>() != dim_[0] + 1)
                hosted::stop("cuDNN: offsets of another number of sequences");
            offsets_ = pointers.at(offsets);
            offset_type_ = list.at("data_type").get<std::string>();
        }
    }
    std::int64_t dim(std::size_t i) const { return dim_[i]; }
    bool packed() const { return offsets_ != nullptr; }
    /// Element i of a list of integers.
    std::int64_t at(std::int64_t i) const { return integer(data_, type_, i * stride_[0]); }
    /// Reads the rows [0, rows) of a sequence as [rows, heads, elements].
    Numbers read(std::int64_t sequence, std::int64_t rows) const {
        Numbers numbers;
        for_each_element(sequence, 0, rows, [&](std::int64_t offset) { numbers.push_back(load(offset)); });
        if (!offsets_)
            for_each_element(sequence, rows, dim_[2], [&](std::int64_t offset) {
                if (!std::isfinite(load(offset))) hosted::stop("cuDNN: a padded row that is not finite");
            });
        return numbers;
    }
    void write(std::int64_t sequence, std::int64_t rows, const Numbers& numbers) const {
        std::size_t next = 0;
        for_each_element(sequence, 0, rows, [&](std::int64_t offset) { store(offset, numbers[next++]); });
        if (!offsets_)
            for_each_element(sequence, rows, dim_[2], [&](std::int64_t offset) {
                store(offset, std::numeric_limits<double>::quiet_NaN());
            });
    }

private:
    static const Json& find(const Json& graph, std::int64_t uid) {
        for (const Json& tensor : graph.at("tensors"))
            if (tensor.at("uid").get<std::int64_t>() == uid) return tensor;
        hosted::stop(fmt::format("cuDNN: the graph has no tensor {}", uid));
    }
    double load(std::int64_t offset) const {
        if (type_ == "BFLOAT16") return double{static_cast<float>(static_cast<bf16*>(data_)[offset])};
        return double{static_cast<float*>(data_)[offset]};
    }
    void store(std::int64_t offset, double number) const {
        const auto value = static_cast<float>(number);
        if (type_ == "BFLOAT16")
            static_cast<bf16*>(data_)[offset] = bf16(value);
        else
            static_cast<float*>(data_)[offset] = value;
    }
    /// Calls body(offset) for all elements of the rows [begin, rows).
    template <class Body>
    void for_each_element(std::int64_t sequence, std::int64_t begin, std::int64_t rows, Body&& body) const {
        if (type_ != "BFLOAT16" && type_ != "FLOAT") hosted::stop("cuDNN: a tensor of " + type_);
        if (rows > dim_[2]) hosted::stop("cuDNN: a sequence that is longer than its graph's");
        const std::int64_t first =
            offsets_ ? integer(offsets_, offset_type_, sequence) : sequence * stride_[0];
        for (std::int64_t r = begin; r < rows; ++r)
            for (std::int64_t h = 0; h < dim_[1]; ++h)
                for (std::int64_t c = 0; c < dim_[3]; ++c)
                    body(first + h * stride_[1] + r * stride_[2] + c * stride_[3]);
    }
    std::vector<std::int64_t> dim_, stride_;
    std::string type_, offset_type_;
    void* data_ = nullptr;
    const void* offsets_ = nullptr;
};

/// The single operation of a graph.
class Operation {
public:
    Operation(const Json& graph, const Pointers& pointers) : node_(graph.at("nodes").at(0)) {
        if (graph.at("nodes").size() != 1) hosted::stop("cuDNN: a graph of several operations");
        for (const char* side : {"inputs", "outputs"})
            for (const auto& [port, uid] : node_.at(side).items())
                tensors_.emplace(port, GraphTensor(graph, pointers, uid.get<std::int64_t>()));
        if (!node_.at("left_bound").is_null() || node_.at("alibi_mask").get<bool>() ||
            !node_.at("dropout_probability").is_null())
            hosted::stop("cuDNN: a kind of attention that is not simulated");
    }
    void run() const {
        bool after_last = false;
        for (std::int64_t s = 0; s < tensors_.at("Q").dim(0); ++s) {
            const bool empty = rows("Q", "SEQ_LEN_Q", s) == 0 && rows("K", "SEQ_LEN_KV", s) == 0;
            if ((after_last && !empty) || (empty && !of("Q").packed()))
                hosted::stop("cuDNN: an empty sequence that is not one of the last, packed");
            after_last = empty;
            if (!empty) run(s);
        }
    }

private:
    const GraphTensor& of(const char* port) const { return tensors_.at(port); }
    std::int64_t rows(const char* port, const char* lengths, std::int64_t sequence) const {
        return node_.at("padding_mask").get<bool>() ? of(lengths).at(sequence) : of(port).dim(2);
    }
    double scale() const {
        if (node_.at("attn_scale_value").is_null()) return 1;
        const auto bits = std::stoul(node_.at("attn_scale_value").get<std::string>(), nullptr, 16);
        return double{std::bit_cast<float>(static_cast<std::uint32_t>(bits))};
    }
    maestro::ops::VarlenMask mask(std::int64_t queries, std::int64_t keys) const {
        const bool causal = !node_.at("right_bound").is_null();
        if (causal && node_.at("diagonal_alignment") != "TOP_LEFT")
            hosted::stop("cuDNN: a diagonal alignment that is not simulated");
        maestro::ops::VarlenMask v{
            {0, static_cast<std::int32_t>(queries)}, {0, static_cast<std::int32_t>(keys)}, {}};
        for (std::int64_t t = 0; t < queries; ++t) {
            const std::int64_t bound = causal ? t + 1 + node_.at("right_bound").get<std::int64_t>() : keys;
            v.kv_limit.push_back(static_cast<std::int32_t>(std::min(bound, keys)));
        }
        return v;
    }
    void run(std::int64_t s) const {
        const std::int64_t queries = rows("Q", "SEQ_LEN_Q", s), keys = rows("K", "SEQ_LEN_KV", s);
        // The reference scales scores by 1 / sqrt(head size), which is removed here.
        const double factor = scale() * std::sqrt(static_cast<double>(of("Q").dim(3)));
        PlainAttention reference{of("Q").dim(1),
                                 of("K").dim(1),
                                 of("Q").dim(3),
                                 mask(queries, keys),
                                 of("Q").read(s, queries),
                                 of("K").read(s, keys),
                                 of("V").read(s, keys),
                                 {},
                                 {},
                                 {},
                                 {},
                                 {}};
        for (double& q : reference.q) q *= factor;
        if (node_.at("tag") == "SDPA") {
            reference.forward();
            of("O").write(s, queries, reference.out);
            of("Stats").write(s, queries, reference.lse);
            return;
        }
        reference.out = of("O").read(s, queries);
        reference.lse = of("Stats").read(s, queries);
        reference.backward(of("dO").read(s, queries));
        for (double& q : reference.dq) q *= factor;
        of("dQ").write(s, queries, reference.dq);
        of("dK").write(s, keys, reference.dk);
        of("dV").write(s, keys, reference.dvalues);
    }

    const Json& node_;
    std::map<std::string, GraphTensor> tensors_;
};

/// The workspace of every plan: MAESTRO_HOSTED_CUDNN_WORKSPACE bytes.
std::size_t workspace_bytes() {
    const char* const bytes = std::getenv("MAESTRO_HOSTED_CUDNN_WORKSPACE");
    return bytes ? std::stoull(bytes) : 64 * 1024;
}

}  // namespace

namespace maestro::backend {

struct GraphExecution::State {
    Stream stream;
    std::map<const Graph*, std::shared_ptr<const Json>> graphs;
};

GraphExecution::GraphExecution(Stream stream) : state_(std::make_unique<State>(State{stream, {}})) {
    MAESTRO_CHECK(!std::getenv("MAESTRO_HOSTED_NO_CUDNN"), "simulated cuDNN: no handle");
}
GraphExecution::~GraphExecution() = default;

std::size_t GraphExecution::build(Graph& graph, const AttentionClass&) {
    try {
        auto description = testing_support::json_of(graph);
        state_->graphs.insert_or_assign(&graph, std::make_shared<const Json>(std::move(description)));
    } catch (const std::exception& error) {
        // Without a plan Maestro's kernels would compute attention, and no test would notice.
        hosted::stop(std::string("cuDNN: ") + error.what());
    }
    return workspace_bytes();
}

void GraphExecution::execute(Graph& graph, std::unordered_map<std::int64_t, void*> arrays, void* workspace,
                             std::size_t bytes, const AttentionClass&) {
    const auto graphs = state_->graphs.at(&graph);
    for (const auto& [uid, pointer] : arrays)
        MAESTRO_CHECK(hosted::is_device(pointer), "simulated cuDNN: array {} is not device memory", uid);
    MAESTRO_CHECK(bytes > 0 && hosted::is_device(workspace, bytes), "simulated cuDNN: the workspace");
    const auto work = [=] {
        std::memset(workspace, 0xff, bytes);
        Operation(*graphs, arrays).run();
    };
    MAESTRO_CHECK(hosted::enqueue(state_->stream, work, "a graph of cuDNN") == cudaSuccess,
                  "simulated cuDNN");
}

}  // namespace maestro::backend
