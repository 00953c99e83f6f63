// A program that was built without NCCL.
#include "base/check.hpp"
#include "collective/ways.hpp"

namespace maestro::collective {

std::string nccl_version() {
    return {};
}

std::size_t nccl_peer_memory() {
    return 0;
}

std::unique_ptr<Group> make_nccl_group(comm::Communicator members, backend::Backend&, std::string) {
    MAESTRO_FAIL("{}: NCCL was chosen where there is none", members.name());
}

}  // namespace maestro::collective
