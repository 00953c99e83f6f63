// The ways of GPUs, in a build without CUDA.
#include "base/check.hpp"
#include "collective/ways.hpp"

namespace maestro::collective {

std::unique_ptr<Group> make_staged_group(comm::Communicator members, backend::Backend&, std::string) {
    MAESTRO_FAIL("{}: tensors of a GPU, of none", members.name());
}

}  // namespace maestro::collective
