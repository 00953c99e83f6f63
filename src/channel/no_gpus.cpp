// The transports of GPUs, in a build without CUDA.
#include "base/check.hpp"
#include "channel/transport.hpp"

namespace maestro::channel {

std::unique_ptr<Transport> make_gpu_transport(std::unique_ptr<Transport>, const GpuEnd& end, std::string&) {
    MAESTRO_FAIL("edge {}: rows of a GPU, of none", end.edge);
}

std::unique_ptr<Transport> make_direct_transport(comm::Communicator, DirectEnd end) {
    MAESTRO_FAIL("edge {}: rows of a GPU, of none", end.edge);
}

std::unique_ptr<Transport> make_gpu_local(const Backends&, std::size_t, std::size_t) {
    MAESTRO_FAIL("rows of a GPU, of none");
}

}  // namespace maestro::channel
