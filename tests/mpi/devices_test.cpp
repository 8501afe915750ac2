// Which GPU a rank takes, and what MPI is given of its memory.
#include "devices.hpp"
#include "messages.hpp"

#include "elements_params.hpp"
#include "launch/launch_elements.hpp"

#include "flashomp/device.hpp"

#include <cstdlib>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

namespace flashomp::mpi {
namespace {

TEST(DeviceOfRank, IsItsNumberOnTheNode)
{
    const auto device = [](int rank, int devices, Device given = {}) {
        Options options;
        options.device = given;
        return with_device_of_rank(options, rank, devices).device;
    };
    const auto gpu = [](int index) { return Device{Device::Kind::gpu, index}; };
    EXPECT_EQ(device(0, 0), Device{});
    EXPECT_EQ(device(3, 1), Device{}); // the first one that is found
    EXPECT_EQ(device(0, 4), gpu(0));
    EXPECT_EQ(device(3, 4), gpu(3));
    EXPECT_EQ(device(5, 4), gpu(1));
    EXPECT_EQ(device(3, 4, gpu(2)), gpu(2)); // the caller's
    EXPECT_EQ(device(3, 4, {Device::Kind::host, 0}), (Device{Device::Kind::host, 0}));
}

TEST(DeviceOfRank, IsLeftOpenOnTheHost)
{
    Options options;
    options.machine = Machine::host;
    EXPECT_EQ(with_device_of_rank(options, 1), options);
    options = {};
    options.backend = Backend::reference;
    EXPECT_EQ(with_device_of_rank(options, 1), options);
    if (devices(Backend::automatic).size() < 2) {
        EXPECT_EQ(with_device_of_rank({}, 1), Options{});
    }
}

TEST(GpuAware, IsWhatTheEnvironmentSays)
{
    const char* const given = std::getenv("FLASHOMP_MPI_GPU_AWARE");
    const std::string kept = given != nullptr ? given : "";
    setenv("FLASHOMP_MPI_GPU_AWARE", "1", 1);
    EXPECT_TRUE(mpi_takes_device_memory());
    setenv("FLASHOMP_MPI_GPU_AWARE", "0", 1);
    EXPECT_FALSE(mpi_takes_device_memory());
    setenv("FLASHOMP_MPI_GPU_AWARE", "yes", 1);
    EXPECT_THROW(static_cast<void>(mpi_takes_device_memory()), Error);
    given != nullptr ? setenv("FLASHOMP_MPI_GPU_AWARE", kept.c_str(), 1) : unsetenv("FLASHOMP_MPI_GPU_AWARE");
}

/// Elements on their way between tensors with gaps, whatever can be taken together.
TEST(Elements, AreWhereAndWhatTheyShouldBe)
{
    std::mt19937 random(std::random_device{}());
    const auto one_of = [&](std::int64_t most) { return std::uniform_int_distribution<std::int64_t>(1, most)(random); };
    for (int round = 0; round < 200; ++round) {
        std::array<std::int64_t, 4> shape{one_of(3), one_of(3), one_of(4), one_of(round % 10 == 0 ? 3000 : 20)};
        const auto strides = [&](bool has_gaps) {
            std::array<std::int64_t, 4> all{};
            std::int64_t stride = 1;
            for (std::size_t axis = 4; axis-- > 0;) {
                all.at(axis) = stride;
                stride = stride * shape.at(axis) + (has_gaps ? one_of(3) - 1 : 0);
            }
            return std::pair{all, stride};
        };
        const auto [from_strides, from_size] = strides(round % 2 == 0);
        const auto [to_strides, to_size] = strides(round % 3 == 0);
        std::vector<float> from(static_cast<std::size_t>(from_size)), to(static_cast<std::size_t>(to_size), -7.0F);
        for (float& x : from) {
            x = std::uniform_real_distribution<float>(-2.0F, 2.0F)(random);
        }
        const bool adds = round % 5 == 1;
        std::vector<float> expected = to;
        for (std::int64_t i = 0; i < shape[0] * shape[1] * shape[2] * shape[3]; ++i) {
            const std::array<std::int64_t, 4> at{i / shape[3] / shape[2] / shape[1], i / shape[3] / shape[2] % shape[1],
                                                 i / shape[3] % shape[2], i % shape[3]};
            std::int64_t source = 0, target = 0;
            for (std::size_t axis = 0; axis < 4; ++axis) {
                source += at.at(axis) * from_strides.at(axis);
                target += at.at(axis) * to_strides.at(axis);
            }
            float& there = expected[static_cast<std::size_t>(target)];
            there = from[static_cast<std::size_t>(source)] + (adds ? there : 0.0F);
        }
        const ConstTensorView from_view(from.data(), DType::float32, std::span<const std::int64_t>(shape),
                                        std::span<const std::int64_t>(from_strides));
        const TensorView to_view(to.data(), DType::float32, std::span<const std::int64_t>(shape),
                                 std::span<const std::int64_t>(to_strides));
        offload::elements(
            elements_params(adds ? offload::ElementsWork::add : offload::ElementsWork::copy, from_view, to_view), 2);
        EXPECT_EQ(to, expected);
    }
}

} // namespace
} // namespace flashomp::mpi
