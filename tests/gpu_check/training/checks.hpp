// What a training run needs of GPUs beyond single operations. Each check prints JSON objects, one per line,
// and returns how many of its cases failed. A line with "skipped" says why a check is impossible here.
#pragma once

namespace maestro::gpu_check {

struct CheckOptions {
    bool small = false;      ///< small sizes, whose speed is meaningless, to test the program
    double seconds = 120;    ///< the deadline of everything that may wait for ever
    int missing_rank = -1;   ///< collectives: this rank sits out, to test the deadline
    double disturbance = 0;  ///< step: added to a weight on the GPU alone, to test the comparison
};

/// Collectives of NCCL between processes with a GPU each, forked from this one. To be called before this
/// process uses CUDA.
int check_collectives(const CheckOptions& options);
/// Which streams of a GPU run while another one waits for the host.
int check_queues(const CheckOptions& options);
/// Copies between a GPU and a file in memory that processes share, as edges of a node use it.
int check_windows(const CheckOptions& options);
/// A training step of a small language model on the GPU and on the CPU.
int check_step(const CheckOptions& options);

}  // namespace maestro::gpu_check
