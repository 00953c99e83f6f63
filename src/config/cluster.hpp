// A cluster file: what the machines can do, as plain structs (docs/deck.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace maestro::config {

/// Rates of matrix products with this smallest side.
struct ProductRate {
    double side = 1, fp32_flops = 0, bf16_flops = 0;  ///< per second
};
struct Device {
    double memory = 0;            ///< bytes of one rank
    double memory_bandwidth = 0;  ///< bytes/s
    double element_flops = 0;     ///< per second, element-wise operations
    double operation_s = 0;       ///< that an operation takes besides its work
    std::vector<ProductRate> products;
};
struct Link {
    double latency_s = 0, bandwidth = 0;  ///< bytes/s
    /// The same of collectives, among all ranks of a node or one of each: a verb takes the latency once, and
    /// what a rank gets, or sends if that is more, goes at the bandwidth. 0: as above.
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
