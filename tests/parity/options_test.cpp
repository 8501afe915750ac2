// Every option alone, in pairs and in random company, forward and backward, against the float64 reference: no option
// excludes another.
#include "support/features.hpp"
#include "support/parity.hpp"

#include <array>
#include <cstring>

namespace flashomp::testing {
namespace {

class OptionsParity : public ParityTest {
protected:
    using ParityTest::check;

    void check(const Features& features, std::uint64_t seed)
    {
        AttentionCase attention = case_with(features, dtype(), seed);
        SCOPED_TRACE(::testing::Message() << names(features) << " seed " << seed << ": " << attention.shape());
        check(attention);
    }

    [[nodiscard]] static AttentionCase plain_case(std::uint64_t seed)
    {
        return {{2, 4, 2, 53, 71, 32, 24}, dtype(), seed};
    }

    /// A bias for all sequences and heads, of q's dtype: the lowest number where is_lowest(i, j), else 0.
    template <class IsLowest>
    static void add_lowest_bias(AttentionCase& attention, const IsLowest& is_lowest)
    {
        const float lowest = dtype() == DType::float16 ? -65504.0F : -3.38e38F; // and bfloat16's, nearly
        const Shape& shape = attention.shape();
        HostTensor bias(DType::float32, {1, 1, shape.seqlen_q, shape.seqlen_k});
        auto* const values = static_cast<float*>(bias.data());
        for (std::int64_t i = 0; i < shape.seqlen_q; ++i) {
            for (std::int64_t j = 0; j < shape.seqlen_k; ++j) {
                values[i * shape.seqlen_k + j] = is_lowest(i, j) ? lowest : 0.0F;
            }
        }
        attention.bias = dtype() == DType::float32 ? std::move(bias) : io::converted(bias, dtype());
        attention.options.bias = std::as_const(attention.bias).view();
    }
};

INSTANTIATE_TEST_SUITE_P(Machines, OptionsParity, parity_params(), parity_name);

TEST_P(OptionsParity, Softcap)
{
    for (const double softcap : {0.25, 1.0, 15.0, 50.0, 1000.0}) {
        SCOPED_TRACE(softcap);
        AttentionCase attention = plain_case(201);
        attention.options.softcap = softcap;
        check(attention);
    }
    AttentionCase large({1, 2, 2, 64, 64, 32, 32}, dtype(), 202, 5.0F); // deep in the flat part of tanh
    large.options.softcap = 2.0;
    check(large);
}

TEST_P(OptionsParity, Alibi)
{
    for (const bool per_batch : {false, true}) {
        for (const Causal causal : {Causal::none, Causal::top_left, Causal::bottom_right}) {
            AttentionCase attention = plain_case(203);
            attention.add_alibi(per_batch);
            attention.options.causal = causal;
            check(attention);
        }
    }
    AttentionCase more_queries({1, 3, 1, 90, 37, 16, 16}, dtype(), 204); // delta is negative
    more_queries.add_alibi();
    check(more_queries);
}

TEST_P(OptionsParity, BiasOfEveryBroadcastPattern)
{
    for (unsigned pattern = 0; pattern < 16; ++pattern) {
        for (const DType bias_dtype : {DType::float32, dtype()}) {
            SCOPED_TRACE(::testing::Message() << "pattern " << pattern << " " << name_of(bias_dtype));
            AttentionCase attention = plain_case(205 + pattern);
            attention.add_bias({(pattern & 1U) != 0, (pattern & 2U) != 0, (pattern & 4U) != 0, (pattern & 8U) != 0},
                               bias_dtype);
            check(attention);
        }
    }
}

TEST_P(OptionsParity, BiasOverALongerBatchAndManyTiles)
{
    AttentionCase shared_by_all({3, 4, 2, 150, 270, 16, 16}, dtype(), 221);
    shared_by_all.add_bias({true, true, false, false});
    check(shared_by_all);
    AttentionCase row({3, 4, 2, 150, 270, 16, 16}, dtype(), 222);
    row.add_bias({true, false, true, false});
    row.options.causal = Causal::bottom_right;
    check(row);
    AttentionCase column({3, 4, 2, 150, 270, 16, 16}, dtype(), 223);
    column.add_bias({false, true, false, true});
    column.options.window = {30, 20}; // most of dbias is masked: it must be 0 there, not left unwritten
    check(column);
}

/// What CUDA's Hopper kernels take: rows that see 256 keys and more, 64 queries and more, no gradient of an option.
/// Keys in multiples of 8 have a bias in blocks that the copy engine brings, others do not.
TEST_P(OptionsParity, ModifiedScoresOfManyKeys)
{
    using Change = void (*)(AttentionCase&);
    struct Case {
        Shape shape;
        Change change;
    };
    const auto bottom_right = [](AttentionCase& c) { c.options.causal = Causal::bottom_right; };
    const Case cases[] = {
        {{1, 2, 1, 150, 300, 64, 64}, [](AttentionCase& c) { c.options.softcap = 2.0; }},
        {{1, 2, 2, 200, 400, 128, 128},
         [](AttentionCase& c) {
             c.options.softcap = 20.0;
             c.add_dropout(0.17);
         }},
        {{1, 2, 1, 130, 300, 256, 256}, [](AttentionCase& c) { c.options.softcap = 50.0; }},
        {{2, 2, 1, 140, 310, 64, 64}, [](AttentionCase& c) { c.add_alibi(true); }},
        {{1, 4, 2, 130, 300, 128, 96},
         [](AttentionCase& c) {
             c.add_alibi();
             c.add_dropout(0.5);
             c.add_sink();
         }},
        {{2, 4, 2, 150, 304, 128, 128},
         [](AttentionCase& c) {
             c.add_bias({true, false, false, false});
         }},
        {{2, 2, 1, 200, 328, 96, 120},
         [](AttentionCase& c) {
             c.add_bias({false, true, false, false});
         }},
        {{1, 2, 1, 97, 513, 128, 128},
         [](AttentionCase& c) {
             c.add_bias();
             c.add_alibi();
             c.add_key_padding();
         }},
        {{1, 2, 2, 260, 320, 64, 64},
         [](AttentionCase& c) {
             c.add_bias();
             c.add_dropout(0.17);
             c.options.first_sequence = 2;
             c.options.first_head = 7;
         }},
        {{1, 2, 1, 700, 616, 112, 128},
         [](AttentionCase& c) {
             c.add_bias({true, true, false, false});
             c.add_dropout(0.17);
             c.options.window = {300, 20};
         }},
        {{2, 2, 2, 70, 296, 128, 128},
         [](AttentionCase& c) {
             c.add_bias({false, false, true, false});
         }},
        {{2, 2, 2, 70, 296, 72, 80},
         [](AttentionCase& c) {
             c.add_bias({false, false, false, true});
         }},
        {{1, 2, 1, 130, 304, 128, 128}, [](AttentionCase& c) { c.add_bias({}, DType::float32); }},
        {{1, 2, 1, 130, 304, 192, 128},
         [](AttentionCase& c) {
             c.add_bias();
             c.add_alibi();
             c.options.softcap = 5.0;
             c.add_dropout(0.17);
         }},
        {{1, 4, 2, 150, 304, 192, 128},
         [](AttentionCase& c) {
             c.add_bias();
             c.add_dropout(0.17);
         }},
        {{2, 4, 2, 130, 296, 256, 256},
         [](AttentionCase& c) {
             c.add_bias({true, false, false, false});
             c.add_key_padding();
         }},
        {{1, 2, 1, 70, 301, 256, 200},
         [](AttentionCase& c) {
             c.add_bias({}, DType::float32);
             c.add_alibi();
         }},
        {{1, 4, 1, 140, 300, 160, 128},
         [](AttentionCase& c) {
             c.options.softcap = 3.0;
             c.add_dropout(0.5);
             c.add_sink();
         }},
    };
    std::uint64_t seed = 260;
    for (const Case& each : cases) {
        for (const bool is_causal : {false, true}) {
            ++seed;
            if (!target_.is_device && is_causal == (seed % 4 < 2)) { // one way each, to save time
                continue;
            }
            AttentionCase attention(each.shape, dtype(), seed);
            each.change(attention);
            if (is_causal) {
                bottom_right(attention);
            }
            attention.wants_option_gradients = false;
            SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << attention.shape());
            check(attention);
        }
    }
    AttentionCase packed({0, 4, 2, 0, 0, 64, 64}, {{180, 70, 0, 90}, {310, 300, 40, 0}}, dtype(), 290);
    packed.add_dropout(0.17);
    packed.options.causal = Causal::bottom_right;
    check(packed);
    for (const std::int64_t depth : {128, 256}) {
        AttentionCase capped({0, 2, 1, 0, 0, depth, depth}, {{180, 70}, {310, 300}}, dtype(), 291);
        capped.options.softcap = 3.0;
        check(capped);
    }
}

/// What the kernels of few queries take: forward up to 32 queries of each head, backward at most 32 of a key head's
/// group, or 16 of large depths, that see 256 keys and more; and one query more.
TEST_P(OptionsParity, FewQueriesAndManyKeys)
{
    using Change = void (*)(AttentionCase&);
    struct Case {
        Shape shape;
        Change change = [](AttentionCase&) {};
    };
    const Case cases[] = {
        {{2, 4, 1, 1, 1024, 128, 128}},
        {{1, 8, 8, 1, 257, 64, 64}},
        {{1, 4, 2, 4, 3001, 128, 96}},
        {{1, 8, 1, 4, 700, 64, 48}},    // 32 rows
        {{1, 11, 1, 3, 700, 128, 128}}, // 33
        {{2, 6, 2, 5, 530, 120, 128}},
        {{1, 4, 4, 16, 515, 256, 256}},
        {{1, 4, 2, 4, 900, 192, 128}},
        {{1, 2, 1, 9, 900, 200, 250}}, // 18 rows
        {{2, 8, 2, 12, 600, 128, 128},
         [](AttentionCase& c) { c.options.causal = Causal::bottom_right; }},  // two heads a block
        {{1, 6, 1, 10, 700, 64, 40}, [](AttentionCase& c) { c.add_sink(); }}, // three
        {{1, 4, 2, 21, 500, 256, 240},
         [](AttentionCase& c) {
             c.options.window = {90, 3};
         }}, // blocks of 16 and 5 queries
        {{1, 4, 2, 32, 1200, 64, 64}},
        {{1, 3, 1, 2, 400, 33, 57}}, // rows that no 16-byte copy can read
        {{1, 4, 2, 8, 1000, 128, 128}, [](AttentionCase& c) { c.options.causal = Causal::bottom_right; }}, // 16 rows
        {{1, 4, 2, 3, 600, 64, 64}, // a shard of the queries
         [](AttentionCase& c) {
             c.options.causal = Causal::bottom_right;
             c.options.positions_q = {600, {{{500, 3}, {}}}};
             c.options.positions_k = {600, {{{0, 600}, {}}}};
         }},
        {{1, 2, 2, 0, 600, 64, 64}},
        {{2, 4, 1, 7, 1300, 64, 64},
         [](AttentionCase& c) {
             c.options.window = {600, 5};
         }},
        {{1, 4, 2, 3, 2500, 128, 128},
         [](AttentionCase& c) {
             c.options.window = {300, 0};
         }}, // most keys unseen
        {{2, 4, 1, 3, 600, 128, 128}, [](AttentionCase& c) { c.add_key_padding(); }},
        {{2, 2, 1, 4, 600, 256, 256},
         [](AttentionCase& c) {
             c.add_key_padding();
             c.options.causal = Causal::bottom_right;
         }},
        {{1, 4, 2, 2, 800, 64, 64},
         [](AttentionCase& c) {
             c.add_sink();
             c.wants_option_gradients = false;
         }},
        {{1, 4, 2, 2, 800, 128, 128}, [](AttentionCase& c) { c.add_sink(); }}, // and its gradient
    };
    std::uint64_t seed = 300;
    for (const Case& each : cases) {
        AttentionCase attention(each.shape, dtype(), ++seed);
        each.change(attention);
        SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << attention.shape());
        check(attention);
    }
    for (const std::int64_t depth : {64, 128, 256}) {
        AttentionCase packed({0, 4, 2, 0, 0, depth, depth}, {{1, 0, 8, 3}, {310, 300, 700, 0}}, dtype(), 320);
        packed.options.causal = Causal::bottom_right;
        check(packed);
        AttentionCase short_ones({0, 4, 2, 0, 0, depth, depth}, {{1, 1, 1}, {300, 3, 2}}, dtype(), 321);
        check(short_ones);
    }
    AttentionCase without_queries({0, 4, 2, 0, 0, 64, 64}, {{0, 0}, {310, 300}}, dtype(), 322);
    check(without_queries);
}

/// As masks are often made: the lowest number, which hides nothing by itself. A row that has nothing else sees all keys
/// alike.
TEST_P(OptionsParity, BiasOfTheLowestNumber)
{
    for (const double scale : {0.125, 1.0}) {
        for (const std::int64_t depth : {64, 128, 256}) {
            AttentionCase attention({1, 2, 1, 128, 304, depth, depth}, dtype(), 295);
            add_lowest_bias(attention, [](std::int64_t i, std::int64_t j) { return i == 5 || j > 150 + i; });
            attention.options.scale = scale;
            SCOPED_TRACE(::testing::Message() << "scale " << scale << ", head_dim " << depth);
            static_cast<void>(
                attention.run(on_target(attention.options))); // may be computed twice: LSE has lost the sum
            attention.expect_close();
        }
    }
}

/// What CUDA's Hopper kernel of dbias does: tiles of 128 queries and 64 keys, of several sequences and heads where the
/// bias lacks an axis.
TEST_P(OptionsParity, GradientOfABiasOfManyTiles)
{
    struct Case {
        Shape shape;
        std::array<bool, 4> broadcast;
        void (*change)(AttentionCase&);
    };
    const auto nothing = [](AttentionCase&) {};
    const Case cases[] = {
        {{2, 2, 1, 150, 300, 64, 64}, {}, nothing},
        {{2, 4, 2, 200, 320, 128, 128}, {true, false, false, false}, nothing},
        {{3, 2, 2, 130, 304, 128, 96}, {false, true, false, false}, [](AttentionCase& c) { c.add_key_padding(); }},
        {{2, 2, 1, 270, 333, 64, 64}, {false, false, true, false}, nothing},
        // Over all keys dS adds up to 0 but for rounding, unless a sink has a part.
        {{2, 2, 1, 270, 333, 64, 64}, {true, false, false, true}, [](AttentionCase& c) { c.add_sink(); }},
        {{2, 2, 1, 140, 261, 96, 96}, {true, true, true, false}, [](AttentionCase& c) { c.add_alibi(); }},
        {{2, 2, 1, 140, 304, 256, 256}, {true, false, false, false}, nothing},
        {{1, 2, 1, 140, 304, 192, 128}, {}, [](AttentionCase& c) { c.add_dropout(0.3); }},
        {{2, 2, 1, 300, 296, 128, 128}, {true, true, false, false}, [](AttentionCase& c) { c.options.softcap = 3.0; }},
        {{1, 4, 2, 400, 616, 80, 80},
         {false, true, false, false},
         [](AttentionCase& c) {
             c.options.window = {60, 20};
             c.add_sink();
         }},
        {{2, 2, 2, 320, 300, 64, 64},
         {true, false, false, false},
         [](AttentionCase& c) {
             c.add_dropout(0.17);
             c.options.causal = Causal::bottom_right;
         }},
    };
    std::uint64_t seed = 310;
    for (const Case& each : cases) {
        for (const DType bias_dtype : {dtype(), DType::float32}) {
            ++seed;
            const bool is_first = (seed - 1) / 2 % 2 == 0;
            if (!target_.is_device && (bias_dtype == DType::float32) == is_first) { // one each, to save time
                continue;
            }
            AttentionCase attention(each.shape, dtype(), seed);
            attention.add_bias(each.broadcast, bias_dtype);
            each.change(attention);
            SCOPED_TRACE(::testing::Message()
                         << "seed " << seed << ": " << attention.shape() << " bias " << name_of(bias_dtype));
            check(attention);
        }
    }
    AttentionCase packed({0, 4, 2, 0, 0, 64, 64}, {{180, 70, 0, 90}, {310, 300, 40, 0}}, dtype(), 340);
    packed.add_bias({false, true, false, false});
    check(packed);
}

/// Rows of padding: their bias is the lowest number, so that LSE has lost the sum, but nothing reads them, and their dO
/// is 0. No other kernel need compute the call again for them.
TEST_P(OptionsParity, PaddedRowsOfTheLowestBias)
{
    AttentionCase attention({1, 2, 1, 150, 304, 128, 128}, dtype(), 345);
    constexpr std::int64_t first_padded = 130;
    add_lowest_bias(attention, [](std::int64_t i, std::int64_t) { return i >= first_padded; });
    const std::int64_t read_bytes = attention.dout.bytes() / 150 * first_padded;
    std::memset(static_cast<char*>(attention.dout.data()) + read_bytes, 0,
                static_cast<std::size_t>(attention.dout.bytes() - read_bytes));
    const auto [first, second] = attention.run(on_target(attention.options));
    if (first.machine == "hopper" && target_.backend == Backend::cuda) {
        EXPECT_EQ(second.machine, "hopper");
        EXPECT_FALSE(second.computed_twice);
    }
    attention.expect_close();
}

TEST_P(OptionsParity, GradientsThatWereNotAskedFor)
{
    AttentionCase attention = plain_case(224);
    attention.add_bias();
    attention.add_sink();
    static_cast<void>(attention.run(on_target(attention.options)));
    const Results all = attention.take_results();
    attention.poison_outputs();
    attention.dbias = HostTensor();
    attention.dsink = HostTensor();
    forward(attention.forward_args(), on_target(attention.options));
    backward(attention.backward_args(), on_target(attention.options));
    EXPECT_TRUE(same_bits(attention.dq, all.dq));
    EXPECT_TRUE(same_bits(attention.dk, all.dk));
    EXPECT_TRUE(same_bits(attention.dv, all.dv));
}

TEST_P(OptionsParity, KeyPadding)
{
    for (const double hidden : {0.0, 0.3, 0.95}) {
        AttentionCase attention = plain_case(225);
        attention.add_key_padding(hidden);
        check(attention);
    }
    AttentionCase tail({2, 2, 2, 40, 300, 16, 16}, dtype(), 226); // whole key blocks are hidden
    tail.add_key_padding(0.0);
    auto* mask = static_cast<std::uint8_t*>(tail.key_padding_mask.data());
    std::fill(mask + 70, mask + 300, std::uint8_t{0});  // the tail of the first sequence
    std::fill(mask + 300, mask + 520, std::uint8_t{0}); // the head of the second
    check(tail);
}

TEST_P(OptionsParity, RowsWithNothingToAttendTo)
{
    AttentionCase attention = plain_case(227);
    attention.add_key_padding(0.0);
    auto* mask = static_cast<std::uint8_t*>(attention.key_padding_mask.data());
    std::fill(mask, mask + 71, std::uint8_t{0}); // all keys of the first sequence
    check(attention);
    const std::vector<double> o = doubles(attention.o);
    const std::vector<double> lse = doubles(attention.lse);
    const std::vector<double> dk = doubles(attention.dk);
    EXPECT_TRUE(std::all_of(o.begin(), o.begin() + 53 * 4 * 24, [](double x) { return x == 0.0; }));
    EXPECT_TRUE(std::all_of(lse.begin(), lse.begin() + 4 * 53, [](double x) { return x == -HUGE_VAL; }));
    EXPECT_TRUE(std::all_of(dk.begin(), dk.begin() + 71 * 2 * 32, [](double x) { return x == 0.0; }));
}

TEST_P(OptionsParity, Sink)
{
    AttentionCase attention = plain_case(228);
    attention.add_sink();
    check(attention);
    AttentionCase extreme({1, 4, 1, 30, 40, 16, 16}, dtype(), 229);
    extreme.add_sink();
    auto* sink = static_cast<float*>(extreme.sink.data());
    sink[0] = 80.0F;      // takes everything
    sink[1] = -1000.0F;   // takes nothing
    sink[2] = -HUGE_VALF; // is no sink at all
    check(extreme);
}

TEST_P(OptionsParity, SinkOfRowsWithNothingElseToAttendTo)
{
    AttentionCase attention({2, 2, 2, 108, 64, 16, 16}, dtype(), 230);
    attention.options.causal = Causal::bottom_right; // the first 44 queries see no key
    attention.add_sink();
    check(attention);
    const std::vector<double> o = doubles(attention.o);
    const std::vector<double> lse = doubles(attention.lse);
    EXPECT_TRUE(std::all_of(o.begin(), o.begin() + 44 * 2 * 16, [](double x) { return x == 0.0; }));
    for (std::size_t i = 0; i < 44; ++i) {
        EXPECT_NEAR(lse[i], static_cast<const float*>(attention.sink.data())[0], 1e-5);
    }
    AttentionCase no_keys({1, 2, 2, 10, 0, 16, 16}, dtype(), 231);
    no_keys.add_sink();
    check(no_keys);
}

TEST_P(OptionsParity, Dropout)
{
    for (const double probability : {0.0, 0.17, 0.5, 0.99}) {
        SCOPED_TRACE(probability);
        AttentionCase attention = plain_case(232);
        attention.add_dropout(probability);
        check(attention);
    }
}

TEST_P(OptionsParity, PackedSequences)
{
    const Shape shape{0, 4, 2, 0, 0, 32, 24};
    for (const Causal causal : {Causal::none, Causal::top_left, Causal::bottom_right}) {
        for (const Lengths& lengths :
             {Lengths{{17, 40, 1}, {33, 9, 64}}, Lengths{{5}, {7}}, Lengths{{64, 64, 64, 64}, {64, 64, 64, 64}},
              Lengths{{1, 1, 1, 1}, {1, 2, 3, 4}}}) {
            AttentionCase attention(shape, lengths, dtype(), 233);
            attention.options.causal = causal;
            check(attention);
        }
    }
}

TEST_P(OptionsParity, PackedSequencesThatAreEmpty)
{
    const Shape shape{0, 2, 1, 0, 0, 16, 16};
    for (const Lengths& lengths :
         {Lengths{{0, 20, 0, 7, 0}, {11, 0, 0, 30, 5}}, Lengths{{0, 0}, {0, 0}}, Lengths{{3, 4}, {0, 0}},
          Lengths{{0, 0}, {3, 4}}, Lengths{{}, {}}, Lengths{{12, 0}, {13, 0}}, Lengths{{0, 12}, {0, 13}}}) {
        SCOPED_TRACE(::testing::PrintToString(lengths.q) + ::testing::PrintToString(lengths.k));
        AttentionCase attention(shape, lengths, dtype(), 234);
        check(attention);
        AttentionCase with_sink(shape, lengths, dtype(), 235);
        with_sink.add_sink();
        check(with_sink);
    }
}

TEST_P(OptionsParity, PackedSequencesAThousandTimesLonger)
{
    for (const Lengths& lengths :
         {Lengths{{700, 1, 0, 2}, {1, 1400, 5, 300}}, Lengths{{1, 1, 600, 1}, {1, 1, 600, 1}}}) {
        AttentionCase attention({0, 2, 1, 0, 0, 16, 16}, lengths, dtype(), 236);
        attention.options.causal = Causal::bottom_right;
        check(attention);
    }
}

TEST_P(OptionsParity, DecodingShapes)
{
    const std::array<std::pair<std::int64_t, std::int64_t>, 6> pairs{
        {{1, 147}, {1, 8192}, {2, 4097}, {5, 3001}, {9, 1500}, {16, 8192}}};
    for (const auto& [queries, keys] : pairs) {
        SCOPED_TRACE(::testing::Message() << queries << " queries, " << keys << " keys");
        AttentionCase attention({1, 4, 1, queries, keys, 32, 32}, dtype(), 237);
        attention.options.causal = Causal::bottom_right;
        check(attention);
    }
}

/// One query of grouped heads: the heads of a group are rows of one problem where no option tells them apart.
TEST_P(OptionsParity, DecodingWithOneOption)
{
    const auto one = [](std::uint64_t seed) { return AttentionCase({2, 6, 2, 1, 90, 24, 32}, dtype(), seed); };
    AttentionCase with_alibi = one(241), with_bias = one(242), with_sink = one(243), with_dropout = one(244);
    with_alibi.add_alibi();
    with_bias.add_bias({true, false, true, false});
    with_sink.add_sink();
    with_dropout.add_dropout(0.17);
    AttentionCase with_padding = one(245), with_softcap = one(246), with_window = one(247), with_causal = one(248);
    with_padding.add_key_padding();
    with_softcap.options.softcap = 2.0;
    with_window.options.window = {40, -1};
    with_causal.options.causal = Causal::top_left;
    for (AttentionCase* attention : {&with_alibi, &with_bias, &with_sink, &with_dropout, &with_padding, &with_softcap,
                                     &with_window, &with_causal}) {
        check(*attention);
    }
}

TEST_P(OptionsParity, DecodingWithEveryOption)
{
    AttentionCase attention({2, 4, 2, 3, 4500, 48, 40}, dtype(), 238);
    attention.options.softcap = 20.0;
    attention.options.window = {2100, 3};
    attention.add_alibi(true);
    attention.add_bias({false, true, false, false});
    attention.add_key_padding();
    attention.add_sink();
    attention.add_dropout(0.17);
    check(attention);
    AttentionCase odd({2, 6, 2, 3, 5000, 48, 33}, dtype(), 237); // merged by a launch of its own on every machine
    check(odd);
    AttentionCase shorter({2, 6, 2, 3, 700, 48, 36}, dtype(), 236);
    check(shorter);
    AttentionCase none({2, 6, 2, 0, 700, 48, 36}, dtype(), 235);
    check(none);
    AttentionCase hidden({1, 2, 1, 2, 5000, 16, 16}, dtype(), 239); // most splits see nothing
    hidden.add_key_padding(1.0);
    static_cast<std::uint8_t*>(hidden.key_padding_mask.data())[1700] = 1;
    check(hidden);
    AttentionCase nothing({1, 2, 1, 2, 5000, 16, 16}, dtype(), 240);
    nothing.add_key_padding(1.0);
    check(nothing);
    AttentionCase packed({0, 4, 1, 0, 0, 32, 32}, {{1, 1, 1, 2}, {5000, 1, 0, 900}}, dtype(), 241);
    packed.options.causal = Causal::bottom_right;
    check(packed);
}

TEST_P(OptionsParity, ValueHeadDimDiffers)
{
    for (const auto& [d, d_v] : {std::pair{192, 128}, std::pair{64, 256}, std::pair{256, 40}}) {
        AttentionCase attention({1, 4, 2, 45, 67, d, d_v}, dtype(), 242);
        attention.options.causal = Causal::bottom_right;
        attention.options.softcap = 30.0;
        attention.add_bias({true, false, false, false});
        attention.add_sink();
        attention.add_dropout(0.17);
        check(attention);
    }
}

TEST_P(OptionsParity, HeadDimsBeyond256)
{
    for (const auto& [d, d_v] : {std::pair{288, 288}, std::pair{576, 512}, std::pair{300, 260}}) {
        AttentionCase attention({1, 4, 2, 45, 67, d, d_v}, dtype(), 243);
        attention.options.causal = Causal::bottom_right;
        attention.options.softcap = 30.0;
        attention.add_alibi();
        attention.add_bias({true, false, false, false});
        attention.add_sink();
        attention.add_dropout(0.17);
        check(attention);
        AttentionCase large({1, 2, 1, 40, 60, d, d_v}, dtype(), 244, 4.0F);
        check(large);
    }
    AttentionCase parts({1, 2, 1, 3, 4500, 576, 512}, dtype(), 245); // the keys are cut into parts
    check(parts);
}

TEST_P(OptionsParity, EveryOptionAlone)
{
    for (std::size_t a = 0; a < feature_count; ++a) {
        check(Features().set(a), 300 + a);
    }
}

TEST_P(OptionsParity, EveryPairOfOptions)
{
    const Features both_alignments = with({Feature::top_left, Feature::bottom_right});
    for (std::size_t a = 0; a < feature_count; ++a) {
        for (std::size_t b = a + 1; b < feature_count; ++b) {
            const Features pair = Features().set(a).set(b);
            if (pair != both_alignments) {
                check(pair, 400 + a * feature_count + b);
            }
        }
    }
}

TEST_P(OptionsParity, EveryOptionAtOnce)
{
    for (const Feature alignment : {Feature::top_left, Feature::bottom_right}) {
        for (std::uint64_t seed = 600; seed < 606; ++seed) {
            Features all = Features().set();
            all ^= with({alignment});
            check(all, seed);
            check(all ^ with({Feature::packed}), seed);
        }
    }
}

TEST_P(OptionsParity, RandomCombinations)
{
    Draw draw(700);
    for (int round = 0; round < 40; ++round) {
        Features features(static_cast<unsigned long>(draw(0, (1 << feature_count) - 1)));
        if (has(features, Feature::top_left)) {
            features.reset(static_cast<std::size_t>(Feature::bottom_right));
        }
        check(features, static_cast<std::uint64_t>(701 + round));
    }
}

} // namespace
} // namespace flashomp::testing
