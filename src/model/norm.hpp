// A normalization of rows with its parameters. Shape letters: T rows, C channels.
#pragma once

#include <string>

#include "model/module.hpp"

namespace maestro::model {

class Norm {
public:
    /// Declares "NAME.weight" and, for LayerNorm, "NAME.bias" of C = `width` in `store`. Each rank holds them
    /// whole, and its gradient is partial: it has normalized its local rows only. The backend outlives the
    /// object.
    Norm(backend::Backend& backend, LayerForm::Norm kind, double eps, parallel::ParameterStore& store,
         const std::string& name, std::int64_t width, bool trained);

    /// What backward() needs beside the input.
    struct Statistics {
        Tensor mean;  ///< [T], of LayerNorm
        Tensor rstd;  ///< [T]
    };
    Statistics allocate(std::int64_t rows, DType type, backend::Arena& arena) const;
    /// y[T, C] from x[T, C].
    void forward(const Tensor& x, const Tensor& y, const Statistics& statistics) const;
    /// dx[T, C] (+)= the gradient of x, and adds the gradients of the parameters. dx is not dy.
    void backward(const Tensor& dy, const Tensor& x, const Statistics& statistics, const Tensor& dx,
                  bool accumulate, backend::Arena& scratch) const;

private:
    backend::Backend& backend_;
    double eps_;
    const parallel::Parameter *weight_, *bias_;  ///< bias_: null for RMSNorm
};

}  // namespace maestro::model
