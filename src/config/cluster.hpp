// A cluster file as plain structs: the rates and links of the machines (docs/deck.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collective/collective_times.hpp"

namespace maestro::config {

/// Rates of GEMMs whose smallest dimension is `side`.
struct GemmRate {
    double side = 1, fp32_flops = 0, bf16_flops = 0;  ///< per second
};
/// Rates of attention with heads of `head_dim` channels, over sequences of `length` rows.
struct AttentionRate {
    double head_dim = 1, length = 1;
    double fp32_flops = 0, bf16_flops = 0;                    ///< per second, forward
    double backward_fp32_flops = 0, backward_bf16_flops = 0;  ///< backward
};
struct Device {
    double memory = 0;            ///< bytes of one rank
    double memory_bandwidth = 0;  ///< bytes/s
    double element_flops = 0;     ///< per second, element-wise operations
    double operation_s = 0;       ///< fixed cost of an operation, besides its work
    double launch_s = 0;          ///< of the host, which launches operations while others run
    double expert_imbalance = 1;  ///< rows of the rank whose shared experts have most, over the mean
    /// Of layers with experts, in each pass: the host's seconds for each row of the ranks that share them, to
    /// plan where it goes, and for each choice of an expert that is sorted.
    double expert_row_s = 0, expert_choice_s = 0;
    /// "cpu" or "gpu". Empty, as in files that do not say: a GPU where run.device is "cuda", otherwise a CPU.
    std::string kind = {};
    std::int64_t threads = 1;  ///< of a rank, on a CPU
    /// Share of the memory that is free for a rank which open windows may fill: files and MPI need the rest.
    double window_share = 0.8;
    // Of GPUs alone. Memory in bytes; the first three are estimates.
    double context_memory = 512.0 * (1 << 20);          ///< a process's CUDA context
    std::optional<double> library_memory = {};          ///< code and handles of libraries
    std::optional<double> nccl_connection_memory = {};  ///< NCCL's buffers to another rank of a group
    double host_memory = 0;                             ///< a rank's share of its host's; 0: not known
    std::int64_t architecture = 90;                     ///< compute capability times 10
    std::int64_t cudnn = 91900;                         ///< version of cuDNN (9.19.0); 0: none
    bool mpi_reaches_gpus = false;                      ///< MPI is CUDA-aware
    std::vector<GemmRate> gemm_rates;
    std::vector<GemmRate> grouped_rates = {};         ///< of grouped GEMMs; empty: as single ones
    std::vector<AttentionRate> attention_rates = {};  ///< empty: as GEMMs whose side is the head size
};
struct Link {
    double latency_s = 0, bandwidth = 0;  ///< bytes/s
    /// The same for collectives, among all ranks of a node or one rank of each node: a collective pays the
    /// latency once, and the larger of what a rank sends and receives at the bandwidth. 0: as above.
    double collective_latency_s = 0, collective_bandwidth = 0;
    Link of_collectives() const {
        return {collective_latency_s > 0 ? collective_latency_s : latency_s,
                collective_bandwidth > 0 ? collective_bandwidth : bandwidth, 0, 0};
    }
};
/// What `maestro calibrate --deck` has measured of a part of a section's model: a micro-batch of so many rows
/// in sequences of equal length, in a layout. Or, never in a file, what the tasks of a run have.
struct Correction {
    std::string section;
    std::string precision;   ///< "fp32" or "bf16"
    std::int64_t width = 1;  ///< of the model
    /// "layer": one layer like the `layer`-th; "first": the first, with what stands before it; "last": the
    /// last, with what stands behind it. "stage": a stage of a run, with what stands before and behind its
    /// layers.
    std::string part;
    std::int64_t layer = 0;
    double begin = 0, end = 1;    ///< of "stage": its layers, as shares of the model's depth
    double rows = 1, length = 1;  ///< of "stage": means over the rows
    std::int64_t tp = 1, cp = 1;
    std::int64_t ep = 1;                   ///< ranks that share the experts of a layer
    double forward_s = 0, backward_s = 0;  ///< as the rates of this file predict them
    double forward = 1, backward = 1;      ///< measured over predicted
};
struct Cluster {
    std::string name;
    std::int64_t ranks_per_node = 1;
    double node_hour_price = 0;  ///< of a node, in any currency; 0: not known
    Device device;
    Link node, network;  ///< between ranks of one node, and of two
    /// What collectives take, where they were measured.
    collective::CollectiveTimes collectives = {};
    std::vector<Correction> corrections = {};
};

/// Throws Error(bad_deck, all_ranks) with all problems, a line each: "PATH:LINE:COLUMN: KEY: what; allowed".
Cluster parse_cluster(std::string_view text, const std::string& path);

}  // namespace maestro::config
