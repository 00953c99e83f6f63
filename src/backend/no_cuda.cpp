// The CUDA functions of a build without CUDA: there are no GPUs, so all but find_gpus() are unreachable.
#include "backend/device.hpp"
#include "backend/gpus.hpp"

namespace maestro::backend {

Gpus find_gpus() {
    return {0, "this program was built without CUDA (cmake -DMAESTRO_CUDA=ON)"};
}

std::string bus_of_gpu(int number) {
    MAESTRO_FAIL("GPU {} in a build without CUDA", number);
}

std::string identity_of_gpu(int number) {
    MAESTRO_FAIL("GPU {} in a build without CUDA", number);
}

LibraryMemory library_memory_of_gpu(int number, GemmOptions) {
    MAESTRO_FAIL("GPU {} in a build without CUDA", number);
}

std::string describe_gpu(int number) {
    MAESTRO_FAIL("GPU {} in a build without CUDA", number);
}

int count_streams() {
    return 0;
}

std::string describe_peers() {
    return {};
}

void open_context(const Device& device) {
    MAESTRO_FAIL("GPU {} in a build without CUDA", device.number);
}

std::size_t free_memory(const Device& device) {
    MAESTRO_FAIL("GPU {} in a build without CUDA", device.number);
}

AttentionSupport attention_support_of_gpu(int number) {
    MAESTRO_FAIL("GPU {} in a build without CUDA", number);
}

std::unique_ptr<Backend> make_cuda(int device, GemmOptions) {
    MAESTRO_FAIL("GPU {} in a build without CUDA", device);
}

}  // namespace maestro::backend
