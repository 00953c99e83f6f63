// The NCCL process group in a program that was built without NCCL.
#include "base/check.hpp"
#include "collective/implementations.hpp"

namespace maestro::collective {

std::unique_ptr<ProcessGroup> make_nccl_group(comm::Communicator members, Nodes, backend::Backend&, Sums,
                                              std::string) {
    MAESTRO_FAIL("{}: NCCL was chosen in a program that was built without it", members.name());
}

}  // namespace maestro::collective
