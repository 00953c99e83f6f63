// A backend that computes nothing, like meta, and counts each kind of operation separately instead of all
// together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "backend/backend.hpp"

namespace maestro::bench {

class Ledger final : public backend::Backend {
public:
    struct Line {
        std::string operation;
        std::int64_t m = 0, n = 0, k = 0;  ///< of a GEMM
        double flops = 0, bytes = 0;       ///< of one call, each tensor once per read and once per write
        bool tensor_cores = false;         ///< whether it consists of GEMMs
        DType dtype = DType::f32;
        auto operator<=>(const Line&) const = default;
    };
    using Lines = std::map<Line, std::int64_t>;  ///< the number of calls of each line

    std::string describe() const override { return "ledger: counts by operation, computes nothing"; }
    bool computes() const override { return false; }
    int threads() const override { return 1; }
    void* allocate(std::size_t) override { return reinterpret_cast<void*>(64); }
    void release(void*) noexcept override {}
    bool shares_memory() const override { return false; }
    void upload(const void*, const Tensor&) override {}
    void download(const Tensor&, void*) override {}
    std::unique_ptr<backend::DeviceToHostReader> read_to_host(std::vector<Tensor>) override {
        return backend::read_in_place({});
    }
    void gemm(const Gemm& g) override {
        const char* const form = g.transpose_a ? "dw += dy^T x" : (g.transpose_b ? "y = x w^T" : "dx = dy w");
        backend::Work work = work_of(g);
        // Backend::work_of() counts a result that is added to as one that is overwritten.
        if (g.accumulate) work.bytes += static_cast<double>(g.m * g.n) * static_cast<double>(size_of(g.out));
        ++lines_[{form, g.m, g.n, g.k, work.flops, work.bytes, true, g.in}];
    }
    void grouped_gemm(const GroupedGemm& g) override {
        const bool weights = g.form == GroupedGemm::Form::weight_gradient;
        const std::string form = weights                               ? "dw += dy^T x"
                                 : g.form == GroupedGemm::Form::output ? "y = x w^T"
                                                                       : "dx = dy w";
        backend::Work work = work_of(g);
        double groups = 0;
        for (std::size_t i = 0; i < g.groups(); ++i) groups += g.begin[i + 1] > g.begin[i] ? 1 : 0;
        if (weights)  // as above
            work.bytes +=
                groups * static_cast<double>(g.inputs * g.outputs) * static_cast<double>(size_of(g.out));
        const std::int64_t rows = g.begin.back();
        Line line{form + ", grouped", rows, g.outputs, g.inputs, work.flops, work.bytes, true, g.in};
        if (g.form == GroupedGemm::Form::input_gradient) std::swap(line.n, line.k);
        if (weights) line.m = g.outputs, line.n = g.inputs, line.k = rows;
        ++lines_[line];
    }
    bool gemm_with(const Gemm& g, const Epilogue& epilogue) override {
        if (epilogue.addend == nullptr) return false;
        gemm(g);
        return true;
    }

    /// Returns the lines since the last call.
    Lines take() { return std::exchange(lines_, {}); }

protected:
    /// Called by Backend::count(), so for every operation except GEMMs.
    double seconds_of(const backend::Work& work) const override {
        ++lines_[{name_of(work), 0, 0, 0, work.flops, work.bytes, work.side > 0, work.dtype}];
        return 0;
    }

private:
    /// Returns rms_norm for "void maestro::ops::rms_norm(...)".
    static std::string name_of(const backend::Work& work) {
        const std::string_view whole = work.where.function_name();
        const std::string_view head = whole.substr(0, whole.find('('));
        return std::string(head.substr(head.find_last_of(": ") + 1));
    }
    mutable Lines lines_;
};

}  // namespace maestro::bench
