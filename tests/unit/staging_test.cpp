// Copies of host tensors for a device, up to where a device is needed.
#include "staging.hpp"

#include <gtest/gtest.h>

#include <array>
#include <stdexcept>

namespace flashomp {
namespace {

TEST(Staging, RefusesATensorThatNoMemoryWasPlannedFor)
{
    const Space device{.kind = Space::Kind::openmp, .device = 0};
    std::array<float, 4> values{};
    const TensorView view = TensorView::contiguous(values.data(), DType::float32, {4});
    StagingBytes bytes;
    bytes.add(view, device);
    std::array<std::byte, 1024> memory{};
    ASSERT_LE(2 * bytes.memory, std::ssize(memory)); // so that a copy beyond what was planned would be seen by nobody
    Staging staging(device, memory.data(), bytes, nullptr);
    EXPECT_EQ(staging.output(view).data, memory.data());
    EXPECT_THROW(static_cast<void>(staging.output(view)), std::logic_error);
    EXPECT_THROW(static_cast<void>(staging.input(view)), std::logic_error);
}

TEST(Staging, CopiesNothingOnTheHost)
{
    std::array<float, 4> values{};
    const TensorView view = TensorView::contiguous(values.data(), DType::float32, {4});
    StagingBytes bytes;
    bytes.add(view, Space{});
    EXPECT_EQ(bytes.memory, 0);
    Staging staging(Space{}, nullptr, bytes, nullptr);
    EXPECT_EQ(staging.input(view).data, values.data());
    EXPECT_EQ(staging.output(view).data, values.data());
}

} // namespace
} // namespace flashomp
