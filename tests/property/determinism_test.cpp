// The same inputs give the same bits: run after run, and for any number of host threads.
#include "support/attention_case.hpp"
#include "support/features.hpp"
#include "support/target.hpp"

#include <thread>

namespace flashomp::testing {
namespace {

class Determinism : public EveryTargetTest {
protected:
    void expect_same_bits_in_every_run(AttentionCase& attention, const Options& options, int runs) const
    {
        static_cast<void>(attention.run(on_target(options)));
        const Results first = attention.take_results();
        for (int run = 1; run < runs; ++run) {
            static_cast<void>(attention.run(on_target(options)));
            expect_same_bits(first, attention.take_results());
        }
    }
};

INSTANTIATE_TEST_SUITE_P(Machines, Determinism, ::testing::ValuesIn(targets()), target_name);

Options causal()
{
    Options options;
    options.causal = Causal::bottom_right;
    return options;
}

constexpr Shape shape{2, 4, 2, 130, 150, 48, 48};

TEST_P(Determinism, TwentyBackwardRuns)
{
    AttentionCase attention(shape, DType::float32, 31);
    expect_same_bits_in_every_run(attention, causal(), 20);
}

// On a GPU all multiprocessors have several items each, so that teams which wait for one another do so for different
// times: a race of a pair of teams showed in every run of 16 x 8 heads of 1024 rows, and in no test, which had few
// items.
TEST_P(Determinism, EveryDepthWithManyItems)
{
    const bool is_large = target_.is_device && target_.machine != Machine::plain;
    for (const std::int64_t depth : {64, 128, 256}) {
        SCOPED_TRACE(depth);
        const Shape size = is_large ? Shape{8, 8, 8, 1000, 1000, depth, depth} : Shape{1, 2, 1, 70, 90, depth, depth};
        AttentionCase attention(size, DType::bfloat16, 34);
        expect_same_bits_in_every_run(attention, causal(), 5);
    }
}

// Key blocks that add to dQ in each order: upwards (more than there are multiprocessors), downwards (under a mask) and
// each from another query on; and query heads that follow one another.
TEST_P(Determinism, KeyBlocksThatTakeTurns)
{
    if (!target_.is_device || target_.machine == Machine::plain) {
        GTEST_SKIP() << "only a GPU's crews are as many as it takes";
    }
    struct Case {
        Shape shape;
        Causal causal = Causal::none;
        Window window = {};
    };
    for (const Case& each : {Case{{1, 2, 2, 600, 9000, 128, 128}}, Case{{2, 16, 8, 777, 1300, 128, 96}},
                             Case{{2, 8, 8, 1500, 1300, 128, 128}, Causal::top_left},
                             Case{{2, 8, 8, 1100, 1700, 120, 128}, Causal::top_left},
                             Case{{2, 8, 8, 1500, 1300, 128, 128}, Causal::none, {300, 0}},
                             Case{{2, 16, 8, 1500, 1300, 128, 128}, Causal::none, {-1, 300}},
                             Case{{2, 8, 8, 1300, 1500, 128, 128}, Causal::bottom_right, {700, -1}}}) {
        SCOPED_TRACE(each.shape.seqlen_q);
        AttentionCase attention(each.shape, DType::bfloat16, 41);
        Options options;
        options.causal = each.causal;
        options.window = each.window;
        expect_same_bits_in_every_run(attention, options, 4);
    }
    for (const std::int64_t depth : {64, 128, 256}) { // whose scores are modified
        SCOPED_TRACE(depth);
        AttentionCase attention({1, 8, 4, 1500, 1304, depth, depth}, DType::bfloat16, 42);
        attention.wants_option_gradients = false;
        attention.add_alibi();
        attention.add_bias({true, false, false, false});
        attention.add_dropout(0.17);
        expect_same_bits_in_every_run(attention, attention.options, 4);
        AttentionCase capped({1, 8, 4, 1500, 1304, depth, depth}, DType::bfloat16, 43);
        capped.options.softcap = 3.0;
        expect_same_bits_in_every_run(capped, capped.options, 4);
        AttentionCase biased({1, 8, 4, 1500, 1304, depth, depth}, DType::bfloat16, 44); // and dbias
        biased.add_bias();
        expect_same_bits_in_every_run(biased, biased.options, 4);
        for (const std::array<bool, 4>& broadcast :
             {std::array{true, true, false, false}, std::array{false, false, true, false},
              std::array{true, false, false, true}}) {
            AttentionCase summed({3, 4, 4, 500, 616, depth, depth}, DType::bfloat16, 45);
            summed.add_bias(broadcast);
            expect_same_bits_in_every_run(summed, summed.options, 3);
        }
    }
}

TEST_P(Determinism, AnyNumberOfThreads)
{
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
        AttentionCase attention(shape, dtype, 32);
        Options options = on_target(causal());
        options.threads = 1;
        expect_ran_on_target(attention.run(options).second, dtype);
        const Results one = attention.take_results();
        for (const int threads : {2, 3}) {
            options.threads = threads;
            static_cast<void>(attention.run(options));
            expect_same_bits(one, attention.take_results());
        }
    }
}

TEST_P(Determinism, AnyNumberOfResidentRows)
{
    if (target_.machine != Machine::host) {
        GTEST_SKIP() << "promised for the host machine only";
    }
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
        AttentionCase attention(shape, dtype, 35);
        Options options = on_target(causal());
        options.tiling.resident_rows = 16;
        options.tiling.stream_rows = 64;
        static_cast<void>(attention.run(options));
        const Results first = attention.take_results();
        for (const int rows : {32, 48, 128}) {
            options.tiling.resident_rows = rows;
            static_cast<void>(attention.run(options));
            const Results again = attention.take_results();
            EXPECT_TRUE(same_bits(again.o, first.o)) << "o, " << rows << " rows";
            EXPECT_TRUE(same_bits(again.lse, first.lse)) << "lse, " << rows << " rows";
        }
    }
}

TEST_P(Determinism, AnyNumberOfThreadsWithManyRows)
{
    if (target_.machine != Machine::host) {
        GTEST_SKIP() << "only the host machine's blocks depend on the number of threads";
    }
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
        struct Mask {
            Causal causal = Causal::none;
            Window window = {};
            int padding = 0; ///< keys at the start
        };
        // Diagonals that end a block's last tile in the middle of four keys, and padding that starts the first there.
        for (const auto& [causal, window, padding] :
             {Mask{}, Mask{Causal::top_left}, Mask{Causal::bottom_right}, Mask{Causal::bottom_right, {300, -1}},
              Mask{Causal::none, {-1, 3}}, Mask{Causal::top_left, {}, 37}, Mask{Causal::bottom_right, {}, 38}}) {
            AttentionCase attention({1, 2, 1, 700, 731, 40, 24}, dtype, 36);
            attention.poison_outputs();
            Options options = on_target({});
            if (padding > 0) {
                attention.add_key_padding(0.0);
                auto* const mask = static_cast<std::uint8_t*>(attention.key_padding_mask.data());
                std::fill(mask, mask + padding, std::uint8_t{0});
                options.key_padding_mask = attention.options.key_padding_mask;
            }
            options.causal = causal;
            options.window = window;
            options.threads = 1;
            forward(attention.forward_args(), options);
            const HostTensor o = HostTensor::copy_of(attention.o.view());
            const HostTensor lse = HostTensor::copy_of(attention.lse.view());
            for (const int threads : {2, 5, 16, 40}) { // blocks of 256 to 32 rows
                attention.poison_outputs();
                options.threads = threads;
                forward(attention.forward_args(), options);
                EXPECT_TRUE(same_bits(attention.o, o)) << "o, " << threads << " threads";
                EXPECT_TRUE(same_bits(attention.lse, lse)) << "lse, " << threads << " threads";
            }
        }
    }
}

TEST_P(Determinism, AnyNumberOfThreadsWithFewQueries)
{
    if (target_.machine != Machine::host) {
        GTEST_SKIP() << "only the host machine's crews have the queries of several heads in a block";
    }
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
        // Heads of their own, groups of two and of three, parts of the keys, and depths that are no multiple of lanes.
        for (const Shape& few :
             {Shape{3, 6, 6, 1, 77, 64, 40}, Shape{1, 12, 6, 1, 2100, 24, 33}, Shape{2, 12, 4, 1, 1111, 80, 128}}) {
            AttentionCase attention(few, dtype, 39);
            Options options = on_target(causal());
            options.threads = 1;
            static_cast<void>(attention.run(options));
            const Results one = attention.take_results();
            for (const int threads : {2, 3, 16}) {
                options.threads = threads;
                static_cast<void>(attention.run(options));
                expect_same_bits(one, attention.take_results());
            }
        }
    }
}

TEST_P(Determinism, AnyNumberOfThreadsThatTakeTurns)
{
    if (target_.machine != Machine::host) {
        GTEST_SKIP() << "only the host machine's crews wait for each other";
    }
    // Windows to either side of the diagonal, blocks that no query sees, and more crews than CPUs.
    for (const auto& [left, right] :
         {std::pair{-1, -1}, std::pair{-1, 0}, std::pair{40, 0}, std::pair{0, 300}, std::pair{5, -1}}) {
        for (const Shape& rows : {Shape{1, 2, 1, 700, 530, 40, 24}, Shape{2, 1, 1, 90, 600, 33, 64}}) {
            AttentionCase attention(rows, DType::float32, 38);
            Options options = on_target({});
            options.window = {left, right};
            options.tiling.resident_rows = 32;
            options.tiling.stream_rows = 16;
            options.threads = 1;
            static_cast<void>(attention.run(options));
            const Results one = attention.take_results();
            for (const int threads : {2, 3, 16}) {
                options.threads = threads;
                static_cast<void>(attention.run(options));
                expect_same_bits(one, attention.take_results());
            }
        }
    }
}

TEST_P(Determinism, AnyNumberOfThreadsWithEveryOption)
{
    for (const bool packed : {false, true}) {
        Features features = Features().set() ^ with({Feature::top_left});
        features.set(static_cast<std::size_t>(Feature::packed), packed);
        AttentionCase attention = case_with(features, DType::bfloat16, 34);
        Options options = on_target(attention.options);
        options.threads = 1;
        static_cast<void>(attention.run(options));
        const Results one = attention.take_results();
        for (const int threads : {1, 2, 3, 8}) {
            options.threads = threads;
            static_cast<void>(attention.run(options));
            expect_same_bits(one, attention.take_results());
        }
    }
}

TEST_P(Determinism, PartsOfTheKeysOfFewQueries)
{
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        for (const int depth_v : {64, 33}) { // a GPU's crews merge depths that are multiples of 4 themselves
            AttentionCase attention({2, 4, 2, 3, 5000, 64, depth_v}, dtype, 37);
            attention.poison_outputs();
            static_cast<void>(forward(attention.forward_args(), on_target(causal())));
            const HostTensor o = HostTensor::copy_of(attention.o.view());
            const HostTensor lse = HostTensor::copy_of(attention.lse.view());
            for (int round = 1; round < 20; ++round) {
                attention.poison_outputs();
                static_cast<void>(forward(attention.forward_args(), on_target(causal())));
                EXPECT_TRUE(same_bits(attention.o, o)) << "o, round " << round;
                EXPECT_TRUE(same_bits(attention.lse, lse)) << "lse, round " << round;
            }
        }
    }
}

// Crews with parts of the keys, whose sums the last one adds up.
TEST_P(Determinism, GradientsOfFewQueries)
{
    for (const Shape& size : {Shape{2, 4, 2, 3, 5000, 64, 64}, Shape{1, 8, 2, 8, 3000, 128, 128},
                              Shape{3, 4, 4, 16, 1000, 256, 256}, Shape{40, 8, 8, 1, 600, 128, 128}}) {
        SCOPED_TRACE(size.seqlen_k);
        AttentionCase attention(size, DType::bfloat16, 46);
        expect_same_bits_in_every_run(attention, causal(), target_.is_device ? 20 : 3);
    }
}

TEST_P(Determinism, CallsFromTwoThreadsAtOnce)
{
    AttentionCase attention(shape, DType::float32, 33);
    static_cast<void>(attention.run(on_target(causal())));
    const Results expected = attention.take_results();
    std::vector<Results> found(2);
    std::vector<std::thread> callers;
    for (Results& result : found) {
        callers.emplace_back([&] {
            for (int round = 0; round < 5; ++round) {
                AttentionCase own(shape, DType::float32, 33);
                static_cast<void>(own.run(on_target(causal())));
                result = own.take_results();
            }
        });
    }
    for (std::thread& caller : callers) {
        caller.join();
    }
    for (const Results& result : found) {
        expect_same_bits(expected, result);
    }
}

} // namespace
} // namespace flashomp::testing
