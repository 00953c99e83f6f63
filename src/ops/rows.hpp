// Copies of whole rows by index, byte for byte, of any type. Shape letters: n indices, C columns.
#pragma once

#include "backend/backend.hpp"

namespace maestro::ops {

/// target[index[r]] = source[r] for source[n, C] and index[n] (i32), whose values all differ. On the CPU
/// throws Error(broken_invariant) for an index beyond the rows of the target.
void scatter_rows(backend::Backend& b, const Tensor& source, const Tensor& index, const Tensor& target);
/// target[r] = source[index[r]] for target[n, C] and index[n] (i32). Errors as above.
void gather_rows(backend::Backend& b, const Tensor& source, const Tensor& index, const Tensor& target);

}  // namespace maestro::ops
