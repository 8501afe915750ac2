// What holds whatever the options are: bits, odd shards, hidden values, reports.
#include "on_ranks.hpp"

#include <cmath>
#include <limits>

namespace flashomp::testing {
namespace {

constexpr Shape shape{1, 4, 2, 50, 70, 16, 24};
constexpr double large_scale = 59.0; ///< makes logits so large that they are shifted

TEST(Sharded, OneRankIsASingleCallToTheBit)
{
    AttentionCase attention(shape, DType::bfloat16, 1);
    attention.options.causal = Causal::bottom_right;
    attention.add_dropout(0.2);
    attention.options.threads = 1;
    static_cast<void>(attention.run(attention.options));
    const Results single = attention.take_results();
    attention.poison_outputs();
    mpi::Sharding sharding;
    sharding.comm = MPI_COMM_SELF;
    for (const mpi::Layout layout : {mpi::Layout::contiguous, mpi::Layout::zigzag}) {
        sharding.layout = layout;
        sharded_forward(attention.forward_args(), attention.options, sharding);
        sharded_backward(attention.backward_args(), attention.options, sharding);
        expect_same_bits(single, attention.take_results());
        attention.poison_outputs();
    }
}

TEST(Sharded, RunsHaveTheSameBits)
{
    const int runs = test_device() == TestDevice::fake ? 5 : 20;
    for (const auto& [dtype, scale] :
         {std::pair{DType::float32, 0.25}, std::pair{DType::bfloat16, 0.25}, std::pair{DType::float32, large_scale}}) {
        AttentionCase attention(shape, dtype, 2);
        attention.options.causal = Causal::bottom_right;
        attention.options.scale = scale;
        attention.add_bias({true, true, true, false}, DType::float32);
        attention.add_sink();
        for (const auto& [name, sharding] : shardings(shape.heads_q)) {
            if (scale == large_scale && sharding.scheme != mpi::Scheme::ring && sharding.scheme != mpi::Scheme::grid) {
                continue; // a gather is compared with the ring, and where all share out heads there are no parts
            }
            SCOPED_TRACE(::testing::Message() << name << ", scale " << scale);
            OnRanks on_ranks(attention, sharding);
            static_cast<void>(on_ranks.run());
            const Results first = on_ranks.all();
            for (int again = 0; again < runs; ++again) {
                on_ranks.poison(dtype);
                on_ranks.options.bias = std::as_const(on_ranks.bias).view();
                static_cast<void>(on_ranks.run());
                expect_same_bits(first, on_ranks.all());
            }
            if (sharding.scheme == mpi::Scheme::ring) { // a gather computes and sums in the order of the ring
                mpi::Sharding gather = sharding;
                gather.scheme = mpi::Scheme::all_gather;
                OnRanks gathered(attention, gather);
                static_cast<void>(gathered.run());
                expect_same_bits(first, gathered.all());
            }
        }
    }
}

/// Shards of one row, of none, and of any lengths.
TEST(Sharded, ShardsMayBeOfAnyLengths)
{
    for (const auto& [rows_q, rows_k] :
         {std::pair{3, 5}, std::pair{1, 1}, std::pair{0, 4}, std::pair{4, 0}, std::pair{40, 3}}) {
        for (const Causal causal : {Causal::none, Causal::bottom_right}) {
            AttentionCase attention({1, 4, 2, rows_q, rows_k, 8, 8}, DType::float32, 3);
            attention.options.causal = causal;
            attention.add_sink();
            attention.poison_outputs();
            for (const auto& [name, sharding] : shardings(4)) {
                SCOPED_TRACE(::testing::Message() << rows_q << "x" << rows_k << " " << name);
                OnRanks on_ranks(attention, sharding);
                static_cast<void>(on_ranks.run());
                on_ranks.give_back();
                attention.expect_close();
            }
        }
    }
    std::vector<std::int64_t> lengths_q(static_cast<std::size_t>(ranks())), lengths_k(lengths_q.size());
    lengths_q.back() = 11;
    lengths_q.front() += 6;
    lengths_k[lengths_k.size() / 2] = 29; // the other ranks have no keys
    const Shape uneven{2, 4, 4, ranks() > 1 ? 17 : lengths_q.front(), 29, 8, 16};
    AttentionCase whole(uneven, DType::float32, 4);
    whole.options.causal = Causal::bottom_right;
    whole.add_alibi();
    whole.poison_outputs();
    for (const auto& [name, sharding] : shardings(4)) {
        if (sharding.layout == mpi::Layout::contiguous) {
            SCOPED_TRACE(name);
            OnRanks on_ranks(whole, sharding, lengths_q, lengths_k);
            static_cast<void>(on_ranks.run());
            on_ranks.give_back();
            whole.expect_close();
        }
    }
}

/// A sink takes part in rows whether or not its gradient is asked for.
TEST(Sharded, DsinkMayBeLeftOut)
{
    AttentionCase attention(shape, DType::bfloat16, 8);
    attention.add_sink();
    for (const auto& [name, sharding] : shardings(shape.heads_q)) {
        SCOPED_TRACE(name);
        OnRanks on_ranks(attention, sharding);
        static_cast<void>(on_ranks.run());
        Results with_dsink = on_ranks.all();
        for (HostTensor* const gradient : {&on_ranks.dq, &on_ranks.dk, &on_ranks.dv}) {
            *gradient = HostTensor(gradient->dtype(), gradient->shape(), Fill::poison);
        }
        BackwardArgs args = on_ranks.backward_args();
        args.dsink = {};
        sharded_backward(args, on_ranks.options, sharding);
        expect_same_bits(with_dsink, on_ranks.all());
    }
}

class ShardedWithScale : public ::testing::TestWithParam<double> {};

INSTANTIATE_TEST_SUITE_P(Scales, ShardedWithScale, ::testing::Values(0.25, large_scale));

/// What no query sees may hold anything, and changes no other rows' results but for rounding.
TEST_P(ShardedWithScale, HiddenKeysHaveNoInfluence)
{
    AttentionCase attention({1, 2, 1, 48, 48, 16, 16}, DType::float32, 5);
    attention.options.causal = Causal::top_left;
    attention.options.scale = GetParam();
    const double near = 1e-4 * GetParam(); // rows that see a NaN, and others of a tile, are computed in another order
    HostTensor clean_k = HostTensor::copy_of(std::as_const(attention.k).view());
    for (const auto& [name, sharding] : shardings(2)) {
        SCOPED_TRACE(name);
        // Named: before clang 16 a lambda cannot capture a structured binding.
        const auto run = [&, &layout = sharding](bool poisoned) {
            attention.k = HostTensor::copy_of(std::as_const(clean_k).view());
            if (poisoned) {
                auto* const values = static_cast<float*>(attention.k.data());
                std::fill(values + 30 * 16, values + 48 * 16, std::numeric_limits<float>::quiet_NaN());
            }
            OnRanks on_ranks(attention, layout);
            static_cast<void>(on_ranks.run());
            return on_ranks.all();
        };
        const Results clean = run(false), poisoned = run(true);
        const std::vector<double> o = doubles(clean.o), with_nan = doubles(poisoned.o);
        const std::vector<double> dq = doubles(clean.dq), dq_with_nan = doubles(poisoned.dq);
        for (std::size_t i = 0; i < std::size_t{30} * 2 * 16; ++i) { // of rows before 30
            ASSERT_NEAR(o[i], with_nan[i], near);
            ASSERT_NEAR(dq[i], dq_with_nan[i], near);
        }
        EXPECT_TRUE(std::isnan(with_nan.back()));
    }
}

TEST(Sharded, ReportsSayWhatWasDone)
{
    const Shape square{1, 4, 2, 64, 64, 16, 24};
    AttentionCase attention(square, DType::float32, 6);
    attention.options.causal = Causal::bottom_right;
    for (const auto& [name, sharding] : shardings(shape.heads_q)) {
        SCOPED_TRACE(name);
        OnRanks on_ranks(attention, sharding);
        const Reports reports = on_ranks.run();
        EXPECT_EQ(reports.forward.scheme, sharding.scheme);
        EXPECT_FALSE(reports.forward.why.empty());
        EXPECT_FALSE(reports.backward.last.backend.empty());
        EXPECT_GT(reports.backward.calls, 0);
        EXPECT_GT(reports.backward.seconds, 0.0);
        EXPECT_GE(reports.backward.seconds, reports.backward.seconds_computing);
        std::int64_t sent = reports.forward.bytes_sent;
        MPI_Allreduce(MPI_IN_PLACE, &sent, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
        if (ranks() == 1) {
            EXPECT_EQ(sent, 0);
        } else if (sharding.scheme == mpi::Scheme::ring && sharding.layout == mpi::Layout::contiguous) {
            // Block s goes as far as the last rank, and no further: hidden blocks are not sent.
            std::int64_t expected = 0;
            for (int block = 0; block < ranks(); ++block) {
                const std::int64_t rows = mpi::positions(sharding.layout, block, ranks(), square.seqlen_k).rows();
                expected += rows * square.heads_kv * (square.head_dim + square.head_dim_v) * 4 * (ranks() - 1 - block);
            }
            EXPECT_EQ(sent, expected);
        } else {
            EXPECT_GT(sent, 0);
        }
    }
    OnRanks on_ranks(attention, {});
    const Reports reports = on_ranks.run();
    EXPECT_NE(reports.forward.scheme, mpi::Scheme::automatic);
    EXPECT_NE(reports.forward.why.find(ranks() == 1 ? "one rank" : "model"), std::string::npos);
}

/// Communicators of the caller's, whose duplicates go with them.
TEST(Sharded, TakesAnyCommunicator)
{
    AttentionCase attention(shape, DType::float32, 7);
    for (int round = 0; round < 3; ++round) {
        MPI_Comm comm = MPI_COMM_NULL;
        MPI_Comm_split(MPI_COMM_WORLD, 0, rank(), &comm);
        mpi::Sharding sharding;
        sharding.comm = comm;
        OnRanks on_ranks(attention, sharding);
        static_cast<void>(on_ranks.run());
        static_cast<void>(on_ranks.run());
        MPI_Comm_free(&comm);
    }
}

} // namespace
} // namespace flashomp::testing
