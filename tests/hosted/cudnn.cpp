// A stand-in for the execution of cuDNN's graphs: attention by its definition, in double, on what the graph
// says of its tensors and on the memory that it is given, when the stream gets to it. Nothing is known here
// of who made the graph.
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

/// A tensor as the graph describes it, [sequences, heads, rows, elements], on its memory. Without offsets
/// there are rows beyond a sequence's length: what is read there must be finite, and what is written there
/// is not.
class Described {
public:
    Described(const Json& graph, const Pointers& pointers, std::int64_t uid) {
        const Json& own = find(graph, uid);
        dim_ = own.at("dim").get<std::vector<std::int64_t>>();
        stride_ = own.at("stride").get<std::vector<std::int64_t>>();
        type_ = own.at("data_type").get<std::string>();
        data_ = pointers.at(uid);
        if (own.contains("ragged_offset_uid")) {
            const auto offsets = own.at("ragged_offset_uid").get<std::int64_t>();
            const Json& list = find(graph, offsets);
            if (list.at("dim")[0].get<std::int64_t>() != dim_[0] + 1)
                hosted::stop("cuDNN: offsets of another number of sequences");
            offsets_ = pointers.at(offsets);
            offset_type_ = list.at("data_type").get<std::string>();
        }
    }
    std::int64_t dim(std::size_t i) const { return dim_[i]; }
    bool packed() const { return offsets_ != nullptr; }
    /// As of a list of whole numbers.
    std::int64_t at(std::int64_t i) const { return integer(data_, type_, i * stride_[0]); }
    /// Rows [0, rows) of a sequence, heads side by side.
    Numbers read(std::int64_t sequence, std::int64_t rows) const {
        Numbers numbers;
        each(sequence, 0, rows, [&](std::int64_t place) { numbers.push_back(at_place(place)); });
        if (!offsets_)
            each(sequence, rows, dim_[2], [&](std::int64_t place) {
                if (!std::isfinite(at_place(place))) hosted::stop("cuDNN: a padded row that is not finite");
            });
        return numbers;
    }
    void write(std::int64_t sequence, std::int64_t rows, const Numbers& numbers) const {
        std::size_t next = 0;
        each(sequence, 0, rows, [&](std::int64_t place) { set_place(place, numbers[next++]); });
        if (!offsets_)
            each(sequence, rows, dim_[2],
                 [&](std::int64_t place) { set_place(place, std::numeric_limits<double>::quiet_NaN()); });
    }

private:
    static const Json& find(const Json& graph, std::int64_t uid) {
        for (const Json& tensor : graph.at("tensors"))
            if (tensor.at("uid").get<std::int64_t>() == uid) return tensor;
        hosted::stop(fmt::format("cuDNN: the graph has no tensor {}", uid));
    }
    double at_place(std::int64_t place) const {
        if (type_ == "BFLOAT16") return double{static_cast<float>(static_cast<bf16*>(data_)[place])};
        return double{static_cast<float*>(data_)[place]};
    }
    void set_place(std::int64_t place, double number) const {
        const auto value = static_cast<float>(number);
        if (type_ == "BFLOAT16")
            static_cast<bf16*>(data_)[place] = bf16(value);
        else
            static_cast<float*>(data_)[place] = value;
    }
    /// Rows [begin, rows).
    template <class Body>
    void each(std::int64_t sequence, std::int64_t begin, std::int64_t rows, Body&& body) const {
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

/// The one operation of a graph.
class Operation {
public:
    Operation(const Json& graph, const Pointers& pointers) : node_(graph.at("nodes").at(0)) {
        if (graph.at("nodes").size() != 1) hosted::stop("cuDNN: a graph of several operations");
        for (const char* side : {"inputs", "outputs"})
            for (const auto& [port, uid] : node_.at(side).items())
                tensors_.emplace(port, Described(graph, pointers, uid.get<std::int64_t>()));
        if (!node_.at("left_bound").is_null() || node_.at("alibi_mask").get<bool>() ||
            !node_.at("dropout_probability").is_null())
            hosted::stop("cuDNN: attention of a kind that is not done here");
    }
    void run() const {
        bool ended = false;
        for (std::int64_t s = 0; s < tensors_.at("Q").dim(0); ++s) {
            const bool empty = rows("Q", "SEQ_LEN_Q", s) == 0 && rows("K", "SEQ_LEN_KV", s) == 0;
            if ((ended && !empty) || (empty && !of("Q").packed()))
                hosted::stop("cuDNN: an empty sequence that is not one of the last, packed");
            ended = empty;
            if (!empty) run(s);
        }
    }

private:
    const Described& of(const char* port) const { return tensors_.at(port); }
    std::int64_t rows(const char* port, const char* lengths, std::int64_t sequence) const {
        return node_.at("padding_mask").get<bool>() ? of(lengths).at(sequence) : of(port).dim(2);
    }
    double scale() const {
        if (node_.at("attn_scale_value").is_null()) return 1;
        const auto bits = std::stoul(node_.at("attn_scale_value").get<std::string>(), nullptr, 16);
        return double{std::bit_cast<float>(static_cast<std::uint32_t>(bits))};
    }
    maestro::ops::VarlenMask visible(std::int64_t queries, std::int64_t keys) const {
        const bool causal = !node_.at("right_bound").is_null();
        if (causal && node_.at("diagonal_alignment") != "TOP_LEFT")
            hosted::stop("cuDNN: a diagonal that is not done here");
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
        // The definition scales by the root of the head's size.
        const double factor = scale() * std::sqrt(static_cast<double>(of("Q").dim(3)));
        PlainAttention plain{of("Q").dim(1),
                             of("K").dim(1),
                             of("Q").dim(3),
                             visible(queries, keys),
                             of("Q").read(s, queries),
                             of("K").read(s, keys),
                             of("V").read(s, keys),
                             {},
                             {},
                             {},
                             {},
                             {}};
        for (double& q : plain.q) q *= factor;
        if (node_.at("tag") == "SDPA") {
            plain.forward();
            of("O").write(s, queries, plain.out);
            of("Stats").write(s, queries, plain.lse);
            return;
        }
        plain.out = of("O").read(s, queries);
        plain.lse = of("Stats").read(s, queries);
        plain.backward(of("dO").read(s, queries));
        for (double& q : plain.dq) q *= factor;
        of("dQ").write(s, queries, plain.dq);
        of("dK").write(s, keys, plain.dk);
        of("dV").write(s, keys, plain.dvalues);
    }

    const Json& node_;
    std::map<std::string, Described> tensors_;
};

/// What every plan asks for: by MAESTRO_HOSTED_CUDNN_WORKSPACE.
std::size_t workspace_bytes() {
    const char* const bytes = std::getenv("MAESTRO_HOSTED_CUDNN_WORKSPACE");
    return bytes ? std::stoull(bytes) : 64 * 1024;
}

}  // namespace

namespace maestro::backend {

struct GraphExecution::State {
    Stream stream;
    std::map<const Graph*, std::shared_ptr<const Json>> built;
};

GraphExecution::GraphExecution(Stream stream) : state_(std::make_unique<State>(State{stream, {}})) {
    MAESTRO_CHECK(!std::getenv("MAESTRO_HOSTED_NO_CUDNN"), "hosted cuDNN: no handle");
}
GraphExecution::~GraphExecution() = default;

std::size_t GraphExecution::build(Graph& graph, const AttentionClass&) {
    try {
        auto description = testing_support::json_of(graph);
        state_->built.insert_or_assign(&graph, std::make_shared<const Json>(std::move(description)));
    } catch (
        const std::exception& error) {  // without a plan own kernels would attend, and no test would see it
        hosted::stop(std::string("cuDNN: ") + error.what());
    }
    return workspace_bytes();
}

void GraphExecution::execute(Graph& graph, std::unordered_map<std::int64_t, void*> arrays, void* workspace,
                             std::size_t bytes, const AttentionClass&) {
    const auto built = state_->built.at(&graph);
    for (const auto& [uid, pointer] : arrays)
        MAESTRO_CHECK(hosted::is_device(pointer), "hosted cuDNN: array {} is not the device's", uid);
    MAESTRO_CHECK(bytes > 0 && hosted::is_device(workspace, bytes), "hosted cuDNN: the workspace");
    const auto work = [=] {
        std::memset(workspace, 0xff, bytes);
        Operation(*built, arrays).run();
    };
    MAESTRO_CHECK(hosted::enqueue(state_->stream, work, "a graph of cuDNN") == cudaSuccess, "hosted cuDNN");
}

}  // namespace maestro::backend
