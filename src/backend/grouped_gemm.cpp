#include <algorithm>

#include "backend/backend.hpp"

namespace maestro::backend {

namespace {

using Form = Backend::GroupedGemm::Form;

template <class Pointer>
Pointer* advance(Pointer* base, std::int64_t elements, DType type) {
    using Byte = std::conditional_t<std::is_const_v<Pointer>, const std::byte, std::byte>;
    return static_cast<Byte*>(base) + static_cast<std::size_t>(elements) * size_of(type);
}

}  // namespace

Backend::Gemm Backend::GroupedGemm::of_group(std::size_t group) const {
    const std::int64_t first = begin[group], rows = begin[group + 1] - first;
    const std::int64_t weight = static_cast<std::int64_t>(group) * outputs * inputs;
    const bool forward = form == Form::output;
    if (form == Form::weight_gradient)
        return {.a = advance(a, first * outputs, in),
                .b = advance(b, first * inputs, in),
                .y = advance(y, weight, out),
                .m = outputs,
                .n = inputs,
                .k = rows,
                .lda = outputs,
                .ldb = inputs,
                .ldy = inputs,
                .transpose_a = true,
                .transpose_b = false,
                .accumulate = true,
                .in = in,
                .out = out};
    const std::int64_t k = forward ? inputs : outputs, n = forward ? outputs : inputs;
    return {.a = advance(a, first * k, in),
            .b = advance(b, weight, in),
            .y = advance(y, first * n, out),
            .m = rows,
            .n = n,
            .k = k,
            .lda = k,
            .ldb = inputs,
            .ldy = n,
            .transpose_a = false,
            .transpose_b = forward,
            .accumulate = false,
            .in = in,
            .out = out};
}

Work Backend::work_of(const GroupedGemm& g) {
    Work sum{.dtype = g.in, .kind = Work::Kind::grouped_gemm};
    const auto rows = static_cast<double>(g.begin.back());
    double groups = 0;
    for (std::size_t group = 0; group < g.groups(); ++group) {
        if (g.begin[group + 1] == g.begin[group]) continue;
        const Work of_group = work_of(g.of_group(group));
        sum.flops += of_group.flops;
        sum.bytes += of_group.bytes;
        groups += 1;
    }
    if (groups > 0) sum.side = std::min(rows / groups, static_cast<double>(std::min(g.inputs, g.outputs)));
    return sum;
}

}  // namespace maestro::backend
