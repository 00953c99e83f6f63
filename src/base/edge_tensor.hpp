// What the rows of an edge are.
#pragma once

namespace maestro {

enum class EdgeTensor {
    embeddings,  ///< of a picture's tokens, in the width of the model that takes them
    hidden,      ///< the last states of a language model, in its own width
};

}  // namespace maestro
