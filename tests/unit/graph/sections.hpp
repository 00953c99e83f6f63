// Sections for tests of the graph.
#pragma once

#include "graph/section_graph.hpp"

namespace maestro::graph {

inline Section section(const char* name, Layout layout, const char* colocate_with = "") {
    Section made;
    made.name = name;
    made.layout = layout;
    made.colocate_with = colocate_with;
    return made;
}

}  // namespace maestro::graph
