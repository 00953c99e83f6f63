// How the ranks of a replica that share its sequences attend to each other's keys.
#pragma once

namespace maestro {

enum class ContextKind {
    ring,        ///< keys and values are exchanged by ring (Liu et al., "Ring attention", 2023)
    all_to_all,  ///< each takes the whole sequences of some heads (Jacobs et al., "DeepSpeed-Ulysses", 2023)
};

}  // namespace maestro
