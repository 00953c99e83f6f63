#include "plan/robustness.hpp"

#include <algorithm>
#include <array>

namespace maestro::plan {

namespace {

void halve(config::Link& link) {
    link.bandwidth /= 2;
    link.collective_bandwidth /= 2;
}

/// Rates that are least certain where nothing was measured.
struct WrongRates {
    const char* what;
    void (*change)(config::Cluster& cluster);
};
constexpr std::array kWrongRates = {
    WrongRates{"half the bandwidth between nodes",
               [](config::Cluster& c) {
                   halve(c.network);
                   c.collectives = c.collectives.slower(true, 2);
               }},
    WrongRates{"half the bandwidth within a node",
               [](config::Cluster& c) {
                   halve(c.node);
                   c.collectives = c.collectives.slower(false, 2);
               }},
    WrongRates{"twice the overhead of an operation",
               [](config::Cluster& c) {
                   c.device.operation_s *= 2;
                   c.device.launch_s *= 2;
               }},
    WrongRates{"half the rate of small GEMMs",
               [](config::Cluster& c) {
                   constexpr double kSmall = 512;  // the smallest dimension
                   for (auto* rates : {&c.device.gemm_rates, &c.device.grouped_rates})
                       for (config::GemmRate& rate : *rates)
                           if (rate.side < kSmall) {
                               rate.fp32_flops /= 2;
                               rate.bf16_flops /= 2;
                           }
               }},
};

}  // namespace

void find_worst_losses(const Subject& subject, std::vector<Plan>& plans, const std::string& policy,
                       const PaidRanks& paid) {
    if (plans.size() < 2) return;
    for (Plan& plan : plans) plan.worst = 0;
    for (const WrongRates& wrong : kWrongRates) {
        workload::Estimates estimates(subject.table, subject.probes);
        const Subject wrongly = subject.with(estimates);
        std::vector<double> rank_seconds;
        for (Plan plan : plans) {
            wrong.change(*plan.scenario.cluster);
            const int ranks = paid(plan);
            rank_seconds.push_back(ranks * simulated(wrongly, std::move(plan), policy).step_s);
        }
        const double least = *std::min_element(rank_seconds.begin(), rank_seconds.end());
        for (std::size_t k = 0; k < plans.size(); ++k)
            if (const double loss = rank_seconds[k] / least - 1; loss > *plans[k].worst) {
                plans[k].worst = loss;
                plans[k].worst_rates = wrong.what;
            }
    }
}

void most_robust_first(std::vector<Plan>& plans, const PaidRanks& paid) {
    if (plans.empty()) return;
    const double least = paid(plans.front()) * plans.front().step_s;  // the best is the first
    const auto loss_of = [&](const Plan& plan) {
        return std::max(plan.worst.value_or(0), paid(plan) * plan.step_s / least - 1);
    };
    std::stable_sort(plans.begin(), plans.end(),
                     [&](const Plan& a, const Plan& b) { return loss_of(a) < loss_of(b); });
}

}  // namespace maestro::plan
