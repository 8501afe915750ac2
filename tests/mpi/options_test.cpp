// Sharded calls have the results of a single call: under every option, layout and scheme, forward and backward.
#include "on_ranks.hpp"

#include <array>
#include <cmath>
#include <map>

namespace flashomp::testing {
namespace {

constexpr Shape shape{2, 8, 2, 61, 83, 24, 16};

struct Named {
    const char* name;
    std::function<void(AttentionCase&)> set;
};

std::vector<Named> option_sets(DType dtype)
{
    return {
        {"nothing", [](AttentionCase&) {}},
        {"top_left", [](AttentionCase& c) { c.options.causal = Causal::top_left; }},
        {"bottom_right", [](AttentionCase& c) { c.options.causal = Causal::bottom_right; }},
        {"window",
         [](AttentionCase& c) {
             c.options.window = {17, 9};
         }},
        {"key_padding", [](AttentionCase& c) { c.add_key_padding(); }},
        {"sink and mask",
         [](AttentionCase& c) {
             c.add_sink();
             c.mask = random_mask(c.random(), {1, 8, 61, 83}, 16, 0.3, 0.3, 0.5);
             c.options.mask = std::as_const(c.mask).view();
         }},
        {"alibi", [](AttentionCase& c) { c.add_alibi(true); }},
        {"bias of all",
         [=](AttentionCase& c) {
             c.add_bias({false, false, false, false}, dtype);
         }},
        {"bias of a head",
         [](AttentionCase& c) {
             c.add_bias({true, true, false, false}, DType::float32);
             c.options.causal = Causal::bottom_right;
         }},
        {"bias of keys",
         [=](AttentionCase& c) {
             c.add_bias({true, false, true, false}, dtype);
             c.add_sink();
         }},
        {"bias of rows",
         [](AttentionCase& c) {
             c.add_bias({false, false, false, true}, DType::float32);
         }},
        {"softcap and scale",
         [](AttentionCase& c) {
             c.options.softcap = 3.0;
             c.options.scale = -0.4;
         }},
        {"dropout", [](AttentionCase& c) { c.add_dropout(0.3); }},
        {"dropout of a part",
         [](AttentionCase& c) {
             c.add_dropout(0.3);
             c.options.first_sequence = 5;
             c.options.first_head = 3;
         }},
        {"all",
         [](AttentionCase& c) {
             c.options.causal = Causal::bottom_right;
             c.options.window = {40, -1};
             c.options.softcap = 20.0;
             c.add_key_padding();
             c.add_sink();
             c.add_alibi();
             c.add_bias({true, false, false, false}, DType::float32);
             c.add_dropout(0.2);
         }},
    };
}

/// The unit roundoff of a dtype.
double roundoff(DType dtype)
{
    return dtype == DType::bfloat16 ? 0x1p-9 : (dtype == DType::float16 ? 0x1p-11 : 0x1p-24);
}

double largest_of(const std::vector<double>& values)
{
    double largest = 0.0;
    for (const double value : values) {
        largest = std::isfinite(value) ? std::max(largest, std::abs(value)) : largest;
    }
    return largest;
}

/// Every result has at most the error that a single call has, plus one rounding of what was computed in float32. Large
/// logits, and so P, have errors of their own, which are as large but not the same: half as much again.
void expect_error_of_a_single_call(const AttentionCase& sharded, const Results& single, const Expected& expected,
                                   bool has_large_logits)
{
    const double factor = has_large_logits ? 1.5 : 1.0;
    const auto expect = [&](const char* name, const HostTensor& many, const HostTensor& one,
                            const std::vector<double>& exact) {
        // A sum over parts has as many float32 roundings as parts, and a single call takes the rounding of LSE, whose
        // unit may be 4 of those of 1, out of whole rows: some units of float32 in any dtype.
        const double rounding = roundoff(many.dtype()) + 16.0 * roundoff(DType::float32);
        EXPECT_LE(max_error(doubles(many), exact),
                  factor * max_error(doubles(one), exact) + rounding * largest_of(exact))
            << name;
    };
    expect("o", sharded.o, single.o, expected.exact.o);
    expect("lse", sharded.lse, single.lse, expected.exact.lse);
    expect("dq", sharded.dq, single.dq, expected.gradients.dq);
    expect("dk", sharded.dk, single.dk, expected.gradients.dk);
    expect("dv", sharded.dv, single.dv, expected.gradients.dv);
}

/// Of a case with all its options. `has_large_logits`: whether reports say so, where there are parts.
void expect_results_of_a_single_call(AttentionCase& attention, DType dtype, bool has_large_logits,
                                     const std::vector<NamedSharding>& shardings)
{
    static_cast<void>(attention.run(attention.options));
    Expected expected;
    if (rank() == 0) {
        expected = attention.expected();
        // A part of a row does not repair D (attention.hpp, "Shards"), which dbias and dsink show most.
        expected.float32_dbias = expected.naive_gradients.dbias;
        expected.float32_dsink = expected.naive_gradients.dsink;
    }
    const Results single = attention.take_results();
    for (const auto& [name, sharding] : shardings) {
        SCOPED_TRACE(name);
        OnRanks on_ranks(attention, sharding);
        on_ranks.o = HostTensor(DType::float32, on_ranks.o.shape(), Fill::poison); // D of backward is exact then
        const Reports reports = on_ranks.run();
        const bool has_parts = reports.forward.heads_ranks < ranks() && ranks() > 1;
        EXPECT_EQ(reports.forward.has_large_logits, has_large_logits && has_parts);
        EXPECT_EQ(reports.backward.has_large_logits, has_large_logits && has_parts);
        on_ranks.o = io::converted(on_ranks.o, dtype);
        on_ranks.give_back();
        if (rank() == 0) {
            expect_passed(attention.compare(expected));
            expect_error_of_a_single_call(attention, single, expected, has_large_logits);
        }
    }
}

class ShardedOptions : public ::testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(DTypes, ShardedOptions, ::testing::Values(DType::float32, DType::bfloat16, DType::float16),
                         [](const auto& of_test) { return std::string(name_of(of_test.param)); });

TEST_P(ShardedOptions, HaveTheResultsOfASingleCall)
{
    const DType dtype = GetParam();
    for (const Named& options : option_sets(dtype)) {
        SCOPED_TRACE(options.name);
        AttentionCase attention(shape, dtype, 28);
        options.set(attention);
        expect_results_of_a_single_call(attention, dtype, false, shardings(shape.heads_q));
    }
}

/// Logits in the hundreds, of which LSE loses in float32 what no part of a row can tell. A softcap keeps them small.
TEST(ShardedLargeLogits, HaveTheResultsOfASingleCall)
{
    const std::vector<Named> sets = option_sets(DType::float32);
    for (std::size_t i = 0; i < sets.size(); ++i) {
        SCOPED_TRACE(sets[i].name);
        AttentionCase attention(shape, DType::float32, 32);
        sets[i].set(attention);
        const bool is_large = attention.options.softcap == 0.0;
        attention.options.scale = is_large ? 59.0 : -0.4;
        const std::vector<NamedSharding> all = shardings(shape.heads_q);
        std::vector<NamedSharding> some; // every fourth: all have their turn
        for (std::size_t j = i % 4; j < all.size(); j += 4) {
            some.push_back(all[j]);
        }
        expect_results_of_a_single_call(attention, DType::float32, is_large, some);
    }
}

void expect_near(const HostTensor& many, const HostTensor& one, double relative, const char* name,
                 double absolute = 0.0)
{
    EXPECT_LE(max_error(doubles(many), doubles(one)), relative * largest_of(doubles(one)) + absolute) << name;
}

/// f(results of all ranks), by every sharding.
template <class F>
void with_each_sharding(AttentionCase& attention, int heads, F f)
{
    for (const auto& [name, sharding] : shardings(heads)) {
        SCOPED_TRACE(name);
        OnRanks on_ranks(attention, sharding);
        static_cast<void>(on_ranks.run());
        f(on_ranks.all());
    }
}

/// Few rows and keys, or none: rows that see the sink alone, too.
TEST(ShardedLargeLogits, OfAnyLengths)
{
    for (const auto& [rows_q, rows_k] :
         {std::pair{3, 5}, std::pair{1, 1}, std::pair{0, 4}, std::pair{4, 0}, std::pair{40, 3}}) {
        AttentionCase attention({1, 4, 2, rows_q, rows_k, 8, 8}, DType::float32, 3);
        attention.options.causal = Causal::bottom_right;
        attention.options.scale = 59.0;
        attention.add_sink();
        static_cast<void>(attention.run(attention.options));
        const Results single = attention.take_results();
        SCOPED_TRACE(::testing::Message() << rows_q << "x" << rows_k);
        with_each_sharding(attention, 4, [&](const Results& many) {
            constexpr double relative = 1e-4;       // logits of some hundreds have 2^-15 of their own
            constexpr double of_d = 59.0 * 0x1p-17; // where a row sees one key, dS is the rounding of D
            expect_near(many.o, single.o, relative, "o");
            expect_near(many.lse, single.lse, relative, "lse");
            expect_near(many.dq, single.dq, relative, "dq", of_d);
            expect_near(many.dk, single.dk, relative, "dk", of_d);
            expect_near(many.dv, single.dv, relative, "dv");
            expect_near(many.dsink, single.dsink, relative, "dsink");
        });
    }
}

/// Logits in the millions: each row sees one key. dq and dk are 0 but for the rounding of D, times the scale.
TEST(ShardedLargeLogits, MayBeHuge)
{
    for (const double scale : {1e6, 1e7}) {
        AttentionCase attention({1, 2, 1, 23, 31, 8, 8}, DType::float32, 34);
        attention.options.scale = scale;
        static_cast<void>(attention.run(attention.options));
        const Results single = attention.take_results();
        SCOPED_TRACE(scale);
        with_each_sharding(attention, 2, [&](const Results& many) {
            expect_near(many.o, single.o, 1e-6, "o");
            expect_near(many.lse, single.lse, 1e-6, "lse");
            expect_near(many.dv, single.dv, 1e-6, "dv");
            EXPECT_LE(largest_of(doubles(many.dq)), scale * 0x1p-16);
            EXPECT_LE(largest_of(doubles(many.dk)), scale * 0x1p-16);
        });
    }
}

/// Rows whose bias is -1e9 for every key, as padded queries have it: LSE is -1e9 + log n, which float32 does not keep.
TEST(ShardedLargeLogits, OfRowsThatABiasHidesWhole)
{
    AttentionCase attention({1, 2, 1, 23, 31, 8, 8}, DType::float32, 35);
    attention.add_bias({}, DType::float32);
    for (std::int64_t row = 0; row < 2 * 23; row += 5) {
        std::fill_n(static_cast<float*>(attention.bias.data()) + row * 31, 31, -1e9F);
    }
    static_cast<void>(attention.run(attention.options));
    const Results single = attention.take_results();
    with_each_sharding(attention, 2, [&](const Results& many) {
        expect_near(many.o, single.o, 1e-5, "o");
        expect_near(many.lse, single.lse, 1e-6, "lse");
        expect_near(many.dq, single.dq, 1e-5, "dq");
        expect_near(many.dk, single.dk, 1e-5, "dk");
        expect_near(many.dv, single.dv, 1e-5, "dv");
    });
}

/// o of 16 bits, written by forward and read by backward.
TEST_P(ShardedOptions, MayRoundO)
{
    const DType dtype = GetParam();
    AttentionCase attention(shape, dtype, 29);
    attention.options.causal = Causal::bottom_right;
    attention.add_sink();
    attention.poison_outputs();
    Expected expected;
    if (rank() == 0) {
        expected = attention.expected();
        expected.float32_dsink = expected.naive_gradients.dsink;
    }
    for (const auto& [name, sharding] : shardings(shape.heads_q)) {
        SCOPED_TRACE(name);
        OnRanks on_ranks(attention, sharding);
        static_cast<void>(on_ranks.run());
        on_ranks.give_back();
        if (rank() == 0) {
            expect_passed(attention.compare(expected));
        }
    }
}

/// Masks whose keys do not begin with a byte, and block masks whose blocks are others on each rank: for all sequences
/// and heads, and for each.
TEST(ShardedMasks, OfBitsAndOfBlocks)
{
    for (const io::Shape& extents : {io::Shape{1, 1, 61, 83}, io::Shape{2, 8, 61, 83}, io::Shape{1, 8, 61, 83}}) {
        AttentionCase attention(shape, DType::float32, 30);
        const HostTensor mask = random_mask(attention.random(), extents, 16, 0.3, 0.3, 0.5);
        attention.options.block_mask = BlockMask::from_mask(mask.view(), 16, 16);
        static_cast<void>(attention.run(attention.options));
        const Results single = attention.take_results();
        const auto expect_close = [&](OnRanks& on_ranks) {
            on_ranks.poison(DType::float32);
            static_cast<void>(on_ranks.run());
            const Results many = on_ranks.all();
            EXPECT_LE(max_error(doubles(many.o), doubles(single.o)), 2e-6);
            EXPECT_LE(max_error(doubles(many.dq), doubles(single.dq)), 1e-5);
            EXPECT_LE(max_error(doubles(many.dk), doubles(single.dk)), 1e-5);
            EXPECT_LE(max_error(doubles(many.dv), doubles(single.dv)), 1e-5);
        };
        for (const auto& [name, sharding] : shardings(shape.heads_q)) {
            SCOPED_TRACE(::testing::Message() << name << ", masks of " << extents[0] << " and " << extents[1]);
            OnRanks on_ranks(attention, sharding);
            const HostTensor own = gathered(mask, 2, on_ranks.rows_q());
            const HostTensor bits = packed_bits(own);
            on_ranks.options.block_mask = {};
            on_ranks.options.mask = view_of_bits(bits);
            expect_close(on_ranks);
            on_ranks.options.mask = {};
            on_ranks.options.block_mask = BlockMask::from_mask(own.view(), 16 + 5 * rank(), 40 - 3 * rank());
            expect_close(on_ranks);
        }
    }
}

} // namespace
} // namespace flashomp::testing
