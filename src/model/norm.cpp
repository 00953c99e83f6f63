#include "model/norm.hpp"

#include "ops/dispatch.hpp"
#include "ops/layer_norm.hpp"
#include "ops/rms_norm.hpp"

namespace maestro::model {

Norm::Norm(backend::Backend& backend, LayerForm::Norm kind, double eps, parallel::ParameterStore& store,
           const std::string& name, std::int64_t width, bool trained)
    : backend_(backend),
      eps_(eps),
      weight_(&store.declare(name + ".weight", {width}, parallel::Init::ones, trained)),
      bias_(kind == LayerForm::Norm::layer
                ? &store.declare(name + ".bias", {width}, parallel::Init::zeros, trained)
                : nullptr) {}

Norm::Statistics Norm::allocate(std::int64_t rows, DType type, backend::Arena& arena) const {
    const DType statistics = ops::accumulate_type(type);
    Statistics of_rows;
    if (bias_) of_rows.mean = arena.allocate(statistics, {rows});
    of_rows.rstd = arena.allocate(statistics, {rows});
    return of_rows;
}

void Norm::forward(const Tensor& x, const Tensor& y, const Statistics& s) const {
    if (bias_)
        ops::layer_norm(backend_, x, weight_->weight, bias_->weight, y, s.mean, s.rstd, eps_);
    else
        ops::rms_norm(backend_, x, weight_->weight, y, s.rstd, eps_);
}

void Norm::backward(const Tensor& dy, const Tensor& x, const Statistics& s, const Tensor& dx, bool accumulate,
                    backend::Arena& scratch) const {
    if (bias_)
        ops::layer_norm_backward(backend_, dy, x, weight_->weight, s.mean, s.rstd, dx, weight_->gradient,
                                 bias_->gradient, accumulate, scratch);
    else
        ops::rms_norm_backward(backend_, dy, x, weight_->weight, s.rstd, dx, weight_->gradient, accumulate,
                               scratch);
}

}  // namespace maestro::model
