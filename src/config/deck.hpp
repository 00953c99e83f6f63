// The deck as plain structs: what the TOML file and --set say, checked key by key. Every rank parses the text
// that rank 0 has read. workload::make_scenario() makes the section graph of it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "config/key_places.hpp"
#include "graph/section_graph.hpp"
#include "spec/lora.hpp"
#include "spec/sample_distribution.hpp"

namespace maestro::config {

enum class Command { train, evaluate, plan, simulate, calibrate, import_folder, export_weights };
/// Where task times come from: the models of the deck, or a file (simulate --costs), for which the deck needs
/// no model, data, training or device.
enum class Times { model, from_file };

struct Run {
    std::string name, output;
    std::uint64_t seed = 0;
    std::string device = "auto", precision = "fp32";
    std::string matmul_precision = "fp32", gemm_autotune = "heuristic";
    double timeout_s = 120;  ///< the longest time without progress; then the run ends
    std::string transport = "auto", sums = "auto", tp_overlap = "auto";
};
/// [data.lengths]: the sizes of samples, where their contents are not needed. A file, or a distribution.
struct Lengths {
    std::string file;  ///< CSV
    SampleDistribution drawn;

    bool requested() const { return !file.empty() || drawn.samples > 0; }
};
struct Data {
    std::string train, validation;
    Lengths lengths;                     ///< instead of `train`
    std::int64_t global_batch = 1;       ///< samples
    std::int64_t sequence_length = 512;  ///< the most tokens of a sample, picture tokens included
};
struct Train {
    std::int64_t steps = 1, log_every = 10;
    std::string recompute = "none";
};
struct Optimizer {
    double learning_rate = 1e-3, final_learning_rate = 0;
    std::int64_t warmup_steps = 0, decay_steps = 0;
    std::array<double, 2> betas = {0.9, 0.95};
    double eps = 1e-8, weight_decay = 0, clip = 1;
};
struct Checkpoint {
    /// Steps between two checkpoints. Left out: the last step alone has one; 0: only an early stop.
    std::optional<std::int64_t> every = {};
    std::int64_t keep = 2;
};
/// device = "emulated"
struct Emulated {
    std::string cluster;           ///< path of a cluster file
    double time_scale = 1;         ///< seconds of the run for one second of the cluster
    double message_scale = 0.001;  ///< share of the bytes of rows, gradients and weights that is sent
};
struct Metrics {
    double interval_s = 1;
    std::int64_t timeline_every = 1;  ///< steps; 0: no timeline
};
struct Schedule {
    std::string policy = "wavefront", dispatch = "planned", costs = "model";
    std::int64_t moves = 0;
};
struct Model {
    std::string name, kind = "language", family = "maestro";
    std::int64_t layers = 1, width = 64, heads = 1, kv_heads = 1, head_dim = 64, mlp = 0, vocabulary = 0,
                 picture_token = -1, attention_window = 0;
    double rope_theta = 10000, norm_eps = 1e-6;
    double rope_factor = 1, rope_low_frequency_factor = 1, rope_high_frequency_factor = 4,
           rope_original_length = 8192;
    bool tie_embeddings = true;
    std::vector<int> rope_sections;
    std::int64_t experts = 0, experts_per_token = 0, expert_mlp = 0, shared_expert_mlp = 0, dense_layers = 0;
    std::string router = "softmax";
    bool router_normalize = true;
    std::string balance = "none";
    double balance_strength = 0.001;
    std::int64_t patch = 8, merge = 1, channels = 1, output_width = 0, position_table = 0;
    std::vector<int> deepstack;
};
struct Distill {
    double alpha = 0.5, temperature = 1;
};
/// [section.lora]
struct LoraTable {
    Lora adapters;        ///< disabled where the section has no such table
    std::string weights;  ///< the folder of a PEFT adapter to start from; empty: none
};
struct Section {
    std::string name, model, mode = "train", weights, colocate_with;
    bool from_folder = false;  ///< `weights` names a folder of a published model
    std::int64_t micro_batch = 1, window = 0;
    graph::Layout layout;
    std::string cp_kind = "ring";
    std::vector<std::string> freeze;  ///< parts of the model that are not trained
    /// Instead of those of the optimizer.
    std::optional<double> learning_rate = {}, weight_decay = {};
    std::string recompute;  ///< empty: as train.recompute
    std::int64_t recompute_layers = 0;
    Distill distill;
    LoraTable lora;
};
struct Edge {
    std::string from, to, tensor = "embeddings";
};

struct Deck {
    Run run;
    Data data;
    Train train;
    Optimizer optimizer;
    Checkpoint checkpoint;
    Metrics metrics;
    Emulated emulated;
    Schedule schedule;
    std::map<std::string, Model> models;
    std::vector<Section> sections;
    std::vector<Edge> edges;
    std::string text;                             ///< the deck with its overrides, as stored in outputs
    std::map<std::string, std::string> settings;  ///< every key by its full name, with its value
    std::map<std::string, std::string> defaults;  ///< of the optional keys
    std::set<std::string> texts;                  ///< the keys whose values are texts
    KeyPlaces places;                             ///< for messages about keys

    const Model& model_of(int section) const { return models.at(sections[section].model); }
    /// What a section does not keep for its backward pass.
    const std::string& recompute_of(const Section& section) const {
        return section.recompute.empty() ? train.recompute : section.recompute;
    }
    /// Why the run saves no checkpoint, not even at an early stop: "because ..."; empty if it does.
    std::string saves_nothing() const;
    /// Steps between two checkpoints that are written while training goes on; 0: there are none.
    std::int64_t save_interval() const { return saves_nothing().empty() ? checkpoint.every.value_or(0) : 0; }
    /// Whether there is a checkpoint of the last step.
    bool saves_at_end() const { return saves_nothing().empty() && checkpoint.every != 0; }
    /// Seconds of the run for one second of the cost model; not 1 on an emulated device only.
    double time_scale() const { return run.device == "emulated" ? emulated.time_scale : 1; }
};

/// Checks what takes more than the deck to judge, such as its section graph. With `sound`, the deck has no
/// error so far; otherwise the check leaves out what could follow from one.
using DeckCheck = std::function<std::vector<graph::Refusal>(const Deck& deck, bool sound)>;

/// Returns the keys of [model.NAME] that the folder of a published model determines for a model of `kind`, or
/// nothing if `weights`, the value of a section's key, names no such folder. May throw.
using FolderKeys = std::function<std::optional<std::map<std::string, std::string>>(const std::string& weights,
                                                                                   const std::string& kind)>;

/// Checks every key by itself and against related keys, and then by `check`, if there is one. `path` is named
/// in errors; `overrides` are the "KEY=VALUE" of --set. Throws Error(bad_deck, all_ranks) with all errors, a
/// line each: "PATH:LINE:COLUMN: KEY: error; what is allowed".
Deck parse_deck(std::string_view text, const std::string& path, const std::vector<std::string>& overrides,
                Command command, Times times = Times::model, const DeckCheck& check = {},
                const FolderKeys& folder_keys = {});

/// The [model.NAME] among the settings that a checkpoint stored.
Model model_of(const std::map<std::string, std::string>& settings, const std::string& name);

/// The adapters of a section among these settings.
Lora lora_of(const std::map<std::string, std::string>& settings, const std::string& section);

/// Returns why a run with the settings `stored` cannot be resumed with `deck`: a line for each key that
/// differs and affects the result; empty if it can. Layout, micro-batches, schedule and outputs may differ. A
/// key that one side does not know counts as its default; `stored_defaults` are the defaults of the build
/// that stored them.
std::vector<std::string> resume_conflicts(const Deck& deck, const std::map<std::string, std::string>& stored,
                                          const std::map<std::string, std::string>& stored_defaults = {});

/// The text of a TOML file; Error(input_missing) or, above 1 MiB, Error(bad_deck).
std::string read_text(const std::string& path);

}  // namespace maestro::config
