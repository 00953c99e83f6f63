// The process groups of GPUs in a program that was built without CUDA.
#include "base/check.hpp"
#include "collective/implementations.hpp"

namespace maestro::collective {

std::unique_ptr<ProcessGroup> make_staged_group(comm::Communicator members, Nodes, backend::Backend&,
                                                std::string) {
    MAESTRO_FAIL("{}: tensors of a GPU in a program that was built without CUDA", members.name());
}

}  // namespace maestro::collective
