// How attention works where the ranks of a replica share its sequences (context parallelism).
#pragma once

namespace maestro {

enum class ContextKind {
    ring,        ///< keys and values are exchanged by ring (Liu et al., "Ring attention", 2023)
    all_to_all,  ///< each rank gets all rows of some heads (Jacobs et al., "DeepSpeed-Ulysses", 2023)
};

}  // namespace maestro
