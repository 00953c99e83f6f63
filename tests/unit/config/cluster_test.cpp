#include "config/cluster.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.hpp"
#include "config/deck.hpp"
#include "support/decks.hpp"

namespace maestro::config {
namespace {

using testing::HasSubstr;

const std::string kFolder = std::string(MAESTRO_SOURCE_DIR) + "/inputs/clusters";

std::string cluster_refusal(const std::string& old_text, const std::string& new_text) {
    const std::string text = testing_support::edited(old_text, new_text, "clusters/h100.toml");
    return testing_support::refusal_by([&] { parse_cluster(text, "c.toml"); });
}

TEST(Cluster, EveryInputIsGood) {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
        const Cluster cluster = parse_cluster(read_text(entry.path().string()), entry.path().string());
        EXPECT_GE(cluster.device.gemm_rates.size(), 1u) << entry.path();
        EXPECT_GE(cluster.node.bandwidth, cluster.network.bandwidth) << entry.path();
        ++count;
    }
    EXPECT_GE(count, 2);
}

TEST(Cluster, ErrorsNamePlaceKeyAndWhatIsAllowed) {
    EXPECT_THAT(cluster_refusal("memory_bandwidth =", "memory_bandwith ="),
                HasSubstr("device.memory_bandwith: unknown key; did you mean device.memory_bandwidth?"));
    EXPECT_THAT(cluster_refusal("memory_bandwidth =", "memory_bandwith ="),
                HasSubstr("device.memory_bandwidth: missing"));
    EXPECT_THAT(cluster_refusal("[network]", "[networks]"),
                HasSubstr("unknown table; did you mean network?"));
    EXPECT_THAT(cluster_refusal("kind = \"gpu\"", "kind = \"tpu\""),
                HasSubstr("device.kind: 'tpu' is not known"));
    EXPECT_THAT(cluster_refusal("kind = \"gpu\"", "expert_row_s = 2"),
                HasSubstr("device.expert_row_s: 2 is out of range"));
    EXPECT_THAT(cluster_refusal("kind = \"gpu\"", "window_share = 2"),
                HasSubstr("device.window_share: 2 is out of"));
    EXPECT_THAT(cluster_refusal("latency_s = 4e-6", "latency_s = -1"),
                HasSubstr("node.latency_s: -1 is out of range"));
    EXPECT_THAT(cluster_refusal("latency_s = 4e-6", "latency_s = nan"), HasSubstr("node.latency_s"));
    EXPECT_THAT(cluster_refusal("ranks_per_node = 8", "ranks_per_node = 8.5"), HasSubstr("wrong type"));
    EXPECT_THAT(cluster_refusal("side = 128", "side = 32"),
                HasSubstr("product.#2.side: not larger than the one before"));
    EXPECT_THAT(cluster_refusal("[[product]]", "[product]"), HasSubstr("c.toml:"));
    EXPECT_THAT(cluster_refusal("[cluster]", "[cluster"), HasSubstr("c.toml:"));
}

const std::string kCorrection =
    "[[correction]]\nsection = \"language\"\nprecision = \"bf16\"\nwidth = 512\npart = \"layer\"\n"
    "rows = 4096\nlength = 512\ntp = 2\nforward_s = 1e-3\nbackward_s = 2e-3\nforward = 1.5\n"
    "backward = 0.5\n\n[network]";

TEST(Cluster, HasCorrections) {
    const std::string text = testing_support::edited("[network]", kCorrection, "clusters/h100.toml");
    const Cluster cluster = parse_cluster(text, "c.toml");
    ASSERT_EQ(cluster.corrections.size(), 1u);
    const Correction& c = cluster.corrections.front();
    EXPECT_EQ(c.section, "language");
    EXPECT_EQ(c.width, 512);
    EXPECT_EQ(c.tp, 2);
    EXPECT_EQ(c.cp, 1);
    EXPECT_EQ(c.forward, 1.5);
    EXPECT_EQ(c.backward, 0.5);
    EXPECT_TRUE(parse_cluster(testing_support::input("clusters/h100.toml"), "c.toml").corrections.empty());
}

const std::string kCollectives =
    "[[collective]]\nkind = \"all_to_all\"\nranks = 16\nnodes = 2\nbytes = 1e6\nseconds = 2e-4\n"
    "[[collective]]\nkind = \"all_gather\"\nranks = 8\nbytes = 1024\nseconds = 1e-5\n\n[network]";

TEST(Cluster, HasTimesOfCollectives) {
    const std::string text = testing_support::edited("[network]", kCollectives, "clusters/h100.toml");
    const auto rows = parse_cluster(text, "c.toml").collectives.rows();
    ASSERT_EQ(rows.size(), 2u);
    using collective::CollectiveKind;
    EXPECT_EQ(rows[0], (collective::CollectiveRow{CollectiveKind::all_gather, 8, 1, 1024, 1e-5}));
    EXPECT_EQ(rows[1], (collective::CollectiveRow{CollectiveKind::all_to_all, 16, 2, 1e6, 2e-4}));
    EXPECT_TRUE(parse_cluster(testing_support::input("clusters/h100.toml"), "c.toml").collectives.empty());
    const auto refused = [](const std::string& old_text, const std::string& new_text) {
        std::string changed = kCollectives;
        changed.replace(changed.find(old_text), old_text.size(), new_text);
        return cluster_refusal("[network]", changed);
    };
    EXPECT_THAT(refused("all_gather", "allgather"),
                HasSubstr("collective.#2.kind: 'allgather' is not known; allowed: one of all_gather"));
    EXPECT_THAT(refused("ranks = 8", "ranks = 1"), HasSubstr("collective.#2.ranks: 1 is out of range"));
    EXPECT_THAT(refused("nodes = 2", "nodes = 17"),
                HasSubstr("collective.#1.nodes: 17 for 16 ranks; allowed: at most as many nodes as ranks"));
    EXPECT_THAT(refused("seconds = 2e-4", "seconds = 0"), HasSubstr("collective.#1.seconds: 0 is out of"));
    EXPECT_THAT(refused("bytes = 1e6\n", ""), HasSubstr("collective.#1.bytes: missing"));
    EXPECT_THAT(refused("kind = \"all_gather\"\nranks = 8\nbytes = 1024",
                        "kind = \"all_to_all\"\nranks = 16\nnodes = 2\nbytes = 1000000"),
                HasSubstr("collective.#2.bytes: kind, ranks, nodes and bytes are those of collective.#1"));
    EXPECT_THAT(refused("[[collective]]\nkind = \"all_to", "[collective]\nkind = \"all_to"),
                HasSubstr("c.toml:"));
}

const std::string kRates =
    "[[grouped_product]]\nside = 64\nfp32_flops = 1e12\nbf16_flops = 2e12\n"
    "[[attention]]\nhead_dim = 64\nlength = 512\nfp32_flops = 1e12\nbf16_flops = 2e12\n"
    "backward_fp32_flops = 3e12\nbackward_bf16_flops = 4e12\n"
    "[[attention]]\nhead_dim = 64\nlength = 4096\nfp32_flops = 5e12\nbf16_flops = 6e12\n"
    "backward_fp32_flops = 7e12\nbackward_bf16_flops = 8e12\n\n[network]";

TEST(Cluster, HasRatesOfExpertsAndAttention) {
    const std::string text = testing_support::edited("[network]", kRates, "clusters/h100.toml");
    const Device device = parse_cluster(text, "c.toml").device;
    ASSERT_EQ(device.grouped_rates.size(), 1u);
    EXPECT_EQ(device.grouped_rates[0].bf16_flops, 2e12);
    ASSERT_EQ(device.attention_rates.size(), 2u);
    EXPECT_EQ(device.attention_rates[0].backward_bf16_flops, 4e12);
    EXPECT_EQ(device.attention_rates[1].length, 4096);
    const auto refused = [](const std::string& old_text, const std::string& new_text) {
        std::string changed = kRates;
        changed.replace(changed.find(old_text), old_text.size(), new_text);
        return cluster_refusal("[network]", changed);
    };
    EXPECT_THAT(refused("length = 4096", "length = 512"),
                HasSubstr("attention.#2.length: not larger than the one before"));
    EXPECT_THAT(refused("backward_bf16_flops = 8e12", ""),
                HasSubstr("attention.#2.backward_bf16_flops: missing"));
    EXPECT_THAT(refused("side = 64", "rows = 64"), HasSubstr("grouped_product.#1.rows: unknown key"));
    EXPECT_THAT(cluster_refusal("kind = \"gpu\"", "expert_imbalance = 0.5"),
                HasSubstr("device.expert_imbalance: 0.5 is out of range"));
    EXPECT_THAT(cluster_refusal("kind = \"gpu\"", "launch_s = 2"),
                HasSubstr("device.launch_s: 2 is out of range"));
}

TEST(Cluster, RefusesCorrectionsThatAreWrong) {
    const auto refused = [](const std::string& old_text, const std::string& new_text) {
        std::string changed = kCorrection;
        changed.replace(changed.find(old_text), old_text.size(), new_text);
        return cluster_refusal("[network]", changed);
    };
    EXPECT_THAT(refused("part = \"layer\"", "part = \"middle\""),
                HasSubstr("correction.#1.part: 'middle' is not known"));
    EXPECT_THAT(refused("rows = 4096\n", ""), HasSubstr("correction.#1.rows: missing"));
    EXPECT_THAT(refused("forward = 1.5", "forward = 0"), HasSubstr("correction.#1.forward: 0 is out of"));
    EXPECT_THAT(refused("tp = 2", "dp = 2"), HasSubstr("correction.#1.dp: unknown key"));
    EXPECT_THAT(refused("[[correction]]", "[correction]"), HasSubstr("correction: wrong type"));
}

TEST(Cluster, CorpusOfTheFuzzerIsReadOrRefused) {
    int count = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(MAESTRO_SOURCE_DIR "/tests/fuzz/corpus/cluster")) {
        ++count;
        try {
            parse_cluster(read_text(entry.path().string()), "corpus");
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ExitCode::bad_deck) << entry.path();
        }
    }
    EXPECT_GE(count, 1);
}

}  // namespace
}  // namespace maestro::config
