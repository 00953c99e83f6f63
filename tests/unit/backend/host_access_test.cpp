// Transfers between the host and a device: every byte arrives, with the value that it had at the call.
#include "backend/host_access.hpp"

#include <numeric>

#include "support/tensors.hpp"

namespace maestro::backend {
namespace {

class HostAccess : public testing_support::Tensors {
protected:
    /// Returns a list that is different for each `number`.
    static std::vector<float> numbers(std::size_t size, int number) {
        std::vector<float> list(size);
        std::iota(list.begin(), list.end(), static_cast<float>(1000 * number));
        return list;
    }
    Tensor allocate(std::size_t size) {
        return arena_.allocate(DType::f32, {static_cast<std::int64_t>(size)});
    }
    std::vector<float> found(const Tensor& tensor) {
        const HostCopy copy(b_, tensor);
        const auto* const first = copy.tensor().as<float>();
        return {first, first + tensor.size()};
    }
};

// More uploads than the staging memory holds, whose sources are overwritten at once.
TEST_F(HostAccess, UploadCopiesTheValuesAtTheCall) {
    for (const std::size_t size : {std::size_t{1}, std::size_t{1000}, std::size_t{300'000}}) {
        std::vector<Tensor> tensors;
        for (int i = 0; i < 40; ++i) {
            std::vector<float> source = numbers(size, i);
            tensors.push_back(allocate(size));
            b_.upload(source.data(), tensors.back());
            std::fill(source.begin(), source.end(), -1.0f);
        }
        for (int i = 0; i < 40; ++i)
            EXPECT_EQ(found(tensors[static_cast<std::size_t>(i)]), numbers(size, i)) << size << ", " << i;
        arena_.reset();
    }
}

TEST_F(HostAccess, UploadMayBeLargerThanTheStagingMemory) {
    const std::vector<float> source = numbers(5'000'003, 0);
    const Tensor tensor = allocate(source.size());
    b_.upload(source.data(), tensor);
    EXPECT_EQ(found(tensor), source);
}

TEST_F(HostAccess, HostCopySeesEarlierOperations) {
    const std::vector<float> one{1}, two{2};
    for (int i = 0; i < 40; ++i) {
        const Tensor sum = allocate(1), factor = allocate(1);
        b_.upload(one.data(), sum);
        b_.upload(two.data(), factor);
        for (int k = 0; k < 5; ++k)  // sum += 2 * 2
            b_.gemm({.a = factor.data,
                     .b = factor.data,
                     .y = sum.data,
                     .m = 1,
                     .n = 1,
                     .k = 1,
                     .lda = 1,
                     .ldb = 1,
                     .ldy = 1,
                     .transpose_a = false,
                     .transpose_b = false,
                     .accumulate = true,
                     .in = DType::f32,
                     .out = DType::f32});
        EXPECT_EQ(found(sum), std::vector<float>{21});
    }
}

// Tensors of one chunk and of several, in all more than the reader copies ahead. A chunk must not change
// while it is read.
TEST_F(HostAccess, ReaderReturnsAllTensorsInOrder) {
    const std::vector<std::size_t> sizes = {1, 3'000'001, 0, 1 << 20, 7, 2'200'000, 64, 5};
    for (int round = 0; round < 4; ++round) {
        std::vector<Tensor> tensors;
        std::vector<std::vector<float>> expected;
        for (const std::size_t size : sizes) {
            expected.push_back(numbers(size, static_cast<int>(10 * tensors.size()) + round));
            tensors.push_back(allocate(size));
            b_.upload(expected.back().data(), tensors.back());
        }
        std::vector<std::vector<float>> found(sizes.size());
        const auto read = b_.read_to_host(tensors);
        std::size_t last = 0;
        for (DeviceToHostReader::Chunk chunk; read->next(chunk);) {
            std::vector<float>& list = found[chunk.tensor];
            EXPECT_TRUE(chunk.tensor >= last && chunk.end > chunk.begin) << chunk.tensor;
            EXPECT_EQ(static_cast<std::size_t>(chunk.begin), list.size()) << chunk.tensor;
            EXPECT_TRUE(!b_.shares_memory() || chunk.data == tensors[chunk.tensor].data);
            const auto* const first = static_cast<const float*>(chunk.data);
            list.insert(list.end(), first, first + (chunk.end - chunk.begin));
            if (last != chunk.tensor)
                this->found(tensors[last]);  // the device runs other operations meanwhile
            EXPECT_TRUE(std::equal(first, first + (chunk.end - chunk.begin), list.begin() + chunk.begin))
                << "written over: " << chunk.tensor << " from " << chunk.begin;
            last = chunk.tensor;
        }
        EXPECT_EQ(found, expected) << round;
        DeviceToHostReader::Chunk none;
        EXPECT_FALSE(read->next(none));
        arena_.reset();
    }
}

TEST_F(HostAccess, ReaderSeesEarlierOperations) {
    const Tensor tensor = allocate(1000);
    for (int i = 0; i < 40; ++i) {
        const std::vector<float> list = numbers(1000, i);
        b_.upload(list.data(), tensor);
        const auto read = b_.read_to_host({tensor});
        DeviceToHostReader::Chunk chunk;
        ASSERT_TRUE(read->next(chunk));
        const auto* const first = static_cast<const float*>(chunk.data);
        EXPECT_EQ(std::vector<float>(first, first + 1000), list) << i;
    }
}

// The reader may stop anywhere, for example because the disk is full.
TEST_F(HostAccess, ReaderNeedNotBeReadToTheEnd) {
    const Tensor tensor = allocate(10'000'000);
    for (int chunks = 0; chunks < 3; ++chunks) {
        const auto read = b_.read_to_host({tensor, tensor});
        DeviceToHostReader::Chunk chunk;
        for (int i = 0; i < chunks; ++i) read->next(chunk);
    }
    EXPECT_TRUE(b_.read_to_host({}) != nullptr);
}

TEST_F(HostAccess, ToDeviceSharesHostMemoryIfTheDeviceDoes) {
    const std::vector<std::int32_t> ids{3, 1, 4, 1, 5};
    const Tensor tensor = to_device(b_, ids, arena_);
    EXPECT_EQ(tensor.data == ids.data(), b_.shares_memory());
    std::vector<std::int32_t> there(ids.size());
    b_.download(tensor, there.data());
    EXPECT_EQ(there, ids);
    EXPECT_EQ(to_device(b_, std::vector<float>{}, arena_).size(), 0);
}

TEST_F(HostAccess, SetElementsWritesTheTensor) {
    const Tensor tensor = allocate(300'000);
    for (int i = 0; i < 20; ++i) {
        set_elements<float>(b_, tensor, [&](float* to) {
            const std::vector<float> list = numbers(300'000, i);
            std::copy(list.begin(), list.end(), to);
        });
        EXPECT_EQ(found(tensor), numbers(300'000, i)) << i;
    }
}

}  // namespace
}  // namespace maestro::backend
