// Must not compile: `graph` may include headers of `base`, but not those of `comm` (test house.walls).
#include "base/error.hpp"
#include "graph/section_graph.hpp"
//
#include "comm/communicator.hpp"
