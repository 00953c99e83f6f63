// What stands for the transports of GPUs in a program that was built without CUDA.
#include "base/check.hpp"
#include "transport/transport.hpp"

namespace maestro::transport {

std::unique_ptr<Transport> make_gpu_transport(std::unique_ptr<Transport>, const GpuEnd& end, std::string&) {
    MAESTRO_FAIL("edge {}: a GPU's rows in a program that was built without CUDA", end.edge);
}

std::unique_ptr<Transport> make_direct_transport(comm::Communicator, DirectEnd end) {
    MAESTRO_FAIL("edge {}: a GPU's rows in a program that was built without CUDA", end.edge);
}

std::unique_ptr<Transport> make_gpu_local(const Backends&, std::size_t, std::size_t) {
    MAESTRO_FAIL("a GPU's rows in a program that was built without CUDA");
}

}  // namespace maestro::transport
