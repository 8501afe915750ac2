// Nothing of size N x N is allocated: with ten times the sequence, no allocation of a call grows more than tenfold.
#include "count_allocations.hpp"
#include "support/attention_case.hpp"
#include "support/target.hpp"

#include "flashomp/prepared.hpp"

#include "workspace.hpp"

#include <algorithm>
#include <span>

namespace flashomp::testing {
namespace {

class Memory : public EveryTargetTest {
protected:
    struct Use {
        Allocations host;
        std::int64_t extra_bytes;
    };

    Use measure(std::int64_t n)
    {
        AttentionCase attention({1, 1, 1, n, n, 16, 16}, DType::float32, 51);
        attention.poison_outputs();
        reset_allocations();
        Options options = on_target({});
        options.threads = 2; // each has memory of its own
        const Report first = forward(attention.forward_args(), options);
        const Report second = backward(attention.backward_args(), options);
        const Allocations counted = allocations();
        return {counted, std::max(first.extra_bytes, second.extra_bytes)};
    }
};

INSTANTIATE_TEST_SUITE_P(Machines, Memory, ::testing::ValuesIn(targets()), target_name);

TEST_P(Memory, GrowsWithNAndNotWithItsSquare)
{
    constexpr std::int64_t small = 300;
    constexpr std::int64_t factor = 10;
    const Use few = measure(small);
    const Use many = measure(factor * small);
    EXPECT_LE(many.host.largest, factor * std::max<std::size_t>(few.host.largest, 1U << 16U));
    EXPECT_LE(many.host.total, factor * std::max<std::size_t>(few.host.total, 1U << 16U));
    EXPECT_LE(many.extra_bytes, factor * few.extra_bytes);
    // And in absolute numbers: one float32 score matrix would be 36 MB.
    EXPECT_LT(many.host.total, 4U << 20U);
    EXPECT_LT(many.extra_bytes, std::int64_t{4} << 20);
}

TEST_P(Memory, ExtraDeviceMemoryIsLseAndTwoFloatsARow)
{
    if (!target_.is_device) {
        GTEST_SKIP() << "tiles are in team-local memory on a device only";
    }
    AttentionCase attention({2, 3, 3, 500, 400, 64, 64}, DType::float32, 52);
    const auto [first, second] = attention.run(on_target({}));
    const std::int64_t rows = 2 * 3 * 500;
    EXPECT_EQ(first.extra_bytes, 4 * rows);
    EXPECT_EQ(second.extra_bytes, 12 * rows);
}

TEST_P(Memory, OneKeyHeadForManyQueriesTakesNoMoreThanAFloat32Dq)
{
    if (!target_.is_device || target_.backend != Backend::openmp) {
        GTEST_SKIP() << "heads are shared out on a device of the openmp backend only";
    }
    AttentionCase attention({2, 8, 1, 500, 400, 64, 64}, DType::bfloat16, 53);
    const Report report = attention.run(on_target({})).second;
    const std::int64_t rows = 2 * 8 * 500;
    EXPECT_LE(report.extra_bytes, 12 * rows + 4 * rows * 64);
}

TEST_P(Memory, ARunOfAPreparedCallAllocatesNothing)
{
    for (const bool is_packed : {false, true}) {
        AttentionCase attention =
            is_packed ? AttentionCase({0, 4, 2, 0, 0, 64, 64}, Lengths{{40, 7}, {50, 9}}, DType::bfloat16, 54)
                      : AttentionCase({2, 4, 2, 90, 70, 64, 64}, DType::float32, 54);
        if (!is_packed) {
            attention.add_bias();
            attention.add_key_padding();
        }
        attention.poison_outputs();
        Options options = on_target(attention.options);
        options.threads = 2;
        PreparedForward forward_call = prepare(attention.forward_args(), options);
        PreparedBackward backward_call = prepare(attention.backward_args(), options);
        const Space space = target_.is_device
                                ? Space{target_.backend == Backend::cuda ? Space::Kind::cuda : Space::Kind::openmp, 0}
                                : Space{};
        const auto bytes = std::max(forward_call.workspace_bytes(), backward_call.workspace_bytes());
        const Workspace memory(bytes, space);
        const std::span workspace(static_cast<std::byte*>(memory.data()), static_cast<std::size_t>(bytes));
        const auto run_both = [&] {
            forward_call.run(attention.forward_args(), workspace);
            backward_call.run(attention.backward_args(), workspace);
        };
        run_both(); // the first run starts the team
        const WorkspaceWatch watch(space);
        reset_allocations();
        run_both();
        EXPECT_EQ(allocations().total, 0U);
        EXPECT_EQ(watch.allocations(), 0);
        EXPECT_EQ(watch.peak_bytes(), 0);
    }
}

} // namespace
} // namespace flashomp::testing
