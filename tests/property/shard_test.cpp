// A call in shards, merged, has the results of the call on the whole: under every option, forward and backward, in one
// stretch a shard and in two. Sums are float32, and so rounded once: the limits are those of a single call, but for
// dbias and dsink in 16 bits. A call on some sequences and heads has what the call on the whole has for them, to the
// bit.
#include "support/case_parts.hpp"
#include "support/sharded.hpp"
#include "support/target.hpp"

#include <array>
#include <cmath>
#include <limits>

namespace flashomp::testing {
namespace {

constexpr Shape shape{2, 4, 2, 61, 83, 24, 16};

struct Named {
    const char* name;
    std::function<void(AttentionCase&)> set;
};

std::vector<Named> option_sets()
{
    const auto masked = [](AttentionCase& c) {
        c.mask = random_mask(c.random(), {1, 4, 61, 83}, 16, 0.3, 0.3, 0.5);
        c.options.mask = std::as_const(c.mask).view();
    };
    return {
        {"nothing", [](AttentionCase&) {}},
        {"top_left", [](AttentionCase& c) { c.options.causal = Causal::top_left; }},
        {"bottom_right", [](AttentionCase& c) { c.options.causal = Causal::bottom_right; }},
        {"window",
         [](AttentionCase& c) {
             c.options.window = {17, 9};
         }},
        {"key_padding", [](AttentionCase& c) { c.add_key_padding(); }},
        {"sink", [](AttentionCase& c) { c.add_sink(); }},
        {"mask", masked},
        {"alibi", [](AttentionCase& c) { c.add_alibi(true); }},
        {"bias",
         [](AttentionCase& c) {
             c.add_bias({true, false, false, false}, DType::float32);
         }},
        {"softcap", [](AttentionCase& c) { c.options.softcap = 3.0; }},
        {"dropout", [](AttentionCase& c) { c.add_dropout(0.3); }},
        {"all",
         [&](AttentionCase& c) {
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

class Shards : public EveryTargetTest {};

INSTANTIATE_TEST_SUITE_P(Machines, Shards, ::testing::ValuesIn(targets()), target_name);

void expect_results_of_the_whole(DType dtype, const std::function<Options(Options)>& where)
{
    for (const Named& options : option_sets()) {
        for (const Scheme scheme : {Scheme::contiguous, Scheme::zigzag}) {
            SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << options.name
                                              << (scheme == Scheme::zigzag ? " zigzag" : " contiguous"));
            AttentionCase attention(shape, dtype, 28);
            options.set(attention);
            ShardedRun(attention, scheme, 3, where).run();
            Expected expected = attention.expected();
            // Machines that multiply 16 bits round P for o. D = rowsum(dO∘O) has that error, and of a part of a row no
            // sum tells it (row_repair.hpp).
            expected.float32_dbias = expected.naive_gradients.dbias;
            expected.float32_dsink = expected.naive_gradients.dsink;
            expect_passed(attention.compare(expected));
        }
    }
}

TEST_P(Shards, HaveTheResultsOfTheWhole)
{
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        expect_results_of_the_whole(dtype, [this](const Options& options) { return on_target(options); });
    }
}

TEST(ShardsOfTheReference, HaveTheResultsOfTheWhole)
{
    expect_results_of_the_whole(DType::float32, [](Options options) {
        options.backend = Backend::reference;
        options.threads = 1;
        return options;
    });
}

/// More ranks than rows: shards of one row and of none.
TEST_P(Shards, MayBeEmpty)
{
    for (const Scheme scheme : {Scheme::contiguous, Scheme::zigzag}) {
        AttentionCase attention({1, 2, 1, 3, 5, 8, 8}, DType::float32, 29);
        attention.options.causal = Causal::bottom_right;
        ShardedRun(attention, scheme, 4, [this](const Options& options) { return on_target(options); }).run();
        attention.expect_close();
    }
}

/// Keys that the positions hide may hold anything: a whole shard of them, and the second stretch of one.
TEST_P(Shards, HiddenKeysHaveNoInfluence)
{
    const Shard queries = shard_of(Scheme::contiguous, 0, 3, 60);
    for (const auto& [scheme, rank] : {std::pair{Scheme::contiguous, 2}, std::pair{Scheme::zigzag, 0}}) {
        SCOPED_TRACE(scheme == Scheme::zigzag ? "zigzag" : "contiguous");
        const Shard keys = shard_of(scheme, rank, 3, 60);
        AttentionCase attention({1, 2, 1, 20, 20, 16, 16}, DType::float32, 30);
        attention.options.causal = Causal::top_left;
        attention.options.positions_q = queries.positions;
        attention.options.positions_k = keys.positions;
        static_cast<void>(attention.run(on_target(attention.options)));
        const Results clean = attention.take_results();
        const std::int64_t seen = scheme == Scheme::zigzag ? 10 : 0;
        for (HostTensor* const tensor : {&attention.k, &attention.v}) {
            auto* const values = static_cast<float*>(tensor->data());
            std::fill(values + seen * 16, values + 20 * 16, std::numeric_limits<float>::quiet_NaN());
        }
        static_cast<void>(attention.run(on_target(attention.options)));
        EXPECT_LE(max_error(doubles(attention.o), doubles(clean.o)), 1e-5);
        EXPECT_LE(max_error(doubles(attention.dq), doubles(clean.dq)), 1e-5);
        EXPECT_LE(max_error(doubles(attention.dk), doubles(clean.dk)), 1e-5);
        EXPECT_LE(max_error(doubles(attention.dv), doubles(clean.dv)), 1e-5);
        const std::vector<double> dk = doubles(attention.dk), dv = doubles(attention.dv), o = doubles(attention.o);
        const auto is_zero = [](double x) { return x == 0.0; };
        EXPECT_TRUE(std::all_of(dk.begin() + seen * 16, dk.end(), is_zero));
        EXPECT_TRUE(std::all_of(dv.begin() + seen * 16, dv.end(), is_zero));
        if (seen == 0) {
            const std::vector<double> lse = doubles(attention.lse);
            EXPECT_TRUE(std::all_of(o.begin(), o.end(), is_zero));
            EXPECT_TRUE(std::all_of(lse.begin(), lse.end(), [](double x) { return x == -HUGE_VAL; }));
        }
    }
}

/// Results in float32 are those of 16 bits before they are rounded; on the host to the bit.
TEST_P(Shards, ResultsMayBeFloat32)
{
    for (const DType dtype : {DType::bfloat16, DType::float16}) {
        AttentionCase attention(shape, dtype, 31);
        attention.options.causal = Causal::bottom_right;
        static_cast<void>(attention.run(on_target(attention.options)));
        const Results narrow = attention.take_results();
        attention.poison_outputs();
        const auto widen = [](HostTensor& tensor) {
            tensor = HostTensor(DType::float32, tensor.shape(), Fill::poison);
        };
        for (HostTensor* const tensor : {&attention.o, &attention.dq, &attention.dk, &attention.dv}) {
            widen(*tensor);
        }
        const Options options = on_target(attention.options);
        forward(attention.forward_args(), options);
        BackwardArgs args = attention.backward_args();
        args.o = narrow.o.view(); // else D would be another one
        backward(args, options);
        const auto expect_rounded = [&](const char* name, const HostTensor& wide, const HostTensor& rounded) {
            SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << name);
            if (target_.machine == Machine::host) {
                EXPECT_TRUE(same_bits(io::converted(wide, dtype), rounded));
            }
            const std::vector<double> values = doubles(rounded);
            const double largest = std::abs(*std::max_element(
                values.begin(), values.end(), [](double a, double b) { return std::abs(a) < std::abs(b); }));
            EXPECT_LE(max_error(doubles(wide), values), 0.01 * largest);
            EXPECT_GT(max_error(doubles(wide), values), 0.0); // or nothing was gained
        };
        expect_rounded("o", attention.o, narrow.o);
        expect_rounded("dq", attention.dq, narrow.dq);
        expect_rounded("dk", attention.dk, narrow.dk);
        expect_rounded("dv", attention.dv, narrow.dv);
    }
}

struct WholeCase {
    const char* name;
    std::function<AttentionCase(DType)> make;
};

/// Cases of three sequences or more, and of three key heads.
std::vector<WholeCase> whole_cases()
{
    return {
        {"padded",
         [](DType dtype) {
             AttentionCase c({3, 6, 3, 61, 83, 24, 16}, dtype, 32);
             c.options.causal = Causal::bottom_right;
             c.add_alibi(true);
             c.add_bias({}, DType::float32);
             c.add_key_padding();
             c.add_sink();
             return c;
         }},
        {"one query", // whose heads could be rows of one block
         [](DType dtype) {
             return AttentionCase({3, 12, 3, 1, 150, 32, 32}, dtype, 33);
         }},
        {"packed",
         [](DType dtype) {
             AttentionCase c({0, 3, 3, 0, 0, 16, 24}, {{61, 40, 0, 61, 9}, {83, 31, 4, 83, 12}}, dtype, 34);
             c.options.window = {60, 20};
             return c;
         }},
    };
}

/// Bits on the host. How a GPU splits keys and heads depends on how many there are.
void expect_bits_of_the_whole(const std::function<Options(Options)>& where, bool is_device)
{
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        for (const WholeCase& whole : whole_cases()) {
            SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << whole.name);
            AttentionCase attention = whole.make(dtype);
            attention.add_dropout(0.3);
            static_cast<void>(attention.run(where(attention.options)));
            Results all = attention.take_results();
            all.dsink = {}; // a sum over sequences, which parts are not asked for
            const std::int64_t rest = attention.shape().batch - 1;
            const std::vector<Extent> sequences{{0, 1}, {1, rest}}, heads{{0, 1}, {1, 2}};
            const auto run = [&](const std::function<void(Options&)>& change) {
                run_in_parts(attention, sequences, heads, [&](Options options) {
                    change(options);
                    return where(options);
                });
                Results parts = attention.take_results();
                parts.dsink = {};
                return parts;
            };
            const Results parts = run([](Options&) {});
            if (is_device) {
                const double most = dtype == DType::float32 ? 1e-5 : 0.05;
                EXPECT_LE(max_error(doubles(parts.o), doubles(all.o)), most);
                EXPECT_LE(max_error(doubles(parts.dq), doubles(all.dq)), most);
                EXPECT_LE(max_error(doubles(parts.dk), doubles(all.dk)), most);
                EXPECT_LE(max_error(doubles(parts.dv), doubles(all.dv)), most);
            } else {
                expect_same_bits(parts, all);
            }
            // Each number counts.
            for (std::int64_t Options::*const first : {&Options::first_sequence, &Options::first_head}) {
                const Results others = run([&](Options& options) { options.*first = 0; });
                EXPECT_GT(max_error(doubles(others.o), doubles(all.o)), 0.05);
                EXPECT_GT(max_error(doubles(others.dv), doubles(all.dv)), 0.05);
                EXPECT_TRUE(same_bits(others.lse, parts.lse)) << "which dropout does not reach";
            }
        }
    }
}

TEST_P(Shards, OfSequencesAndHeadsHaveTheBitsOfTheWhole)
{
    expect_bits_of_the_whole([this](const Options& options) { return on_target(options); }, target_.is_device);
}

TEST(ShardsOfTheReference, OfSequencesAndHeadsHaveTheBitsOfTheWhole)
{
    expect_bits_of_the_whole(
        [](Options options) {
            options.backend = Backend::reference;
            options.threads = 1;
            return options;
        },
        false);
}

/// The largest numbers that a part may have.
TEST_P(Shards, MayBeTheLastSequencesAndHeads)
{
    AttentionCase attention({2, 4, 2, 33, 47, 16, 16}, DType::float32, 35);
    attention.add_dropout(0.4);
    attention.options.first_sequence = (std::int64_t{1} << 30) - 2;
    attention.options.first_head = (std::int64_t{1} << 20) - 4;
    static_cast<void>(attention.run(on_target(attention.options)));
    attention.expect_close();
}

} // namespace
} // namespace flashomp::testing
