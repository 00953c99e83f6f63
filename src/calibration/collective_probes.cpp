#include "calibration/collective_probes.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "calibration/quantiles.hpp"
#include "collective/process_group.hpp"
#include "comm/environment.hpp"
#include "ops/elementwise.hpp"

namespace maestro::calibration {

namespace {

constexpr double kSeriesS = 0.004;  ///< of one series of calls, about
constexpr int kSeries = 3, kMostCalls = 100;

/// 2, 4, 8 and so on below `most`, and `most`; nothing below 2.
std::vector<int> powers_up_to(int most) {
    std::vector<int> numbers;
    for (int n = 2; n < most; n *= 2) numbers.push_back(n);
    if (most >= 2) numbers.push_back(most);
    return numbers;
}

/// Collectives of one group. All its ranks call the same functions.
class GroupProbe {
public:
    /// `agreeing` has the ranks of the group as well: they agree there on the number of calls.
    GroupProbe(comm::Communicator ranks, comm::Communicator agreeing, backend::Backend& backend,
               backend::Arena& memory)
        : agreeing_(std::move(agreeing)), backend_(backend), memory_(memory) {
        collective::Nodes nodes = collective::find_nodes(ranks);
        group_ = collective::make_process_group(std::move(ranks), backend, collective::Sums::automatic,
                                                std::move(nodes));
    }

    /// Returns the seconds of a collective of so many elements for each rank.
    double seconds_of(collective::CollectiveKind kind, std::int64_t elements) {
        const backend::ArenaScope scope(memory_);
        const int n = group_->size();
        const std::vector<std::int64_t> rows(static_cast<std::size_t>(n), elements);
        const Tensor whole = zeros(n * elements);
        const Tensor local = whole.slice(group_->rank() * elements, (group_->rank() + 1) * elements);
        constexpr auto kSum = ops::Reduction::sum;
        switch (kind) {
            case collective::CollectiveKind::all_gather:
                return time(whole, [&] { group_->launch_all_gather(whole, rows).wait(); });
            case collective::CollectiveKind::reduce_scatter:
                return time(whole,
                            [&] { group_->reduce_scatter(backend_, whole, local, rows, kSum, memory_); });
            case collective::CollectiveKind::all_reduce:
                return time(whole, [&] { group_->all_reduce(backend_, whole, kSum, memory_); });
            case collective::CollectiveKind::all_to_all:
                break;
        }
        const Tensor received = zeros(n * elements);
        return time(received, [&] { group_->all_to_all(backend_, whole, rows, received, rows); });
    }

private:
    Tensor zeros(std::int64_t rows) {
        const Tensor made = memory_.allocate(DType::f32, {rows, 1});
        ops::zero(backend_, made);
        return made;
    }
    /// The best of several series of calls, which write `result`.
    double time(const Tensor& result, const std::function<void()>& call) {
        const auto series = [&](int calls) {
            const double start_s = comm::now_s();
            for (int i = 0; i < calls; ++i) call();
            wait(result);
            return (comm::now_s() - start_s) / calls;
        };
        series(1);
        const double first_s = agreeing_.max(series(1));
        const int calls = static_cast<int>(
            std::clamp(std::ceil(kSeriesS / std::max(first_s, 1e-9)), 1.0, 1.0 * kMostCalls));
        double best = first_s;
        for (int i = 0; i < kSeries; ++i) best = std::min(best, agreeing_.max(series(calls)));
        return best;
    }
    /// With NCCL the device waits for an operation, and the host for the device by a download.
    void wait(const Tensor& result) {
        std::array<std::byte, sizeof(float)> begin{};
        if (!backend_.shares_memory()) backend_.download(result.slice(0, 1), begin.data());
    }

    comm::Communicator agreeing_;
    backend::Backend& backend_;
    backend::Arena& memory_;
    std::unique_ptr<collective::ProcessGroup> group_;
};

}  // namespace

std::vector<ProbedGroups> probed_groups(std::span<const int> node_of) {
    std::map<int, int> number, ranks_on;
    std::vector<int> position;  // by rank, on its node
    for (const int node : node_of) {
        number.try_emplace(node, static_cast<int>(number.size()));
        position.push_back(ranks_on[node]++);
    }
    int most = 1, least = static_cast<int>(node_of.size());
    for (const auto& [node, ranks] : ranks_on) {
        most = std::max(most, ranks);
        least = std::min(least, ranks);
    }
    const int nodes = static_cast<int>(number.size());
    std::vector<ProbedGroups> forms;
    /// group(node, position, ranks of the node): -1 for none
    const auto add = [&](int ranks, int on_nodes, const auto& group) {
        ProbedGroups& form = forms.emplace_back(ProbedGroups{ranks, on_nodes, {}});
        for (std::size_t r = 0; r < node_of.size(); ++r)
            form.group_of.push_back(group(number[node_of[r]], position[r], ranks_on[node_of[r]]));
    };
    for (const int n : powers_up_to(most))
        add(n, 1, [&](int node, int at, int here) { return at < here / n * n ? node * most + at / n : -1; });
    for (const int m : powers_up_to(nodes)) {
        const int used = nodes / m * m;
        add(m, m,
            [&](int node, int at, int) { return node < used && at < least ? node / m * least + at : -1; });
        if (least > 1)
            add(m * least, m,
                [&](int node, int at, int) { return node < used && at < least ? node / m : -1; });
    }
    return forms;
}

std::vector<collective::CollectiveRow> measure_collectives(const comm::Communicator& world,
                                                           std::span<const int> node_of,
                                                           backend::Backend& backend, backend::Arena& memory,
                                                           std::span<const std::int64_t> sizes) {
    std::vector<collective::CollectiveRow> rows;
    for (const ProbedGroups& form : probed_groups(node_of)) {
        const int group = form.group_of[static_cast<std::size_t>(world.rank())];
        comm::Communicator ranks = world.split(group, world.rank(), "measured ranks"),
                           agreeing = world.split(group, world.rank(), "agreement of measured ranks");
        std::unique_ptr<GroupProbe> probe;
        if (group >= 0)
            probe = std::make_unique<GroupProbe>(std::move(ranks), std::move(agreeing), backend, memory);
        for (std::size_t kind = 0; kind < collective::kCollectiveNames.size(); ++kind)
            for (const std::int64_t size : sizes) {
                const std::int64_t elements =
                    std::max<std::int64_t>(size / form.ranks / static_cast<std::int64_t>(sizeof(float)), 1);
                collective::CollectiveRow row{
                    .kind = static_cast<collective::CollectiveKind>(kind),
                    .ranks = form.ranks,
                    .nodes = form.nodes,
                    .bytes = static_cast<double>(elements * form.ranks) * sizeof(float)};
                world.barrier();
                std::vector<double> seconds =
                    world.allgather(probe ? probe->seconds_of(row.kind, elements) : -1.0);
                std::erase_if(seconds, [](double s) { return s < 0; });
                row.seconds = median(std::move(seconds));
                // Of more ranks than elements, small sizes are one.
                if (std::find_if(rows.begin(), rows.end(), [&](const auto& r) {
                        return r.kind == row.kind && r.ranks == row.ranks && r.nodes == row.nodes &&
                               r.bytes == row.bytes;
                    }) == rows.end())
                    rows.push_back(row);
            }
    }
    return rows;
}

}  // namespace maestro::calibration
