// The real cuDNN's verdict on all attention graphs of the backend, without a GPU. cuDNN checks, plans and
// compiles graphs for a described device (the fake driver of tests/cuda/driver.c loads the compiled kernels).
// Nothing runs.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <vector>

#include "cudnn/graphs.hpp"

namespace maestro::backend {
namespace {

using testing::HasSubstr;
using testing_support::Json;

struct Gpu {
    const char* name;
    int architecture, processors, shared_bytes;
};
constexpr Gpu kH100{"NVIDIA H100 80GB HBM3", 90, 132, 232'448}, kB200{"NVIDIA B200", 100, 148, 232'448},
    kA100{"NVIDIA A100-SXM4-80GB", 80, 108, 166'912}, kA40{"NVIDIA A40", 86, 84, 101'376},
    kL40{"NVIDIA L40", 89, 142, 101'376}, kRtx{"NVIDIA RTX PRO 6000", 120, 188, 101'376},
    kGb10{"NVIDIA GB10", 121, 48, 101'376};
constexpr Gpu kPacked[] = {kH100, kB200}, kPadded[] = {kA100, kA40, kL40, kRtx, kGb10},
              kAll[] = {kH100, kB200, kA100, kA40, kL40, kRtx, kGb10};

Json properties(const Gpu& gpu) {
    return {{"cudaDeviceId", 0},
            {"deviceName", gpu.name},
            {"deviceVer", 10 * gpu.architecture},
            {"driverVer", 13000},
            {"isTccDriver", 0},
            {"l2CacheSize", 52'428'800},
            {"maxBlockSize", {1024, 1024, 64}},
            {"maxGridSize", {2'147'483'647, 65'535, 65'535}},
            {"maxCtasPerSM", 32},
            {"maxRegistersPerSM", 65'536},
            {"maxSharedMemoryPerBlock", 49'152},
            {"maxSharedMemoryPerBlockOptin", gpu.shared_bytes},
            {"maxThreadsPerBlock", 1024},
            {"maxThreadsPerSM", 2048},
            {"memClockRateKHz", 2'619'000},
            {"multiProcessorCount", gpu.processors},
            {"pciDeviceId", 9009},
            {"regsPerBlock", 65'536},
            {"reservedSharedMemoryPerBlock", 1024},
            {"smClockRateKHz", 1'980'000},
            {"supportCoopLaunch", 1},
            {"totalGlobalMem", 85'045'411'840},
            {"warpSize", 32}};
}

std::string describe(const AttentionClass& c, const Gpu& gpu) {
    return fmt::format("{}, {} {}{}, {} heads and {} key heads of {}, {} sequences of {}", gpu.name,
                       c.causal ? "causal" : "full", c.backward ? "backward" : "forward",
                       c.padded ? ", padded" : "", c.heads, c.kv_heads, c.dim, c.sequences, c.max_seqlen);
}

AttentionClass class_of(bool backward, bool causal, std::int64_t heads, std::int64_t kv_heads,
                        std::int64_t dim, std::int64_t max_seqlen, bool padded = false) {
    const std::int64_t width = padded ? kv_heads * dim : (heads + 2 * kv_heads) * dim;
    return {.backward = backward,
            .causal = causal,
            .padded = padded,
            .heads = heads,
            .kv_heads = kv_heads,
            .dim = dim,
            .sequences = std::max<std::int64_t>(2048 / max_seqlen, 1),
            .max_seqlen = max_seqlen,
            .value_width = width,
            .gradient_width = backward ? width : 0};
}

AttentionSupport support_of(const Gpu& gpu) {
    return {.architecture = gpu.architecture,
            .linear_backward = gpu.architecture == 90 && cudnn_version() >= kLinearBackward};
}

/// Whether backward needs padded sequences on that GPU.
bool uses_padding(const Gpu& gpu) {
    return backward_form(gpu.architecture) == BackwardForm::padded;
}

class Verdicts : public testing::Test {
protected:
    void SetUp() override { ASSERT_GT(cudnn_version(), 0U) << "no cuDNN 9.18 or later"; }
    static std::string verdict_of(const AttentionClass& c, const Gpu& gpu) {
        return testing_support::verdict(*attention_graph(c, gpu.architecture), properties(gpu));
    }
    /// The verdict on the graph after one change.
    static std::string changed(const AttentionClass& c, const Gpu& gpu,
                               const std::function<void(Json&)>& change) {
        Json description = testing_support::json_of(*attention_graph(c, gpu.architecture));
        change(description);
        try {
            return testing_support::verdict(*testing_support::graph_of(description, gpu.architecture),
                                            properties(gpu));
        } catch (const std::exception& error) {
            return std::string("throws: ") + error.what();
        }
    }
    static Json& tensor(Json& graph, AttentionArray which) {
        for (Json& candidate : graph["tensors"])
            if (candidate["uid"] == uid_of(which)) return candidate;
        throw std::out_of_range("no such tensor");
    }
};

TEST_F(Verdicts, EveryGraphIsSupported) {
    int graphs = 0;
    for (const Gpu& gpu : kAll)
        for (const bool backward : {false, true})
            for (const bool causal : {false, true})
                for (const auto& [heads, kv_heads] : {std::pair{16, 16}, {16, 8}, {6, 2}, {4, 1}})
                    for (const std::int64_t dim : {8, 16, 32, 64, 72, 80, 96, 128})
                        for (const std::int64_t max_seqlen : {128, 1024, 8192}) {
                            // Fewer cases for the other GPUs, because verdicts take time.
                            const bool selected = max_seqlen == 8192 && heads != kv_heads && heads != 4;
                            if (uses_padding(gpu) && !selected) continue;
                            const AttentionClass c = class_of(backward, causal, heads, kv_heads, dim,
                                                              max_seqlen, backward && uses_padding(gpu));
                            EXPECT_EQ(verdict_of(c, gpu), "") << describe(c, gpu);
                            ++graphs;
                        }
    EXPECT_EQ(graphs, 1088);
}

TEST_F(Verdicts, PlansAreBuiltWithinThePlannedWorkspace) {
    for (const Gpu& gpu : kAll)
        for (AttentionClass c :
             {class_of(false, true, 16, 8, 64, 128), class_of(false, false, 16, 16, 80, 2048),
              class_of(false, true, 32, 8, 128, 8192), class_of(true, true, 16, 8, 64, 128),
              class_of(true, true, 16, 16, 64, 2048), class_of(true, false, 16, 16, 80, 1024),
              class_of(true, true, 6, 2, 32, 256), class_of(true, true, 32, 8, 128, 8192)}) {
            if (uses_padding(gpu) && c.max_seqlen < 1024) continue;
            if (c.backward && uses_padding(gpu))
                c = class_of(true, c.causal, c.heads, c.kv_heads, c.dim, c.max_seqlen, true);
            std::int64_t workspace = -1;
            const auto graph = attention_graph(c, gpu.architecture);
            EXPECT_EQ(testing_support::verdict(*graph, properties(gpu), &workspace), "") << describe(c, gpu);
            const auto planned = static_cast<std::int64_t>(attention_workspace(c, support_of(gpu)));
            std::printf("%s: %ld bytes of workspace, %ld planned\n", describe(c, gpu).c_str(), workspace,
                        planned);
            EXPECT_LE(workspace, planned) << describe(c, gpu);
            EXPECT_GE(workspace, 0);
        }
}

/// Launches of ranks with few heads: as many rows and heads as 2048 rows with 32 heads.
TEST_F(Verdicts, PlansForMoreSequencesAreBuiltWithinThePlannedWorkspace) {
    for (const Gpu& gpu : {kH100, kB200, kA100})
        for (const bool backward : {false, true})
            for (const auto& [heads, sequences, max_seqlen] :
                 {std::tuple{1, 512, 128}, {4, 128, 128}, {4, 8, 2048}, {4, 2, 4096}}) {
                AttentionClass c =
                    class_of(backward, true, heads, 1, 128, max_seqlen, backward && uses_padding(gpu));
                c.sequences = sequences;
                std::int64_t workspace = -1;
                EXPECT_EQ(testing_support::verdict(*attention_graph(c, gpu.architecture), properties(gpu),
                                                   &workspace),
                          "")
                    << describe(c, gpu);
                EXPECT_LE(workspace, static_cast<std::int64_t>(attention_workspace(c, support_of(gpu))))
                    << describe(c, gpu);
            }
}

/// The linear backward pass has no limit of rows.
TEST_F(Verdicts, LongBackwardPassesAreBuiltInLinearMemory) {
    if (cudnn_version() < kLinearBackward) GTEST_SKIP() << "no cuDNN 9.25 or later";
    for (const std::int64_t dim : {64, 128})
        for (const std::int64_t max_seqlen : {2048, 8192, 32768, 131072}) {
            const AttentionClass c = class_of(true, true, 32, 8, dim, max_seqlen);
            std::int64_t workspace = -1;
            EXPECT_EQ(testing_support::verdict(*attention_graph(c, 90), properties(kH100), &workspace), "")
                << describe(c, kH100);
            const auto planned = static_cast<std::int64_t>(attention_workspace(c, support_of(kH100)));
            EXPECT_LE(workspace, planned) << describe(c, kH100);
            EXPECT_GT(workspace, planned / 2) << describe(c, kH100);
        }
}

TEST_F(Verdicts, PackedBackwardIsRejectedWhereUnsupported) {
    for (const Gpu& gpu : kPadded) {
        const AttentionClass c = class_of(true, true, 16, 8, 64, 1024);
        EXPECT_THAT(verdict_of(c, gpu), HasSubstr("not supported")) << describe(c, gpu);
        EXPECT_EQ(backward_form(gpu.architecture), BackwardForm::padded);
    }
    for (const Gpu& gpu : kPacked) EXPECT_EQ(backward_form(gpu.architecture), BackwardForm::packed);
}

TEST_F(Verdicts, HeadsOfUpTo256AreSupportedOnHopper) {
    for (const std::int64_t dim : {136, 192, 256})
        for (const bool backward : {false, true})
            for (const std::int64_t max_seqlen : {1024, 8192}) {
                const AttentionClass c = class_of(backward, true, 16, 8, dim, max_seqlen);
                std::int64_t workspace = -1;
                EXPECT_EQ(testing_support::verdict(*attention_graph(c, 90), properties(kH100), &workspace),
                          "")
                    << describe(c, kH100);
                EXPECT_LE(workspace, static_cast<std::int64_t>(attention_workspace(c, support_of(kH100))))
                    << describe(c, kH100);
            }
}

TEST_F(Verdicts, HeadsThatAreTooLargeOrOddAreRejected) {
    EXPECT_THAT(verdict_of(class_of(true, true, 16, 8, 136, 1024), kB200), HasSubstr("hidden_dim"));
    EXPECT_THAT(verdict_of(class_of(true, true, 16, 8, 264, 1024), kH100), HasSubstr("hidden_dim"));
    EXPECT_THAT(verdict_of(class_of(true, true, 16, 8, 20, 1024), kH100), HasSubstr("validate"));
    EXPECT_THAT(verdict_of(class_of(false, true, 16, 5, 64, 1024), kH100), HasSubstr("validate"));
}

TEST_F(Verdicts, GraphsWithOneErrorAreRejected) {
    for (const Gpu& gpu : kAll) {
        const AttentionClass forward = class_of(false, true, 16, 8, 64, 1024),
                             backward = class_of(true, true, 16, 8, 64, 1024, uses_padding(gpu));
        for (const AttentionClass& c : {forward, backward}) {
            SCOPED_TRACE(describe(c, gpu));
            EXPECT_EQ(changed(c, gpu, [](Json&) {}), "");
            if (!c.padded) {
                const auto offsets = [](Json& g) {
                    tensor(g, AttentionArray::q_offsets)["data_type"] = "FLOAT";
                };
                EXPECT_NE(changed(c, gpu, offsets), "");
            }
            EXPECT_NE(changed(c, gpu, [](Json& g) { tensor(g, AttentionArray::q)["stride"][3] = 2; }), "");
            EXPECT_NE(changed(c, gpu, [](Json& g) { tensor(g, AttentionArray::q)["data_type"] = "DOUBLE"; }),
                      "");
            EXPECT_NE(changed(c, gpu, [](Json& g) { g["nodes"][0]["inputs"].erase("SEQ_LEN_KV"); }), "");
            EXPECT_NE(changed(c, gpu, [](Json& g) { g["nodes"][0]["padding_mask"] = false; }), "");
        }
        EXPECT_NE(changed(backward, gpu, [](Json& g) { g["nodes"][0]["inputs"].erase("Stats"); }), "");
        EXPECT_NE(changed(forward, gpu, [](Json& g) { g["nodes"][0]["outputs"].erase("Stats"); }), "");
    }
}

/// Older versions support padded statistics by sequence and head only.
TEST_F(Verdicts, PaddedStatisticsByRowAreRejected) {
    if (cudnn_version() >= kLinearBackward) GTEST_SKIP() << "cuDNN 9.25 or later";
    for (const Gpu& gpu : kPadded) {
        const AttentionClass c = class_of(true, true, 16, 8, 64, 1024, true);
        EXPECT_THAT(changed(c, gpu,
                            [](Json& g) {
                                Json& stride = tensor(g, AttentionArray::lse)["stride"];
                                stride[1] = 1;
                                stride[2] = 16;
                            }),
                    HasSubstr("packed BHSD"))
            << describe(c, gpu);
    }
}

}  // namespace
}  // namespace maestro::backend
