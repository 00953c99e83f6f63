// Does not compile: graph may use base, and does not see the headers of comm (test house.walls).
#include "base/error.hpp"
#include "graph/section_graph.hpp"
//
#include "comm/communicator.hpp"
