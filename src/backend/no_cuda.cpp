// The GPUs of a build without CUDA.
#include "backend/device.hpp"
#include "backend/gpus.hpp"

namespace maestro::backend {

Gpus find_gpus() {
    return {0, "this program was built without CUDA (cmake -DMAESTRO_CUDA=ON)"};
}

std::string bus_of_gpu(int number) {
    MAESTRO_FAIL("GPU {} of none", number);
}

std::string identity_of_gpu(int number) {
    MAESTRO_FAIL("GPU {} of none", number);
}

LibraryMemory library_memory_of_gpu(int number) {
    MAESTRO_FAIL("GPU {} of none", number);
}

std::string describe_gpu(int number) {
    MAESTRO_FAIL("GPU {} of none", number);
}

std::string describe_peers() {
    return {};
}

void open_context(const Device& device) {
    MAESTRO_FAIL("GPU {} of none", device.number);
}

std::size_t free_memory(const Device& device) {
    MAESTRO_FAIL("GPU {} of none", device.number);
}

int attention_architecture_of_gpu(int number) {
    MAESTRO_FAIL("GPU {} of none", number);
}

std::unique_ptr<Backend> make_cuda(int device, GemmOptions) {
    MAESTRO_FAIL("GPU {} of none", device);
}

}  // namespace maestro::backend
