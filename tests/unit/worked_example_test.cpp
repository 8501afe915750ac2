// The worked example of docs/algorithm.md: 4 queries, 4 keys, 2 x 2 tiles, scale 1, no mask. It goes through the
// algorithm's own pieces tile by tile, then through whole passes with the same tiles, then through the public API.
#include "flashomp/attention.hpp"

#include "algorithm/backward.hpp"
#include "host/host_machine.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace flashomp {
namespace {

using offload::Params;

/// A host machine of two lanes, so that a block can have two rows.
struct TwoLanes {
    static constexpr int lanes = 2;
    static constexpr int register_rows = 2;
    static constexpr int register_vectors = 1;
};
using Machine = offload::HostMachine<TwoLanes>;
static_assert(offload::TileMachine<Machine>);

constexpr int n = 4; ///< queries, keys and head_dim
constexpr int block = 2;
constexpr float printed = 0.01F; ///< the printed values are rounded

constexpr std::int64_t crew_floats = offload::backward_key_floats<Machine>(block, block, n, n); ///< the largest pass
static_assert(crew_floats >= offload::backward_query_floats<Machine>(block, block, n, n));
static_assert(crew_floats >= offload::forward_floats<Machine>(block, block, n, n));

using Matrix = std::array<float, std::size_t{n} * n>;

struct Example {
    Matrix q{1, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0};
    Matrix k{1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 1};
    Matrix v{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    Matrix dout{1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0};
    Matrix o{}, dq{}, dk{}, dv{};
    std::array<float, n> lse{}, delta{}, residual{};
    alignas(64) std::array<float, crew_floats> memory{};

    [[nodiscard]] Machine machine() { return {memory.data(), block, block}; }

    [[nodiscard]] Params params()
    {
        Params p;
        p.batch = p.heads_q = p.heads_kv = 1;
        p.seqlen_q = p.seqlen_k = p.head_dim = p.head_dim_v = n;
        const auto rows = [](Matrix& x) { return offload::Tensor{x.data(), n * n, n, n}; };
        p.q = rows(q);
        p.k = rows(k);
        p.v = rows(v);
        p.o = rows(o);
        p.dout = rows(dout);
        p.dq = rows(dq);
        p.dk = rows(dk);
        p.dv = rows(dv);
        p.lse = {lse.data(), n, n};
        p.delta = {delta.data(), n, n};
        p.residual = {residual.data(), n, n};
        return p;
    }

    /// All query blocks through the forward pass.
    void run_forward()
    {
        for (int i = 0; i < n / block; ++i) {
            Machine tile = machine();
            offload::forward_block<false>(tile, params(), {0, 0, i});
        }
    }
};

/// Two consecutive rows of one of the matrices, as the machine loads them.
offload::Rows rows_at(const Params& p, const offload::Tensor& tensor, int first)
{
    return offload::rows_of(p, tensor, 0, 0, first, block, n);
}

template <std::size_t size>
void expect_near(const std::array<float, size>& actual, const std::array<float, size>& expected, const char* name)
{
    for (std::size_t i = 0; i < size; ++i) {
        EXPECT_NEAR(actual[i], expected[i], printed) << name << "[" << i / n << "][" << i % n << "]";
    }
}

/// A row of an accumulator.
std::array<float, n> row_of(const Machine::Accumulator& a, int r)
{
    std::array<float, n> row{};
    for (int x = 0; x < n; ++x) {
        row.at(static_cast<std::size_t>(x)) = a.data[r * a.padded + x];
    }
    return row;
}

/// A row of a 2 x 2 tile.
std::array<float, block> row_of(const Machine::Scores& s, int r)
{
    return {s.at(r, 0), s.at(r, 1)};
}

// The results of a calculation that rounds probabilities to three digits.
constexpr Matrix printed_o{7.20F, 8.20F, 9.20F, 10.20F, 9.88F, 10.88F, 11.88F, 12.88F,
                           6.08F, 7.08F, 8.08F, 9.08F,  7.92F, 8.92F,  9.92F,  10.92F};
constexpr Matrix printed_dq{-1.19F, 1.18F, 4.38F, 1.91F, 0, 0, 0, 0, -3.14F, 3.14F, 4.28F, 3.72F, 0, 0, 0, 0};
constexpr Matrix printed_dk{-12.99F, 0, -5.57F, 0, -1.31F, 0, -0.73F, 0, 8.66F, 0, 4.38F, 0, 5.64F, 0, 1.91F, 0};
constexpr Matrix printed_dv{0.590F, 0.590F, 0.590F, 0.590F, 0.217F, 0.217F, 0.217F, 0.217F,
                            0.976F, 0.976F, 0.976F, 0.976F, 0.217F, 0.217F, 0.217F, 0.217F};

TEST(WorkedExample, OnlineSoftmaxTileByTile)
{
    Example example;
    const Params p = example.params();
    Machine tile = example.machine();
    const offload::ScoreOn<Machine> score(p, {0, 0, n, n}, 0, 0);
    const auto logit = [&](float dot, int r, int c) { return score.operator()<false>(dot, r, c); };

    Machine::Resident q = tile.resident(n);
    Machine::Stream k = tile.stream(p.k, n, offload::StreamUse::scores);
    Machine::Stream v = tile.stream(p.v, n, offload::StreamUse::sums);
    Machine::Scores s = tile.scores();
    Machine::Accumulator o = tile.accumulator(n);
    offload::OnlineSoftmax<Machine> softmax(tile, 1.0F);
    tile.load(q, rows_at(p, p.q, 0));

    const auto take_in = [&](int j0) {
        tile.load(k, rows_at(p, p.k, j0));
        tile.load(v, rows_at(p, p.v, j0));
        tile.multiply(s, q, k);
        tile.finish(s);
        tile.map(s, logit);
        const bool moved = softmax.update(tile, s);
        tile.accumulate(o, s, v, moved, softmax.correction);
    };
    const auto m = [&](int r) { return softmax.base[r]; };

    take_in(0); // tile (0, 0): scores 1 0 in row 0, 0 1 in row 1
    EXPECT_NEAR(m(0), 1.0F, 1e-6F);
    EXPECT_NEAR(softmax.sum[0], 1.368F, 0.001F);
    expect_near(row_of(s, 0), {1.0F, 0.368F}, "P");
    expect_near(row_of(o, 0), {2.84F, 4.21F, 5.58F, 6.94F}, "unnormalised O after tile (0,0)");

    take_in(2); // tile (0, 1): scores 2 0 in row 0, 0 2 in row 1
    EXPECT_NEAR(m(0), 2.0F, 1e-6F);
    EXPECT_NEAR(softmax.correction[0], 0.368F, 0.001F); // e^(1 - 2)
    EXPECT_NEAR(softmax.sum[0], 1.638F, 0.001F);
    expect_near(row_of(o, 0), {11.81F, 13.44F, 15.08F, 16.71F}, "unnormalised O after tile (0,1)");

    softmax.finish(tile, block, nullptr, 0, example.lse.data());
    EXPECT_NEAR(softmax.correction[0], 1.0F / 1.638F, 0.001F);
    EXPECT_NEAR(example.lse[0], 2.0F + std::log(1.638F), 0.001F);
}

TEST(WorkedExample, GradientOfTheScoresTileByTile)
{
    Example example;
    example.run_forward();
    const Params p = example.params();
    const offload::ScoreOn<Machine> score(p, {0, 0, n, n}, 0, 0);
    const offload::ScoreGradient<false, false, Machine> gradient{score};
    Matrix probabilities{};
    Matrix ds{};
    for (int i0 = 0; i0 < n; i0 += block) {
        Machine tile = example.machine();
        Machine::Resident q = tile.resident(n);
        Machine::Resident dout = tile.resident(n);
        Machine::Stream k = tile.stream(p.k, n, offload::StreamUse::scores);
        Machine::Stream v = tile.stream(p.v, n, offload::StreamUse::sums);
        Machine::Scores pr = tile.scores();
        Machine::Scores grad = tile.scores();
        const Machine::Stats delta = tile.row_stats();
        tile.load(q, rows_at(p, p.q, i0));
        tile.load(dout, rows_at(p, p.dout, i0));
        tile.row_dot(rows_at(p, p.o, i0), rows_at(p, p.dout, i0), delta);
        for (int j0 = 0; j0 < n; j0 += block) {
            tile.load(k, rows_at(p, p.k, j0));
            tile.load(v, rows_at(p, p.v, j0));
            tile.multiply(pr, q, k, grad, dout, v);
            tile.finish(pr, grad);
            tile.combine(grad, pr, [&](float dp, float& s, int r, int c) {
                const float dot = s;
                s = gradient.probability(dot, offload::usable_lse(p.lse.data[i0 + r]), 0.0F, i0 + r, j0 + c);
                return gradient(dot, s, dp, delta[r], 1.0F, i0 + r, j0 + c);
            });
            for (int r = 0; r < block; ++r) {
                for (int c = 0; c < block; ++c) {
                    const auto at = static_cast<std::size_t>((i0 + r) * n + j0 + c);
                    probabilities.at(at) = row_of(pr, r).at(static_cast<std::size_t>(c));
                    ds.at(at) = row_of(grad, r).at(static_cast<std::size_t>(c));
                }
            }
        }
        for (int r = 0; r < block; ++r) {
            example.delta.at(static_cast<std::size_t>(i0 + r)) = delta[r];
        }
    }
    const std::array<float, n> p_row_0{probabilities[0], probabilities[1], probabilities[2], probabilities[3]};
    expect_near(p_row_0, {0.224F, 0.083F, 0.610F, 0.083F}, "P row 0");
    // In full 34.8155. Probabilities that are rounded to three digits give 34.83.
    expect_near(example.delta, {34.8155F, 0.0F, 30.30F, 0.0F}, "D");
    expect_near(ds, {-5.57F, -0.73F, 4.38F, 1.91F, 0, 0, 0, 0, -7.42F, -0.58F, 4.28F, 3.72F, 0, 0, 0, 0}, "dS");
}

TEST(WorkedExample, WholePassesInTwoByTwoTiles)
{
    Example example;
    example.run_forward();
    expect_near(example.o, printed_o, "O");
    EXPECT_NEAR(example.lse[0], 2.0F + std::log(1.638F), 0.001F);
    for (int i = 0; i < n / block; ++i) {
        Machine tile = example.machine();
        offload::backward_query_block<false>(tile, example.params(), {0, 0, i});
    }
    for (int j = 0; j < n / block; ++j) {
        Machine tile = example.machine();
        offload::backward_key_block<false>(tile, example.params(), {0, 0, j});
    }
    expect_near(example.delta, {34.8155F, 0.0F, 30.30F, 0.0F}, "D");
    for (const float lost : example.residual) {
        EXPECT_NEAR(lost, 0.0F, 1e-6F); // LSE is small here, so float32 holds it
    }
    expect_near(example.dq, printed_dq, "dQ");
    expect_near(example.dk, printed_dk, "dK");
    expect_near(example.dv, printed_dv, "dV");
}

TEST(WorkedExample, PublicApi)
{
    for (const flashomp::Machine machine : {flashomp::Machine::host, flashomp::Machine::plain}) {
        Example example;
        const auto view = [](Matrix& x) { return TensorView::contiguous(x.data(), DType::float32, {1, n, 1, n}); };
        const auto rows = TensorView::contiguous(example.lse.data(), DType::float32, {1, 1, n});
        Options options;
        options.scale = 1.0;
        options.machine = machine;
        options.device.kind = Device::Kind::host;
        forward({view(example.q), view(example.k), view(example.v), view(example.o), rows}, options);
        expect_near(example.o, printed_o, "O");
        EXPECT_NEAR(example.lse[0], 2.0F + std::log(1.638F), 0.001F);

        BackwardArgs args;
        args.q = view(example.q);
        args.k = view(example.k);
        args.v = view(example.v);
        args.o = view(example.o);
        args.lse = rows;
        args.dout = view(example.dout);
        args.dq = view(example.dq);
        args.dk = view(example.dk);
        args.dv = view(example.dv);
        backward(args, options);
        expect_near(example.dq, printed_dq, "dQ");
        expect_near(example.dk, printed_dk, "dK");
        expect_near(example.dv, printed_dv, "dV");
    }
}

} // namespace
} // namespace flashomp
