// What plan() decides, without running it: what it may not depend on, and what a tuning table changes.
#include "plan.hpp"

#include "host_isa.hpp"
#include "kernel_params.hpp"
#include "refusal.hpp"
#include "shape.hpp"

#include "algorithm/turns.hpp"
#include "launch/pass.hpp"

#include <algorithm>
#include <gtest/gtest.h>

namespace flashomp {
namespace {

Hardware host_with(int threads)
{
    Hardware hardware;
    hardware.isa = &choose_host_isa();
    hardware.threads = threads;
    return hardware;
}

Hardware gpu()
{
    Hardware hardware = host_with(2);
    hardware.is_device = true;
    hardware.device = 0;
    return hardware;
}

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

TEST(GpuPlan, EveryPassHasTheMachineThatIsThereForIt)
{
    if (!offload::has_gpu_code()) {
        GTEST_SKIP() << "this build has no GPU code";
    }
    Hardware hardware = gpu();
    const auto machines = [&](const char* shape, DType dtype, double softcap, bool has_hopper) {
        hardware.gpu.matrix_units = has_hopper ? MatrixUnits::warpgroup : MatrixUnits::warp;
        Problem problem = cost::problem_of(cost::parse_shape(shape), dtype, true, {});
        problem.options.softcap = softcap;
        return plan(problem, hardware).machine_name; // of dQ, then of dK and dV
    };
    EXPECT_EQ(machines("b1_h4_n1024_d64", DType::bfloat16, 30, true), "hopper");
    EXPECT_EQ(machines("b1_h4_n1024_d128", DType::bfloat16, 0, true), "hopper");
    EXPECT_EQ(machines("b1_h4_n1024_d128", DType::float16, 30, true), "hopper+tensor");
    EXPECT_EQ(machines("b1_h4_n1024_d128", DType::float16, 30, false), "tensor");
    EXPECT_EQ(machines("b1_h4_n1024_d192", DType::bfloat16, 30, true), "tensor");
    EXPECT_EQ(machines("b1_h4_n1024_d192v160", DType::bfloat16, 0, true), "hopper");
    EXPECT_EQ(machines("b1_h4_n1024_d64", DType::float32, 30, true), "tensor");
    EXPECT_EQ(machines("b1_h4_n1024_d128", DType::float32, 0, true), "tensor");
    EXPECT_EQ(machines("b1_h4_n1024_d192", DType::float32, 0, true), "plain");
    EXPECT_EQ(machines("b1_h4_n1024_d256", DType::bfloat16, 0, false), "tensor");
    EXPECT_EQ(machines("b1_h4_n1024_d256", DType::bfloat16, 0, true), "hopper");
    EXPECT_EQ(machines("b1_h4_n1024_d288", DType::bfloat16, 0, true), "plain");
    EXPECT_EQ(machines("b1_h4_n1024_d576v512", DType::float16, 30, true), "plain");

    const auto forward_machine = [&](const char* shape) {
        const Problem problem = cost::problem_of(cost::parse_shape(shape), DType::bfloat16, false, {});
        return plan(problem, hardware).machine_name;
    };
    EXPECT_EQ(forward_machine("b1_h4_n1024_d128"), "hopper");
    EXPECT_EQ(forward_machine("b1_h4_n1024_d192v128"), "hopper");
    EXPECT_EQ(forward_machine("b1_h4_n1024_d192v96"), "tensor");
    EXPECT_EQ(forward_machine("b1_h4_n1024_d200"), "tensor");
    EXPECT_EQ(forward_machine("b1_h4_n1024_d256"), "hopper");
    EXPECT_EQ(forward_machine("b1_h4_n1024_d320"), "tensor"); // what is beyond 256 is nobody else's
    EXPECT_EQ(forward_machine("b1_h128kv1_n1x1024_d576v512_latent"), "tensor");
    const auto parts_of_values = [&](const char* shape) {
        const Problem problem = cost::problem_of(cost::parse_shape(shape), DType::bfloat16, false, {});
        return plan(problem, hardware).passes.front().value_parts;
    };
    EXPECT_EQ(parts_of_values("b1_h4_n1024_d576v512"), 2);
    EXPECT_EQ(parts_of_values("b1_h4_n1024_d576v256"), 1);
    EXPECT_EQ(parts_of_values("b1_h4_n1024_d128"), 1);
}

TEST(GpuPlan, ACrewIsAPairOfTeamsWhereOneHasNoRoom)
{
    if (!offload::has_gpu_code()) {
        GTEST_SKIP() << "this build has no GPU code";
    }
    Hardware hardware = gpu();
    hardware.gpu.matrix_units = MatrixUnits::warpgroup;
    hardware.gpu.multiprocessors = 128; // for 256 teams
    const auto dk_dv = [&](const char* shape, int teams) {
        Problem problem = cost::problem_of(cost::parse_shape(shape), DType::bfloat16, true, {});
        problem.options.tiling.teams = teams;
        return plan(problem, hardware).passes.at(1).launch;
    };
    for (const offload::Launch& launch : {dk_dv("b8_h8_n4096_d256", 0), dk_dv("b8_h8_n4096_d200", 0)}) {
        EXPECT_EQ(launch.crew_teams, 2);
        EXPECT_EQ(launch.crews, 128); // two teams each
        EXPECT_EQ(launch.crew_threads, 4);
    }
    EXPECT_EQ(dk_dv("b8_h8_n4096_d64", 0).crew_teams, 1);
    EXPECT_EQ(dk_dv("b8_h8_n4096_d64", 0).crews, 256);
    EXPECT_EQ(dk_dv("b8_h8_n4096_d128", 0).crews, 128); // one pass: a multiprocessor each
    EXPECT_EQ(dk_dv("b8_h8_n4096_d128", 0).crew_threads, 8);
    EXPECT_EQ(dk_dv("b8_h8_n4096_d256", 7).crews, 3); // whole pairs of the teams that the caller allows
    EXPECT_EQ(dk_dv("b8_h8_n4096_d256", 1).crews, 1);
    EXPECT_EQ(dk_dv("b1_h1_n64_d256", 0).crews, 1);
}

TEST(GpuPlan, DvAndThenDkReadTheirBlocksTwice)
{
    if (!offload::has_gpu_code()) {
        GTEST_SKIP() << "this build has no GPU code";
    }
    Hardware hardware = gpu();
    const auto reads_twice = [&](const char* shape, DType dtype) {
        return plan(cost::problem_of(cost::parse_shape(shape), dtype, true, {}), hardware).passes.at(1).sums_apart;
    };
    EXPECT_TRUE(reads_twice("b1_h4_n1024_d256", DType::bfloat16));
    EXPECT_TRUE(reads_twice("b1_h4_n1024_d128", DType::float32));
    EXPECT_FALSE(reads_twice("b1_h4_n1024_d128", DType::bfloat16));
    EXPECT_FALSE(reads_twice("b1_h4_n1024_d256", DType::float32)); // plain
}

TEST(GpuPlan, QueryHeadsOfAGroupAreSharedOutWhereKeyBlocksAreFew)
{
    if (!offload::has_gpu_code()) {
        GTEST_SKIP() << "this build has no GPU code";
    }
    const auto planned = [](const char* shape) {
        Hardware hardware = gpu();
        hardware.gpu.matrix_units = MatrixUnits::warpgroup;
        hardware.gpu.multiprocessors = 128; // for 256 teams
        const Problem problem = cost::problem_of(cost::parse_shape(shape), DType::bfloat16, true, {});
        const Plan decided = plan(problem, hardware);
        // No more than a float32 dQ would be.
        EXPECT_LE(decided.partial_bytes, 4 * problem.lse.elements() * problem.head_dim) << shape;
        EXPECT_EQ(problem.heads_q / problem.heads_kv % decided.head_splits, 0) << shape;
        EXPECT_LE(decided.passes.at(1).launch.crews, block_count(problem, decided.passes.at(1)) * decided.head_splits)
            << shape;
        return decided.head_splits;
    };
    EXPECT_EQ(planned("b4_h16kv1_n1024_d64"), 4);        // 64 key blocks for 256 crews
    EXPECT_EQ(planned("b4_h16kv1_n1024_d64_causal"), 8); // more parts would take more memory
    EXPECT_EQ(planned("b4_h16kv1_n4096_d64_causal"), 4);
    EXPECT_EQ(planned("b4_h16kv1_n4096_d64"), 1);
    EXPECT_EQ(planned("b4_h16_n1024_d64"), 1);       // a head each
    EXPECT_EQ(planned("b1_h10kv1_n512_d128"), 5);    // a divisor of the group
    EXPECT_EQ(planned("b1_h16kv1_n64x8192_d64"), 1); // long keys: their sums would be more than dQ
    EXPECT_EQ(plan(cost::problem_of(cost::parse_shape("b1_h16kv1_n512_d64"), DType::bfloat16, true, {}), host_with(2))
                  .head_splits,
              1);
}

TEST(GpuPlan, KeysOfFewQueriesAreSplit)
{
    if (!offload::has_gpu_code()) {
        GTEST_SKIP() << "this build has no GPU code";
    }
    Hardware hardware = gpu();
    hardware.gpu.matrix_units = MatrixUnits::warpgroup;
    hardware.gpu.multiprocessors = 132;
    const auto planned = [&](const char* shape) {
        return plan(as_computed(cost::problem_of(cost::parse_shape(shape), DType::bfloat16, false, {}), hardware),
                    hardware);
    };
    EXPECT_EQ(planned("b1_h8_n1x500_d128").splits, 1);
    EXPECT_EQ(planned("b1_h32kv8_n1x512_d128").splits, 8);
    EXPECT_EQ(planned("b1_h32kv8_n1x1024_d128").splits, 16);  // a crew on each multiprocessor
    EXPECT_EQ(planned("b1_h32kv8_n1x4096_d128").splits, 32);  // parts long enough for two
    EXPECT_EQ(planned("b1_h32kv8_n1x16384_d128").splits, 64); // for four
    EXPECT_EQ(planned("b1_h32kv8_n1x65536_d128").splits, 64); // as many as are merged
    EXPECT_EQ(planned("b1_h64kv4_n1x16384_d128").splits, 32); // 16 rows, which are more to merge
    EXPECT_EQ(planned("b16_h32kv8_n1x1024_d128").splits, 4);
    EXPECT_EQ(planned("b16_h32kv8_n1x4096_d128").splits, 4);
    EXPECT_EQ(planned("b1_h1_n65x16384_d128").splits, 1);
    EXPECT_FALSE(planned("b1_h32kv8_n1x16384_d128").merges); // the last crew of a block does
    EXPECT_FALSE(planned("b1_h8_n1x500_d128").merges);
    EXPECT_TRUE(planned("b1_h8_n1x16384_d128v33").merges); // not by four floats
    EXPECT_EQ(planned("b1_h8_n1x2000_d128v33").splits, 1);
    EXPECT_EQ(planned("b1_h32kv8_n1x65536_d128_causal_window1023").splits, 16); // as of 1024 keys
    EXPECT_EQ(planned("b1_h32kv8_n1x65536_d128_causal_window1023_page16").splits, 16);
    Problem empty = cost::problem_of(cost::parse_shape("b1_h8_n1x16384_d128"), DType::bfloat16, false, {});
    empty.seqlen_q = 0;
    EXPECT_EQ(plan(empty, hardware).splits, 1); // nothing to merge
    hardware.gpu.multiprocessors = 0;           // unknown, so that not all crews may be there at one time
    EXPECT_TRUE(planned("b1_h32kv8_n1x16384_d128").merges);
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

/// Crews that add to dQ by turns, a tile at a time: whether all of them come to an end.
bool do_turns_end(const Problem& problem, const Hardware& hardware)
{
    const offload::Params p = described_params(problem, hardware);
    const Plan decided = plan(problem, hardware);
    const offload::Launch& launch = decided.passes.at(1).launch;
    const offload::Work work(p, launch);
    const offload::Sequence seq = offload::sequence(p, 0);
    const offload::Band band = offload::band_of(p, seq);
    struct Step {
        std::size_t block;
        unsigned before, after;
    };
    const auto steps_of = [&](std::int64_t number) { // of an item, query head after query head
        const offload::WorkItem item = work.item(number);
        const int group = p.heads_q / p.heads_kv;
        const offload::Range seen =
            offload::seeing_query_blocks(band, item.block, launch.stream_rows, launch.resident_rows);
        const int first = item.order == offload::KeyOrder::rotating
                              ? offload::first_query_block(item.block, work.blocks, seen.end)
                              : seen.begin;
        std::vector<Step> steps;
        for (int head = item.head * group; head < (item.head + 1) * group; ++head) {
            const offload::Turns turns =
                offload::turns_of(p, item, band, head, launch.stream_rows, launch.resident_rows);
            const auto is_in = [](int block, const offload::Range& range) {
                return block >= range.begin && block < range.end;
            };
            for (int i = 0; i < seen.end - seen.begin; ++i) {
                const int block = first + i < seen.end ? first + i : seen.begin + (first + i - seen.end);
                steps.push_back({static_cast<std::size_t>(turns.block + block),
                                 is_in(block, turns.first) ? 0 : turns.before,
                                 is_in(block, turns.last) ? 0 : turns.own});
            }
        }
        return steps;
    };
    struct Crew {
        std::int64_t item;
        std::vector<Step> steps;
        std::size_t done = 0;
    };
    const std::int64_t blocks = p.seqlen_q / launch.stream_rows + 1;
    std::vector<unsigned> numbers(static_cast<std::size_t>(p.batch * std::int64_t{p.heads_q} * blocks));
    std::vector<Crew> crews;
    std::int64_t drawn = 0;
    for (; drawn < std::min<std::int64_t>(launch.crews, work.items); ++drawn) {
        crews.push_back({drawn, steps_of(drawn)});
    }
    for (bool goes_on = true; goes_on;) {
        goes_on = false;
        for (Crew& crew : crews) {
            if (crew.done < crew.steps.size() &&
                numbers.at(crew.steps[crew.done].block) == crew.steps[crew.done].before) {
                numbers[crew.steps[crew.done].block] = crew.steps[crew.done].after;
                ++crew.done;
                goes_on = true;
            }
            if (crew.done == crew.steps.size() && drawn < work.items) {
                crew = {drawn, steps_of(drawn)};
                ++drawn;
                goes_on = true;
            }
        }
    }
    return drawn == work.items && std::all_of(numbers.begin(), numbers.end(), [](unsigned n) { return n == 0; }) &&
           std::all_of(crews.begin(), crews.end(), [](const Crew& crew) { return crew.done == crew.steps.size(); });
}

TEST(GpuPlan, KeyBlocksThatTakeTurnsComeToAnEnd)
{
    if (!offload::has_gpu_code()) {
        GTEST_SKIP() << "this build has no GPU code";
    }
    Hardware hardware = gpu();
    hardware.gpu.matrix_units = MatrixUnits::warpgroup;
    hardware.gpu.multiprocessors = 132;
    struct Case {
        const char* shape;
        Causal causal = Causal::none;
        Window window = {};
        Positions queries = {};
    };
    const Positions behind_all_keys{4096, {{{2048, 2048}, {}}}}; // of a causal mask that hides nothing
    for (const Case& each :
         {Case{"b1_h2_n600x9000_d128"}, Case{"b1_h16_n2048_d128", Causal::top_left, {}, behind_all_keys},
          Case{"b2_h16kv8_n777x1300_d128v96"}, Case{"b2_h8_n1500x1300_d128", Causal::top_left},
          Case{"b2_h8_n1100x1700_d120v128", Causal::top_left}, Case{"b2_h8_n1500x1300_d128", Causal::none, {300, 0}},
          Case{"b2_h16kv8_n1500x1300_d128", Causal::none, {-1, 300}},
          Case{"b2_h8_n1300x1500_d128", Causal::bottom_right, {700, -1}}}) {
        Options options;
        options.causal = each.causal;
        options.window = each.window;
        options.positions_q = each.queries;
        const Problem problem = cost::problem_of(cost::parse_shape(each.shape), DType::bfloat16, true, options);
        ASSERT_TRUE(is_one_pass(plan(problem, hardware))) << each.shape;
        EXPECT_TRUE(do_turns_end(problem, hardware)) << each.shape;
    }
}

TEST(GpuPlan, NoMoreTeamsThanTheGpuHoldsAtOneTime)
{
    if (!offload::has_gpu_code()) {
        GTEST_SKIP() << "this build has no GPU code";
    }
    Hardware hardware = gpu();
    hardware.gpu.matrix_units = MatrixUnits::warpgroup;
    const auto teams = [&](const char* shape, bool backward, int wanted) {
        Problem problem = cost::problem_of(cost::parse_shape(shape), DType::bfloat16, backward, {});
        problem.options.tiling.teams = wanted;
        const offload::Launch& launch = plan(problem, hardware).passes.back().launch;
        return launch.crews * launch.crew_teams;
    };
    for (const auto& [multiprocessors, held] : {std::pair{132, 264}, std::pair{108, 216}}) {
        hardware.gpu.multiprocessors = multiprocessors;
        EXPECT_EQ(teams("b8_h8_n4096_d128", false, 1024), held);
        EXPECT_EQ(teams("b8_h8_n4096_d128", false, 0), held);
        EXPECT_EQ(teams("b8_h8_n4096_d256", true, 0), held); // pairs
        EXPECT_EQ(teams("b8_h8_n4096_d128", false, 100), 100);
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
