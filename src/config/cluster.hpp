// A cluster file as plain structs: the rates and links of the machines (docs/deck.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace maestro::config {

/// Rates of GEMMs whose smallest dimension is `side`.
struct GemmRate {
    double side = 1, fp32_flops = 0, bf16_flops = 0;  ///< per second
};
struct Device {
    double memory = 0;            ///< bytes of one rank
    double memory_bandwidth = 0;  ///< bytes/s
    double element_flops = 0;     ///< per second, element-wise operations
    double operation_s = 0;       ///< fixed cost of an operation, besides its work
    std::vector<GemmRate> gemm_rates;
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
struct Cluster {
    std::string name;
    std::int64_t ranks_per_node = 1;
    Device device;
    Link node, network;  ///< between ranks of one node, and of two
};

/// Throws Error(bad_deck, all_ranks) with all problems, a line each: "PATH:LINE:COLUMN: KEY: what; allowed".
Cluster parse_cluster(std::string_view text, const std::string& path);

}  // namespace maestro::config
