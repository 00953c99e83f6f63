// Loss and all gradients against those of PyTorch (tests/golden/make_golden.py).
#include <gmock/gmock.h>

#include <fstream>
#include <map>

#include "unit/model/model_fixture.hpp"

namespace maestro::model::test {
namespace {

struct Golden {
    double loss = 0;
    std::map<std::string, std::vector<double>> gradients;
};

Golden read(const std::string& name) {
    std::ifstream in(MAESTRO_SOURCE_DIR "/tests/golden/" + name + ".txt");
    Golden golden;
    std::string key;
    in >> key >> golden.loss;
    std::size_t count = 0;
    while (in >> key >> count) {
        auto& list = golden.gradients[key];
        list.resize(count);
        for (double& value : list) in >> value;
    }
    EXPECT_TRUE(in.eof());
    return golden;
}

struct Case {
    Job::Kind kind;
    DType type;
    Recompute recompute;
    bool other_forms = false;
};

class GoldenTest : public testing::TestWithParam<Case> {};

TEST_P(GoldenTest, LossAndEveryGradient) {
    const Case& c = GetParam();
    const Golden golden = read(c.other_forms ? "vlm_forms" : c.kind == Job::Kind::vlm ? "vlm" : "distill");
    const double tolerance = c.type == DType::f64 ? 1e-7 : c.type == DType::f32 ? 1e-5 : 5e-2;
    Job job(c.kind, c.type, c.recompute, 1,
            c.other_forms ? use_other_forms : std::function<void(ModelSpec&)>{});
    const Result result = job.run();
    EXPECT_NEAR(result.loss, golden.loss, golden.loss * tolerance);
    std::size_t compared = 0;
    const auto compare = [&](const std::string& section, const Module& module) {
        for (const Parameter& p : module.parameters().parameters()) {
            if (!p.trainable) continue;
            SCOPED_TRACE(section + "." + p.name);
            const auto at = golden.gradients.find(section + "." + p.name);
            ASSERT_NE(at, golden.gradients.end());
            const std::vector<double> got = testing_support::read_elements(job.backend(), p.gradient);
            ASSERT_EQ(got.size(), at->second.size());
            double norm = 0, difference = 0;
            for (std::size_t i = 0; i < got.size(); ++i) {
                norm += at->second[i] * at->second[i];
                difference += (got[i] - at->second[i]) * (got[i] - at->second[i]);
            }
            EXPECT_GT(norm, 0);
            EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm));
            ++compared;
        }
    };
    compare(job.first_name, *job.first);
    compare(job.last_name, *job.last);
    EXPECT_EQ(compared, golden.gradients.size());
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTest,
                         testing::Values(Case{Job::Kind::vlm, DType::f64, Recompute::none},
                                         Case{Job::Kind::vlm, DType::f64, Recompute::layer},
                                         Case{Job::Kind::vlm, DType::f64, Recompute::cheap},
                                         Case{Job::Kind::vlm, DType::f32, Recompute::none},
                                         Case{Job::Kind::vlm, DType::f32, Recompute::layer},
                                         Case{Job::Kind::vlm, DType::f64, Recompute::none, true},
                                         Case{Job::Kind::vlm, DType::f64, Recompute::cheap, true},
                                         Case{Job::Kind::vlm, DType::f32, Recompute::layer, true},
                                         Case{Job::Kind::distill, DType::f64, Recompute::none},
                                         Case{Job::Kind::distill, DType::f64, Recompute::layer},
                                         Case{Job::Kind::distill, DType::f32, Recompute::none},
                                         Case{Job::Kind::distill, DType::f32, Recompute::layer},
                                         Case{Job::Kind::distill, DType::bf16, Recompute::none}),
                         [](const testing::TestParamInfo<Case>& each) {
                             return std::string(each.param.kind == Job::Kind::vlm ? "vlm" : "distill") +
                                    (each.param.other_forms ? "_forms_" : "_") + name_of(each.param.type) +
                                    (each.param.recompute == Recompute::none    ? ""
                                     : each.param.recompute == Recompute::cheap ? "_recompute_cheap"
                                                                                : "_recompute");
                         });

}  // namespace
}  // namespace maestro::model::test
