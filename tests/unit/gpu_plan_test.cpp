// What plan() decides for GPUs, without one.
#include "plan.hpp"

#include "hardware.hpp"
#include "kernel_params.hpp"
#include "shape.hpp"

#include "algorithm/turns.hpp"
#include "launch/pass.hpp"

#include <algorithm>
#include <gtest/gtest.h>
#include <vector>

namespace flashomp {
namespace {

class GpuPlan : public ::testing::Test {
protected:
    void SetUp() override
    {
        if (!offload::has_gpu_code()) {
            GTEST_SKIP() << "this build has no GPU code";
        }
    }
};

/// A Hopper GPU; 132 multiprocessors are an H200's.
Hardware hopper(int multiprocessors = 132)
{
    Hardware hardware = gpu();
    hardware.gpu.matrix_units = MatrixUnits::warpgroup;
    hardware.gpu.multiprocessors = multiprocessors;
    return hardware;
}

TEST_F(GpuPlan, EveryPassHasTheMachineThatIsThereForIt)
{
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

TEST_F(GpuPlan, ACrewIsAPairOfTeamsWhereOneHasNoRoom)
{
    Hardware hardware = hopper(128); // for 256 teams
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

TEST_F(GpuPlan, DvAndThenDkReadTheirBlocksTwice)
{
    Hardware hardware = gpu();
    const auto reads_twice = [&](const char* shape, DType dtype) {
        return plan(cost::problem_of(cost::parse_shape(shape), dtype, true, {}), hardware).passes.at(1).sums_apart;
    };
    EXPECT_TRUE(reads_twice("b1_h4_n1024_d256", DType::bfloat16));
    EXPECT_TRUE(reads_twice("b1_h4_n1024_d128", DType::float32));
    EXPECT_FALSE(reads_twice("b1_h4_n1024_d128", DType::bfloat16));
    EXPECT_FALSE(reads_twice("b1_h4_n1024_d256", DType::float32)); // plain
}

TEST_F(GpuPlan, QueryHeadsOfAGroupAreSharedOutWhereKeyBlocksAreFew)
{
    const auto planned = [](const char* shape) {
        Hardware hardware = hopper(128); // for 256 teams
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

TEST_F(GpuPlan, KeysOfFewQueriesAreSplit)
{
    Hardware hardware = hopper();
    const auto planned = [&](const char* shape) {
        return plan(as_computed(cost::problem_of(cost::parse_shape(shape), DType::bfloat16, false, {}), hardware),
                    hardware);
    };
    EXPECT_EQ(planned("b1_h8_n1x500_d128").splits, 1);
    EXPECT_EQ(planned("b1_h32kv8_n1x512_d128").splits, 8);
    EXPECT_EQ(planned("b1_h32kv8_n1x1024_d128").splits, 16);  // 64 keys each
    EXPECT_EQ(planned("b1_h32kv8_n1x4096_d128").splits, 32);  // more would be more to merge
    EXPECT_EQ(planned("b1_h32kv8_n1x65536_d128").splits, 49); // six warps on each multiprocessor: three crews
    EXPECT_EQ(planned("b1_h4kv1_n1x65536_d128").splits, 64);  // as many as are merged
    EXPECT_EQ(planned("b1_h64kv4_n1x16384_d128").splits, 32); // 16 rows, which are more to merge
    EXPECT_EQ(planned("b16_h32kv8_n1x1024_d128").splits, 3);
    EXPECT_EQ(planned("b16_h32kv8_n1x2048_d64").splits, 1); // one crew
    EXPECT_EQ(planned("b16_h32kv8_n1x16384_d128").splits, 3);
    EXPECT_EQ(planned("b64_h32kv8_n1x65536_d128").splits, 1); // enough heads
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

TEST_F(GpuPlan, KeyBlocksThatTakeTurnsComeToAnEnd)
{
    Hardware hardware = hopper();
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

TEST_F(GpuPlan, NoMoreTeamsThanTheGpuHoldsAtOneTime)
{
    const auto teams = [](int multiprocessors, const char* shape, bool backward, int wanted) {
        Problem problem = cost::problem_of(cost::parse_shape(shape), DType::bfloat16, backward, {});
        problem.options.tiling.teams = wanted;
        const offload::Launch launch = plan(problem, hopper(multiprocessors)).passes.back().launch;
        return launch.crews * launch.crew_teams;
    };
    for (const auto& [multiprocessors, held] : {std::pair{132, 264}, std::pair{108, 216}}) {
        EXPECT_EQ(teams(multiprocessors, "b8_h8_n4096_d128", false, 1024), held);
        EXPECT_EQ(teams(multiprocessors, "b8_h8_n4096_d128", false, 0), held);
        EXPECT_EQ(teams(multiprocessors, "b8_h8_n4096_d256", true, 0), held); // pairs
        EXPECT_EQ(teams(multiprocessors, "b8_h8_n4096_d128", false, 100), 100);
    }
}

TEST_F(GpuPlan, ALaunchPastLibgompIsNotWaitedForWhereAnotherOneFollows)
{
    using Awaited = std::vector<bool>;
    const auto awaited = [](const char* shape, DType dtype, bool backward, const Options& options = {}) {
        const Problem problem = cost::problem_of(cost::parse_shape(shape), dtype, backward, options);
        Awaited found;
        for (const PassPlan& pass : plan(problem, hopper()).passes) {
            found.push_back(pass.launch.is_awaited);
        }
        return found;
    };
    EXPECT_EQ(awaited("b1_h1_n64_d64", DType::bfloat16, false), Awaited{true});
    EXPECT_EQ(awaited("b1_h1_n64_d64", DType::bfloat16, true), (Awaited{false, true}));
    EXPECT_EQ(awaited("b8_h8_n4096_d128", DType::bfloat16, true), (Awaited{false, false, true})); // one pass
    Options plain;
    plain.machine = Machine::plain; // libgomp's launches
    EXPECT_EQ(awaited("b1_h1_n64_d64", DType::bfloat16, true, plain), (Awaited{true, true}));
    // Of a launch that libgomp follows, too: it would end the program for a failure before its own.
    Options masked;
    masked.mask = ConstTensorView::contiguous(static_cast<const std::uint8_t*>(nullptr), DType::boolean, {1, 1, 1, 64});
    EXPECT_EQ(awaited("b1_h1_n64_d64", DType::bfloat16, true, masked), (Awaited{true, true}));
    Problem with_sink = cost::problem_of(cost::parse_shape("b1_h1_n64_d64"), DType::bfloat16, true, {});
    float dsink = 0.0F;
    with_sink.dsink = TensorView::contiguous(&dsink, DType::float32, {1});
    const Plan decided = plan(with_sink, hopper());
    ASSERT_EQ(decided.passes.size(), 3U);
    EXPECT_FALSE(decided.passes[0].launch.is_awaited);
    EXPECT_TRUE(decided.passes[1].launch.is_awaited); // backward_sink, on the plain machine, is next
    EXPECT_TRUE(decided.passes[2].launch.is_awaited);
}

TEST_F(GpuPlan, HeadsThatTakeTurnsHaveWhatStreamsInTheCache)
{
    const auto together = [](const char* shape, std::size_t pass) {
        const Problem problem = cost::problem_of(cost::parse_shape(shape), DType::bfloat16, true, {});
        return plan(problem, hopper()).passes.at(pass).launch.heads_together;
    };
    // 32 MB: of a head 4096 rows of q and dO, 2 · 2 · 128 bytes, in one pass the sums of dQ, 4 · 128, too.
    EXPECT_EQ(together("b4_h16_n4096_d128_causal", 1), 8);
    EXPECT_EQ(together("b4_h16_n4096_d128", 1), 1);
    EXPECT_EQ(together("b4_h16kv4_n4096_d128_causal", 1), 2); // groups of four
    EXPECT_EQ(together("b4_h16_n4096_d64_causal", 1), 32);
    EXPECT_EQ(together("b4_h16_n4096_d72_causal", 1), 10);        // whose sums have 128 columns, too
    EXPECT_EQ(together("b9_h16kv4_n4096_d64_causal", 0), 32 * 4); // queries stay: four heads stream the same keys
}

} // namespace
} // namespace flashomp
