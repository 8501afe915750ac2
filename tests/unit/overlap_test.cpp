#include "overlap.hpp"

#include <gtest/gtest.h>
#include <random>
#include <set>

namespace flashomp {
namespace {

std::set<std::int64_t> addresses(const ConstTensorView& view)
{
    std::set<std::int64_t> all;
    const auto base = reinterpret_cast<std::intptr_t>(view.data);
    for (std::int64_t i = 0; i < view.shape[0]; ++i) {
        for (std::int64_t j = 0; j < view.shape[1]; ++j) {
            for (std::int64_t k = 0; k < view.shape[2]; ++k) {
                all.insert(base + 4 * (i * view.strides[0] + j * view.strides[1] + k * view.strides[2]));
            }
        }
    }
    return all;
}

TEST(Overlap, AgreesWithEnumerationForViewsOfOneLayout)
{
    std::vector<float> memory(4000);
    std::mt19937 random(1);
    const auto pick = [&](std::int64_t low, std::int64_t high) {
        return std::uniform_int_distribution<std::int64_t>(low, high)(random);
    };
    int found = 0;
    for (int round = 0; round < 3000; ++round) {
        const std::int64_t row = pick(4, 12);
        const std::int64_t plane = row * pick(3, 8);
        const auto view = [&] {
            return ConstTensorView(memory.data() + pick(0, 100), DType::float32,
                                   {pick(1, 4), pick(1, plane / row), pick(1, row)}, {plane, row, 1});
        };
        const ConstTensorView a = view();
        const ConstTensorView b = view();
        const std::set<std::int64_t> in_a = addresses(a);
        bool shared = false;
        for (const std::int64_t address : addresses(b)) {
            shared = shared || in_a.count(address) > 0;
        }
        // Exact for equal extents; for different ones it may only err towards "overlap".
        if (a.shape == b.shape) {
            EXPECT_EQ(overlap(a, b), shared);
        } else if (shared) {
            EXPECT_TRUE(overlap(a, b));
        }
        found += shared ? 1 : 0;
    }
    EXPECT_GT(found, 500);
    EXPECT_LT(found, 2900);
}

TEST(Overlap, SlicesOfAPackedTensorDoNotOverlap)
{
    std::vector<float> memory(2 * 10 * 3 * 8);
    const auto slice = [&](int which) {
        return ConstTensorView(memory.data() + 8 * which, DType::float32, {2, 10, 8}, {240, 24, 1});
    };
    EXPECT_FALSE(overlap(slice(0), slice(1)));
    EXPECT_FALSE(overlap(slice(2), slice(1)));
    EXPECT_TRUE(overlap(slice(1), slice(1)));
}

TEST(Overlap, BroadcastAxesOverlapThemselves)
{
    std::vector<float> memory(64);
    EXPECT_TRUE(overlaps_itself(ConstTensorView(memory.data(), DType::float32, {4, 8}, {0, 1})));
    EXPECT_TRUE(overlaps_itself(ConstTensorView(memory.data(), DType::float32, {4, 8}, {4, 1})));
    EXPECT_FALSE(overlaps_itself(ConstTensorView(memory.data(), DType::float32, {4, 8}, {8, 1})));
    EXPECT_FALSE(overlaps_itself(ConstTensorView(memory.data(), DType::float32, {1, 8}, {0, 1})));
    EXPECT_FALSE(overlaps_itself(ConstTensorView(nullptr, DType::float32, {4, 0}, {0, 0})));
}

} // namespace
} // namespace flashomp
