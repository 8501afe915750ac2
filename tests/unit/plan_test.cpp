// What plan() decides, without running it: what it may not depend on, and what a tuning table changes.
#include "plan.hpp"

#include "hardware.hpp"
#include "refusal.hpp"
#include "shape.hpp"

#include <algorithm>
#include <gtest/gtest.h>

namespace flashomp {
namespace {

offload::Launch first_launch(const Problem& problem, const Hardware& hardware)
{
    return plan(as_computed(problem, hardware), hardware).passes.front().launch;
}

TEST(HostPlan, StreamRowsOfTheForwardPassAreThoseOfAnyNumberOfThreads)
{
    for (const offload::HostIsa& isa : offload::host_isas()) {
        if (!isa.is_supported()) {
            continue;
        }
        for (const std::int64_t cache : {std::int64_t{0}, std::int64_t{1} << 18, std::int64_t{1} << 21}) {
            for (const char* const name : {"b1_h1_n700_d96", "b1_h2_n300_d256", "b1_h3_n2048_d128_causal"}) {
                Hardware hardware = host_with(1);
                hardware.isa = &isa;
                hardware.core_cache_bytes = cache;
                const Problem problem = cost::problem_of(cost::parse_shape(name), DType::float32, false, {});
                const int rows = first_launch(problem, hardware).stream_rows;
                for (const int threads : {2, 5, 16, 64}) {
                    hardware.threads = threads;
                    EXPECT_EQ(first_launch(problem, hardware).stream_rows, rows) << isa.name << " " << name;
                }
            }
        }
    }
}

/// Or else the bits of a cache of 8 bits were those of its products on some machines only, by the size of their caches.
TEST(HostPlan, KeyBlocksOfACacheOf8BitsAreThoseOfACacheOfItsProducts)
{
    for (const std::int64_t cache : {0, 1 << 17, 1 << 18, 1 << 19, 1 << 20, 1 << 21}) {
        for (const char* const name : {"b2_h4kv2_n1x320_d72v40", "b1_h32_n1x4096_d128", "b3_h8kv2_n40x704_d64"}) {
            for (const DType dtype : {DType::float32, DType::bfloat16}) {
                Hardware hardware = host_with(2);
                hardware.core_cache_bytes = cache;
                const auto stream_rows = [&](const std::string& ending) {
                    const cost::Shape shape = cost::parse_shape(name + ending);
                    return first_launch(cost::problem_of(shape, dtype, false, {}), hardware).stream_rows;
                };
                const int rows = stream_rows("_page16");
                for (const char* const narrow : {"_page16_int8", "_page16_float8"}) {
                    EXPECT_EQ(stream_rows(narrow), rows) << name << narrow << " " << name_of(dtype) << " " << cache;
                }
            }
        }
    }
}

std::vector<offload::Pass> passes_of(const Problem& problem, const Hardware& hardware)
{
    std::vector<offload::Pass> passes;
    for (const PassPlan& pass : plan(problem, hardware).passes) {
        passes.push_back(pass.launch.pass);
    }
    return passes;
}

TEST(HostPlan, OnePassForFloat32WhoseLseIsExactEnough)
{
    using offload::Pass;
    const std::vector<Pass> two{Pass::backward_query, Pass::backward_key};
    const std::vector<Pass> one{Pass::backward_start, Pass::backward_once};
    const cost::Shape shape = cost::parse_shape("b1_h2_n300_d64");
    for (const offload::HostIsa& isa : offload::host_isas()) {
        if (!isa.is_supported()) { // not even its sizes: the compiler may use its instructions for them
            continue;
        }
        Hardware hardware = host_with(2);
        hardware.isa = &isa;
        Problem problem = cost::problem_of(shape, DType::float32, true, {});
        EXPECT_EQ(passes_of(problem, hardware), one) << isa.name; // on vectors, if need be
        hardware.is_isa_named = true;
        EXPECT_EQ(passes_of(problem, hardware), isa_for(isa, offload::Element::float32).has_one_pass ? one : two)
            << isa.name;
        problem.has_large_lse = true;
        EXPECT_EQ(passes_of(problem, hardware), two) << isa.name;
        for (const DType dtype : {DType::bfloat16, DType::float16}) {
            EXPECT_EQ(passes_of(cost::problem_of(shape, dtype, true, {}), hardware), two) << isa.name;
        }
    }
}

// Crews wait for the key blocks before theirs, so these may not be drawn later: a window makes the first ones shorter.
TEST(HostPlan, KeyBlocksOfAPackedSequenceComeInTheirOrder)
{
    Hardware hardware = host_with(4);
    for (const offload::HostIsa& isa : offload::host_isas()) {
        hardware.isa = isa.has_one_pass && isa.is_supported() ? &isa : hardware.isa;
    }
    Options options;
    options.window = {100, 700};
    const Problem problem =
        cost::problem_of(cost::parse_shape("b5_h2_n1500_d64_varlen"), DType::float32, true, options);
    const Plan planned = plan(problem, hardware);
    ASSERT_TRUE(is_one_pass(planned));
    std::vector<int> next(static_cast<std::size_t>(problem.batch), 0);
    for (const offload::Unit& unit : planned.passes.back().units) {
        EXPECT_EQ(unit.block, next.at(static_cast<std::size_t>(unit.batch))++) << "sequence " << unit.batch;
    }
    EXPECT_GT(*std::max_element(next.begin(), next.end()), 2);
}

TEST(OneQuery, HasTheHeadsOfAGroupAsRowsAndTheKeysOfItsWindow)
{
    const auto problem_of = [](const char* shape) {
        return cost::problem_of(cost::parse_shape(shape), DType::bfloat16, false, {});
    };
    const auto computed = [](const Problem& problem) { return as_computed(problem, host_with(2)); };
    const Problem local = computed(problem_of("b2_h8kv2_n1x100_d64_causal_window9"));
    EXPECT_TRUE(local.rows_are_heads);
    EXPECT_EQ(local.heads_q, 2);
    EXPECT_EQ(local.seqlen_q, 4);
    EXPECT_EQ(local.seqlen_k, 10);
    EXPECT_EQ(local.k.shape[1], 10);
    EXPECT_EQ(local.skipped_keys, 90);
    EXPECT_LT(local.options.window.left, 0);
    const Problem whole = computed(problem_of("b2_h8kv2_n1x100_d64_causal_window99"));
    EXPECT_EQ(whole.seqlen_k, 100);
    EXPECT_EQ(whole.skipped_keys, 0);
    const Problem cached = computed(problem_of("b2_h8kv2_n1x112_d64_causal_window9_page16"));
    EXPECT_EQ(cached.newest_keys, 10);
    EXPECT_EQ(cached.seqlen_k, 112);
    EXPECT_EQ(cached.skipped_keys, 0);
    EXPECT_EQ(cached.seen_keys(), 10);
    EXPECT_LT(cached.options.window.left, 0);
    const Problem alone = computed(problem_of("b2_h2_n1x100_d64_causal_window9"));
    EXPECT_EQ(alone.seqlen_k, 10);
    EXPECT_EQ(alone.heads_q, 2);
    Problem masked = problem_of("b2_h8kv2_n1x100_d64_causal_window9");
    masked.options.mask =
        ConstTensorView::contiguous(static_cast<const std::uint8_t*>(nullptr), DType::boolean, {1, 1, 1, 100});
    EXPECT_FALSE(computed(masked).rows_are_heads) << "the mask's columns are those of all keys";
    Problem first_key_alone = problem_of("b2_h8kv2_n1x100_d64"), dropping = first_key_alone;
    first_key_alone.options.causal = Causal::top_left;
    dropping.options.dropout.probability = 0.5;
    for (const Problem& other : {first_key_alone, dropping, problem_of("b2_h8kv2_n2x100_d64")}) {
        EXPECT_FALSE(computed(other).rows_are_heads);
        EXPECT_EQ(computed(other).heads_q, 8);
    }
}

TEST(Plan, MoreItemsThanAreCountableAreRefused)
{
    const auto expect_refused = [](const char* sentence, const char* shape, const Hardware& hardware) {
        const Problem problem = cost::problem_of(cost::parse_shape(shape), DType::bfloat16, false, {});
        testing::expect_refused(sentence, [&] { static_cast<void>(plan(problem, hardware)); });
    };
    expect_refused("q had 3000000000 blocks of up to 1024 rows in all sequences and heads; at most 2000000000",
                   "b100000_h30000_n1_d8", gpu());
    expect_refused(" blocks of rows in all sequences and heads; at most 2000000000", "b100000_h1000_n3000_d8", gpu());
    for (const Hardware& hardware : {gpu(), Hardware{}}) { // 2^64 blocks or more: 0, counted in 64 bits
        expect_refused("blocks of up to 1024 rows", "b1073741824_h1048576_n1048576_d8", hardware);
    }
}

/// A table with one entry, for the class of a problem.
class TunedPlan : public ::testing::Test {
protected:
    Hardware hardware_with(const tuning::Choice& choice, int threads = 2)
    {
        table_.entries.clear();
        table_.entries[tuning::class_of(problem_, Backend::openmp)].choice = choice;
        Hardware hardware = host_with(threads);
        hardware.tuned.user = &table_;
        return hardware;
    }

    Problem problem_ = cost::problem_of(cost::parse_shape("b1_h4_n1000_d64"), DType::float32, false, {});
    tuning::Table table_;
};

TEST_F(TunedPlan, TakesTheEntryForTheWholeClassAndAnyNumberOfThreads)
{
    for (const int threads : {1, 2, 16}) {
        const Hardware hardware = hardware_with({Machine::automatic, {.stream_rows = 32}}, threads);
        EXPECT_TRUE(as_computed(problem_, hardware).is_tuned);
        EXPECT_EQ(first_launch(problem_, hardware).stream_rows, 32);
        const Problem same = cost::problem_of(cost::parse_shape("b2_h2_n600x513_d20"), DType::float32, false, {});
        EXPECT_EQ(first_launch(same, hardware).stream_rows, 32);
    }
    const Hardware hardware = hardware_with({Machine::automatic, {.stream_rows = 32}});
    for (const char* const name : {"b1_h4_n1025_d64", "b1_h5_n1000_d64", "b1_h4_n1000_d65", "b1_h4_n1000_d64_causal",
                                   "b1_h4kv2_n1000_d64", "b1_h4_n1000_d64_varlen", "b1_h4_n512_d64"}) {
        const Problem other = cost::problem_of(cost::parse_shape(name), DType::float32, false, {});
        EXPECT_FALSE(as_computed(other, hardware).is_tuned) << name;
    }
    EXPECT_FALSE(
        as_computed(cost::problem_of(cost::parse_shape("b1_h4_n1000_d64"), DType::bfloat16, false, {}), hardware)
            .is_tuned);
}

TEST_F(TunedPlan, LeavesAloneWhatTheCallerChose)
{
    const Hardware hardware = hardware_with({Machine::automatic, {.stream_rows = 32}});
    Problem named = problem_;
    named.options.machine = Machine::host;
    EXPECT_FALSE(as_computed(named, hardware).is_tuned);
    Problem tiled = problem_;
    tiled.options.tiling.resident_rows = 64;
    EXPECT_FALSE(as_computed(tiled, hardware).is_tuned);
    EXPECT_EQ(as_computed(tiled, hardware).options.tiling.stream_rows, 0);
}

TEST_F(TunedPlan, AnEntryThatCannotRunIsAsIfItWereNotThere)
{
    const int automatic = first_launch(problem_, host_with(2)).stream_rows;
    for (const tuning::Choice& choice :
         {tuning::Choice{Machine::tensor, {}}, tuning::Choice{Machine::automatic, {.resident_rows = 7}},
          tuning::Choice{Machine::plain, {.stream_rows = 3}}, tuning::Choice{}}) {
        const Hardware hardware = hardware_with(choice);
        const Problem computed = as_computed(problem_, hardware);
        EXPECT_FALSE(computed.is_tuned) << tuning::text_of(choice);
        EXPECT_EQ(computed.options.machine, Machine::automatic);
        EXPECT_EQ(computed.options.tiling, Tiling{});
        EXPECT_EQ(first_launch(problem_, hardware).stream_rows, automatic);
    }
    Hardware cuda = hardware_with({});
    cuda.is_device = true;
    cuda.backend = Backend::cuda;
    table_.entries[tuning::class_of(problem_, Backend::cuda)].choice.machine = Machine::hopper;
    EXPECT_FALSE(as_computed(problem_, cuda).is_tuned);
}

} // namespace
} // namespace flashomp
