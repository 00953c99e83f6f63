// What this rank needs for the steps of a training run or of an evaluation, built once before the first step:
// its stages of sections and edges with their memory. Destroyed before MPI ends.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "channel/channel.hpp"
#include "channel/open.hpp"
#include "data/prefetcher.hpp"
#include "graph/grid.hpp"
#include "schedule/problem/problem.hpp"
#include "train/checkpoint/saver.hpp"
#include "train/setup/answer_ends.hpp"
#include "train/setup/memory.hpp"
#include "train/setup/preflight.hpp"
#include "train/setup/run_context.hpp"
#include "train/setup/section_devices.hpp"
#include "train/step/local_stage.hpp"
#include "train/step/step_runner.hpp"
#include "workload/cost_model.hpp"
#include "workload/sample_table.hpp"

namespace maestro::train {

class Job {
public:
    /// Collective over the world, which has the size that the graph asks for. Builds this rank's stages and
    /// the edges, in the memory that the preflight has found room for; `context` and `preflight` outlive the
    /// job. Errors are thrown on all ranks. Weights are zeros until one of the next two is called.
    Job(const RunContext& context, const Preflight& preflight);
    /// Collective. Initial weights, and those that the deck names.
    void load_initial();
    /// Collective. Weights and optimizer states of a verified checkpoint.
    void load(const std::string& checkpoint);
    /// Collective. Finds which tokens end the answers of the samples, for checkpoints of sections that
    /// started from a model folder, and logs those that the folder does not name as ends.
    void find_answer_ends();

    const RunContext& context() const { return context_; }
    const workload::SampleTable& table() const { return preflight_.table(); }
    const data::Samples& samples() const { return preflight_.samples(); }
    data::Prefetcher& prefetcher() { return *prefetcher_; }
    std::vector<std::unique_ptr<LocalStage>>& stages() { return stages_; }
    const std::vector<EdgeEnd>& edges() const { return edges_; }
    /// What checkpoints store of this rank.
    RunState state() const {
        return {context_.world, context_.deck, context_.scenario.graph, stages_, samples().identity(),
                context_.pulse, answer_ends_};
    }
    /// The ranks that run this one's tasks together, the leader first.
    const comm::Communicator& lane() const { return lane_; }
    /// Sections, edges and the costs of the samples, for the planner; costs on rank 0 alone.
    const schedule::Problem& problem() const { return problem_; }
    const workload::CostModel* costs() const { return costs_.get(); }
    const backend::Backend& backend() const { return devices_->any(); }  ///< of one of the sections
    /// Parameters, memory and window of each stage, for the log.
    const std::vector<std::string>& description() const { return description_; }
    /// What is planned to decode answers on a rank of the stage.
    double decoding_bytes(int stage) const { return preflight_.memory().stages[stage].decoding; }
    /// What is planned for this rank's memory, and what has been allocated and used of it so far.
    MemoryUse memory_use() const;

private:
    /// What the log reports about a stage besides its sizes.
    struct StageReport {
        std::int64_t parameters = 0;  ///< held by this rank
        std::string transports;       ///< of its process groups, where a GPU computes
        std::string attention_plans;
    };

    void open_edges();
    /// Collective over the world: the stages of the section.
    void build_section(int section);
    /// Collective over the world. The group of the ranks with the same coordinates in the first and in the
    /// last stage of the section, where these hold copies of a trained embedding; null elsewhere. Made before
    /// the meshes, because stages that are on one rank get theirs one after another.
    std::unique_ptr<collective::ProcessGroup> tied_group(int section,
                                                         const std::optional<graph::Place>& place);
    /// How gradients are summed: as the deck says, or in the order of ranks.
    collective::Sums sums() const;
    /// Collective over the ranks of the stage. `tied`: see parallel::make_mesh.
    parallel::Mesh mesh_of(int stage, std::unique_ptr<collective::ProcessGroup> tied);
    /// Allocates this rank's memory for a stage. Sends nothing.
    StageReport add_stage(int stage, int replica, parallel::Mesh mesh);
    /// Builds the device's plans of attention, where it has any. Returns a description of them.
    std::string prepare_attention(model::Module& module, int section);
    EmulatedSync emulated_sync(int stage);
    /// Collective over the world. Chooses whether gradients are summed, and weights gathered, beside tasks or
    /// between steps, and adds to description() how many streams share the hardware queues of a GPU.
    void choose_sync_times();
    /// Collective over the world: adds to description() what the first rank of each stage reports, this
    /// rank's reports by stage.
    void describe_section(int section, std::vector<StageReport> reports);
    /// Collective. Draws the weights of this rank's shards that were not loaded, then all-gathers the shards.
    void complete_weights();
    void prepare_planning();

    const RunContext& context_;
    const Preflight& preflight_;
    std::uint64_t resident_at_start_;
    std::unique_ptr<SectionDevices> devices_;
    std::unique_ptr<data::Prefetcher> prefetcher_;
    comm::Communicator lane_;
    std::vector<std::unique_ptr<channel::Channel>> channels_;
    std::vector<EdgeEnd> edges_;
    std::shared_ptr<double> emulated_network_free_s_;  ///< see EmulatedSync
    std::vector<std::unique_ptr<LocalStage>> stages_;
    /// By section: its ranks with this one's coordinate along pp, which are those of each of its stages here.
    std::vector<comm::Communicator> stage_ranks_;
    schedule::Problem problem_;
    std::unique_ptr<workload::CostModel> costs_;
    workload::RankMemory planned_;
    std::vector<std::string> description_;
    AnswerEnds answer_ends_{};  ///< rank 0
};

/// Pointers to the job's stages.
std::vector<LocalStage*> local_stages(Job& job);

}  // namespace maestro::train
