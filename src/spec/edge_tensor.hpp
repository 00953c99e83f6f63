// The kind of rows that an edge carries.
#pragma once

namespace maestro {

enum class EdgeTensor {
    embeddings,  ///< of items, in the width of the receiving model
    hidden,      ///< last hidden states of a language model, in its width
    stream,      ///< the residual stream between two pipeline stages of a section, in the width of its model
};

}  // namespace maestro
