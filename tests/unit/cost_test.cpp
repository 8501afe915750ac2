// The cost model: the figures of the literature, and counts that another way of counting must give too.
#include "budget.hpp"
#include "launch/few_queries_shapes.hpp"
#include "launch/tensor_shapes.hpp"
#include "layers.hpp"
#include "peaks.hpp"
#include "place.hpp"
#include "plan.hpp"
#include "shape.hpp"
#include "traffic.hpp"
#include "work.hpp"

#include "cuda/kernels.hpp"
#include "hardware.hpp"
#include "refusal.hpp"

#include <ctime>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace flashomp::cost {
namespace {

TEST(Shape, NamesAreReadBack)
{
    for (const char* const name :
         {"b1_h1_n1_d1", "b2_h16kv4_n4096_d128_causal", "b8_h32kv8_n1x8192_d128", "b1_h2_n5x7_d32v48_topleft",
          "b4_h8_n1000_d64_varlen", "b4_h8_n9_d64_causal_varlen", "b1_h2_n300x500_d64_blocks25", "b1_h1_n1_d576v512",
          "b16_h128kv1_n1x1024_d576v512_latent", "b1_h4kv1_n9_d48v32_latent_causal_varlen",
          "b8_h32kv8_n1x64_d128_page16_int8", "b8_h32kv8_n1x64_d128_float8"}) {
        EXPECT_EQ(parse_shape(name).name(), name);
    }
    const Shape s = parse_shape("b2_h16kv4_n5x7_d32v48_topleft");
    EXPECT_EQ(s.batch, 2);
    EXPECT_EQ(s.heads_q, 16);
    EXPECT_EQ(s.heads_kv, 4);
    EXPECT_EQ(s.seqlen_q, 5);
    EXPECT_EQ(s.seqlen_k, 7);
    EXPECT_EQ(s.head_dim, 32);
    EXPECT_EQ(s.head_dim_v, 48);
    EXPECT_EQ(s.causal, Causal::top_left);
    EXPECT_FALSE(s.packed);
}

TEST(Shape, OthersAreRefused)
{
    for (const char* const name : {"",
                                   "b1",
                                   "b0_h1_n1_d1",
                                   "b1_h3kv2_n1_d1",
                                   "b1_h1_n0_d1",
                                   "b1_h1_n1_d577v8",
                                   "b1_h1_n1_d576",
                                   "b1_h1_n1_d8v513",
                                   "b1_h1_n1_d8v9_latent",
                                   "b1_h1_n1_d9v8_latent_int8",
                                   "b1_h1_n9_d8_varlen_int8",
                                   "b1_h1_n8_d8_int8_page4",
                                   "b1_h1_n1_d0",
                                   "b1_h1_n1_d64_casual",
                                   "b1_h1_n9999999999_d1",
                                   "xb1_h1_n1_d1",
                                   "b999999_h1_n1000000_d8_varlen",
                                   "b1_h1_n1_d64_varlen_causal",
                                   "b1_h1_n1_d64_blocks0",
                                   "b1_h1_n1_d64_blocks101",
                                   "b1_h1_n1_d64_causal_blocks5",
                                   "b1_h1_n1_d64_blocks5_varlen",
                                   "b-1_h1_n1_d1",
                                   "b1_h1_n1_d1 ",
                                   "b1_h1_n99999999999999999999_d1",
                                   "b1_hkv1_n1_d1",
                                   "b+1_h1_n1_d1"}) {
        EXPECT_THROW(static_cast<void>(parse_shape(name)), Error) << name;
    }
    testing::expect_refused(
        "shape was 'b1_h3kv2_n1_d1'; allowed are 1 to 2^20 heads, those of queries a multiple of those of keys.",
        [] { static_cast<void>(parse_shape("b1_h3kv2_n1_d1")); });
}

TEST(Shape, PackedLengthsClimbToTheLongest)
{
    const Shape s = parse_shape("b4_h1_n10x8_d8_varlen");
    EXPECT_EQ(s.lengths_q(), (std::vector<std::int64_t>{3, 5, 8, 10}));
    EXPECT_EQ(s.lengths_k(), (std::vector<std::int64_t>{2, 4, 6, 8}));
    const Problem problem = problem_of(s, DType::float32, false, {});
    EXPECT_EQ(problem.starts_q, (std::vector<std::int32_t>{0, 3, 8, 16, 26}));
    EXPECT_EQ(problem.lse.elements(), 26);
}

TEST(Shape, ALargeBatchCostsNothing)
{
    const std::clock_t start = std::clock();
    const Shape shape = parse_shape("b1073741824_h1_n1_d1");
    EXPECT_EQ(sequences_of(shape).size(), 1U);
    EXPECT_EQ(flops(shape).forward, 4.0 * 1073741824);
    EXPECT_EQ(saved(shape, DType::float32).lse, 4.0 * 1073741824);
    EXPECT_EQ(least_traffic(shape, DType::float32, false).written, 8.0 * 1073741824);
    EXPECT_EQ(standard_traffic(shape, DType::float32, false).written, 12.0 * 1073741824);
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 1.0);
    testing::expect_refused("allowed are at most 2^20 packed sequences",
                            [] { static_cast<void>(parse_shape("b1048577_h1_n1_d1_varlen")); });
}

TEST(Shape, AFileIsReadUpToItsBound)
{
    testing::expect_refused("shapes file /dev/zero holds more than 1048576 bytes; at most that many are allowed.",
                            [] { static_cast<void>(read_shapes("/dev/zero")); });
    testing::expect_refused("shapes file / cannot be read", [] { static_cast<void>(read_shapes("/")); });
}

TEST(Shape, SentencesAreShortAndPrintable)
{
    testing::expect_refused("shape was 'b1?[2J'; allowed is", [] { static_cast<void>(parse_shape("b1\x1b[2J")); });
    testing::expect_refused("shape was '" + std::string(100, 'b') + "…'; allowed is",
                            [] { static_cast<void>(parse_shape(std::string(1'000'000, 'b'))); });
}

TEST(Work, FlopsAreThePapers)
{
    const Shape s = parse_shape("b3_h2_n100_d64");
    const double unit = 3 * 2 * 100.0 * 100.0 * 64;
    const Flops all = flops(s);
    EXPECT_DOUBLE_EQ(all.forward, 4 * unit);
    EXPECT_DOUBLE_EQ(all.standard_backward, 8 * unit);
    EXPECT_DOUBLE_EQ(all.backward, 10 * unit);
    EXPECT_DOUBLE_EQ(all.extra_of_backward(), 0.25);
    EXPECT_NEAR(all.extra_of_training(), 1.0 / 6.0, 1e-12);
    EXPECT_DOUBLE_EQ(flops(parse_shape("b3_h2_n100_d64_causal")).forward, 4 * unit * 5050 / 10000);
    // Lengths 50 and 100.
    const Shape blocks = parse_shape("b2_h2_n1000_d64_blocks30"); // 64 blocks
    const auto kept = static_cast<double>(block_mask_of(blocks).kept_pairs());
    EXPECT_GT(kept, 0.1 * 1000 * 1000);
    EXPECT_LT(kept, 0.5 * 1000 * 1000);
    EXPECT_DOUBLE_EQ(flops(blocks).forward, 4 * 2 * 64 * 2 * kept);
    EXPECT_DOUBLE_EQ(flops(parse_shape("b2_h2_n1000_d64_blocks100")).forward,
                     flops(parse_shape("b2_h2_n1000_d64")).forward);
    EXPECT_DOUBLE_EQ(flops(parse_shape("b2_h2_n100_d64_varlen")).forward, 4 * 2 * 64 * (2500.0 + 10000.0));
}

TEST(Work, PassesCountTheProductsThatTheyCompute)
{
    const Shape s = parse_shape("b3_h2_n100_d64v32");
    const double pairs = 3 * 2 * 100.0 * 100.0;
    const auto products = [&](offload::Pass pass, bool sums_apart = false) { // as multiples of 2·pairs·32
        PassPlan planned;
        planned.launch.pass = pass;
        planned.sums_apart = sums_apart;
        return pass_flops(s, planned) / (2 * pairs * 32);
    };
    EXPECT_DOUBLE_EQ(products(offload::Pass::forward), 3);            // S of depth 64, O of width 32
    EXPECT_DOUBLE_EQ(products(offload::Pass::backward_query), 5);     // S, dP, dQ
    EXPECT_DOUBLE_EQ(products(offload::Pass::backward_key), 6);       // S, dP, dV, dK
    EXPECT_DOUBLE_EQ(products(offload::Pass::backward_key, true), 8); // and S once more
    EXPECT_DOUBLE_EQ(products(offload::Pass::backward_once), 8);      // S, dP, dV, dQ, dK
    EXPECT_DOUBLE_EQ(products(offload::Pass::backward_bias), 3);      // S, dP
    EXPECT_DOUBLE_EQ(products(offload::Pass::backward_start), 0);
    EXPECT_DOUBLE_EQ(products(offload::Pass::backward_sink), 0);
    // What flops() says is what the passes compute that compute nothing twice.
    const double of_flops = flops(s).backward / (2 * pairs * 32);
    EXPECT_DOUBLE_EQ(products(offload::Pass::backward_once), of_flops);
}

/// Pairs that a mask keeps, one by one, as options.hpp defines the masks.
double pairs_one_by_one(const Shape& s)
{
    double pairs = 0;
    const std::int64_t delta = s.seqlen_k - s.seqlen_q;
    for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
        for (std::int64_t j = 0; j < s.seqlen_k; ++j) {
            const bool causal = s.causal == Causal::none || j <= i + (s.causal == Causal::top_left ? 0 : delta);
            const bool left = s.window.left < 0 || j >= i + delta - s.window.left;
            const bool right = s.window.right < 0 || j <= i + delta + s.window.right;
            pairs += causal && left && right ? 1 : 0;
        }
    }
    return pairs;
}

TEST(Work, PairsAreThoseThatTheMasksKeep)
{
    for (const char* const name :
         {"b1_h1_n1x40_d8_causal", "b1_h1_n40x1_d8_causal", "b1_h1_n40x1_d8_topleft", "b1_h1_n7x33_d8_topleft",
          "b1_h1_n33x7_d8_causal", "b1_h1_n16_d8", "b1_h1_n5x9_d8"}) {
        Shape s = parse_shape(name);
        for (const Window window :
             {Window{}, Window{3, 0}, Window{0, 0}, Window{-1, 4}, Window{100, 100}, Window{2, -1}}) {
            s.window = window;
            EXPECT_EQ(counted_pairs(s), pairs_one_by_one(s))
                << name << " window " << window.left << "," << window.right;
        }
    }
    // One query at the bottom right of many keys sees them all; of many queries, only the last sees the one key.
    EXPECT_EQ(counted_pairs(parse_shape("b2_h1_n1x4096_d64_causal")), 2 * 4096);
    EXPECT_EQ(counted_pairs(parse_shape("b1_h1_n4096x1_d64_causal")), 1);
    EXPECT_EQ(counted_pairs(parse_shape("b1_h1_n1073741824_d64")), 0x1p60);
}

TEST(Work, WhatNoMaskKeepsIsNotRead)
{
    // Keys 16 to 4095 are hidden from all 16 queries.
    const Shape few = parse_shape("b1_h1_n16x4096_d64_topleft");
    EXPECT_DOUBLE_EQ(least_traffic(few, DType::float32, false).read, 4.0 * 64 * (16 + 2 * 16));
    // Latent rows are keys and values.
    const Shape latent = parse_shape("b2_h4kv1_n1x10_d96v64_latent");
    EXPECT_DOUBLE_EQ(least_traffic(latent, DType::bfloat16, false).read, 2.0 * 2 * (4 * 96 + 10 * 96));
    // 8 bits of each key and value.
    const Shape narrow = parse_shape("b2_h4kv1_n1x10_d96v64_page5_int8");
    EXPECT_DOUBLE_EQ(least_traffic(narrow, DType::bfloat16, false).read, 2.0 * (2 * 4 * 96 + 10 * (96 + 64)));
    // Of 100 queries, the last 4 have a key. o, LSE and all gradients are written all the same.
    const Shape many = parse_shape("b1_h1_n100x4_d64_causal");
    EXPECT_DOUBLE_EQ(least_traffic(many, DType::float32, true).read, 4.0 * (64 * (4 + 2 * 4) + 4 * (2 * 64 + 1)));
    EXPECT_DOUBLE_EQ(least_traffic(many, DType::float32, true).written, 4.0 * 64 * (100 + 2 * 4));
}

TEST(Budget, CachesAreCountedOnceEach)
{
    namespace fs = std::filesystem;
    const fs::path root = fs::path(::testing::TempDir()) / "flashomp_cpus";
    const auto cache = [&](int cpu, int index, const char* level, const char* type, const char* size,
                           const char* shared) {
        const fs::path folder = root / fmt::format("cpu{}", cpu) / "cache" / fmt::format("index{}", index);
        fs::create_directories(folder);
        std::ofstream(folder / "level") << level << "\n";
        std::ofstream(folder / "type") << type << "\n";
        std::ofstream(folder / "size") << size << "\n";
        std::ofstream(folder / "shared_cpu_list") << shared << "\n";
    };
    for (int cpu = 0; cpu < 4; ++cpu) {
        cache(cpu, 0, "1", "Data", "48K", fmt::format("{}", cpu).c_str());
        cache(cpu, 1, "1", "Instruction", "64K", fmt::format("{}", cpu).c_str());
        cache(cpu, 2, "2", "Unified", "2M", fmt::format("{}", cpu).c_str());
        cache(cpu, 3, "3", "Unified", "32768K", cpu < 2 ? "0-1" : "2-3");
    }
    const OnChip chip = host_on_chip(root);
    EXPECT_EQ(chip.l1, 48 * 1024);
    EXPECT_EQ(chip.l2, 2 * 1024 * 1024);
    EXPECT_EQ(chip.l3, 2 * 32 * 1024 * 1024);
    EXPECT_EQ(host_on_chip(root / "nothing").l3, 0);
    fs::remove_all(root);
}

TEST(Work, ThePublishedFiguresForLongSequences)
{
    // 128K tokens: 34.36 GB of P a head and layer against 1.05 MB of m and ℓ; 176 TB for Llama 70B's 80 layers of 64
    // heads.
    const Shape llama = parse_shape("b1_h64kv8_n131072_d128");
    const Saved bytes = saved(llama, DType::bfloat16);
    EXPECT_NEAR(bytes.standard_per_head, 34.36e9, 0.005e9);
    EXPECT_NEAR(bytes.maximum_and_sum_per_head, 1.05e6, 0.005e6);
    EXPECT_DOUBLE_EQ(bytes.lse_per_head, bytes.maximum_and_sum_per_head / 2);
    const ModelSaved model = model_table(llama, DType::bfloat16, 80, {131072}).at(0);
    EXPECT_NEAR(model.standard, 176e12, 0.5e12);
    EXPECT_DOUBLE_EQ(model.lse, 80.0 * 64 * 4 * 131072);
}

TEST(Layers, TableHasALineForEachLength)
{
    const auto table = model_table(parse_shape("b2_h4_n128_d32"), DType::float32, 3, {10, 20});
    ASSERT_EQ(table.size(), 2U);
    EXPECT_EQ(table[1].seqlen, 20);
    EXPECT_DOUBLE_EQ(table[1].standard, 3.0 * 2 * 4 * 4 * 20 * 20);
    EXPECT_DOUBLE_EQ(table[1].standard, 4 * table[0].standard);
    EXPECT_DOUBLE_EQ(table[1].lse, 2 * table[0].lse);
}

TEST(Layers, CheckpointingOfGpt3)
{
    // Korthikanti et al. 2022, section 4 and table 3: a = 96, s = 2048, h = 12288, where 5·a·s/h = 80.
    const Shape gpt3 = parse_shape("b1_h96_n2048_d128");
    const auto ways = checkpointing(gpt3, 96);
    ASSERT_EQ(ways.size(), 4U);
    const double sbh = 2048.0 * 12288.0;
    EXPECT_DOUBLE_EQ(ways[0].layer_bytes, (34 + 80) * sbh);
    EXPECT_DOUBLE_EQ(ways[1].layer_bytes, 34 * sbh + 4 * 96 * 2048.0);
    EXPECT_DOUBLE_EQ(ways[2].layer_bytes, 2 * sbh);
    EXPECT_DOUBLE_EQ(ways[2].peak_bytes, 96 * 2 * sbh + ways[0].layer_bytes);
    EXPECT_DOUBLE_EQ(ways[3].peak_bytes, 96 * 2 * sbh + ways[1].layer_bytes);
    // A whole forward pass more is a third; recomputing S alone is little where h is much larger than s.
    EXPECT_NEAR(ways[2].extra_flops, 1.0 / 3.0, 1e-12);
    EXPECT_NEAR(ways[1].extra_flops, 2 * 2048.0 / (3 * (24 * 12288.0 + 4 * 2048.0)), 1e-12);
    EXPECT_NEAR(ways[3].extra_flops, ways[1].extra_flops + ways[2].extra_flops, 1e-12);
    EXPECT_THROW(static_cast<void>(checkpointing(parse_shape("b1_h1_n2x3_d8"), 1)), Error);
}

/// The forward pass counted the slow way, element by element of the mask.
double counted_forward_reads(const Shape& s, const offload::Launch& launch, double element)
{
    double bytes = 0;
    for (std::int64_t i0 = 0; i0 < s.seqlen_q; i0 += launch.resident_rows) {
        const std::int64_t i1 = std::min(s.seqlen_q, i0 + launch.resident_rows);
        bytes += static_cast<double>(i1 - i0) * element * static_cast<double>(s.head_dim);
        const std::int64_t delta = s.causal == Causal::top_left ? 0 : s.seqlen_k - s.seqlen_q;
        for (std::int64_t j = 0; j < s.seqlen_k; ++j) {
            if (s.causal == Causal::none || j <= i1 - 1 + delta) { // the last row sees the most keys
                bytes += element * static_cast<double>(s.head_dim + s.head_dim_v);
            }
        }
    }
    return bytes * static_cast<double>(s.batch * s.heads_q);
}

TEST(Traffic, TilesCountedTheSlowWay)
{
    for (const char* const name : {"b2_h4kv2_n300_d64", "b1_h2_n300_d64_causal", "b1_h2_n100x300_d32v48_causal",
                                   "b1_h1_n300x100_d64_topleft", "b1_h3_n257_d17_topleft"}) {
        const Shape s = parse_shape(name);
        const Problem problem = problem_of(s, DType::bfloat16, false, {});
        const Plan decided = plan(problem, host_with(2));
        ASSERT_EQ(decided.splits, 1);
        const Traffic traffic = tile_traffic(problem, decided);
        EXPECT_DOUBLE_EQ(traffic.read, counted_forward_reads(s, decided.passes.at(0).launch, 2)) << name;
        EXPECT_DOUBLE_EQ(traffic.written, least_traffic(s, DType::bfloat16, false).written) << name;
    }
}

TEST(Traffic, OneBlockThatHoldsEverythingReadsEverythingOnce)
{
    Options choice;
    choice.tiling.resident_rows = 256;
    choice.tiling.stream_rows = 256;
    const Shape s = parse_shape("b2_h3_n200_d64");
    const Problem problem = problem_of(s, DType::float32, false, choice);
    EXPECT_DOUBLE_EQ(tile_traffic(problem, plan(problem, host_with(2))).total(),
                     least_traffic(s, DType::float32, false).total());
}

TEST(Traffic, PackedSequencesAddUp)
{
    const Shape packed = parse_shape("b2_h2_n256_d32_causal_varlen"); // 128 and 256 rows
    Options choice;                                                   // blocks depend on how much work there is
    choice.tiling.resident_rows = 64;
    choice.tiling.stream_rows = 64;
    double apart = 0;
    for (const char* const name : {"b1_h2_n128_d32_causal", "b1_h2_n256_d32_causal"}) {
        const Problem problem = problem_of(parse_shape(name), DType::float32, true, choice);
        apart += tile_traffic(problem, plan(problem, host_with(2))).total();
    }
    const Problem problem = problem_of(packed, DType::float32, true, choice);
    EXPECT_DOUBLE_EQ(tile_traffic(problem, plan(problem, host_with(2))).total(), apart);
}

TEST(Traffic, StandardAttentionIsQuadraticTilesAreTensors)
{
    const Shape s = parse_shape("b1_h1_n4096_d64");
    const double matrix = 4096.0 * 4096.0 * 2;
    const double tensor = 4096.0 * 64 * 2;
    EXPECT_DOUBLE_EQ(standard_traffic(s, DType::bfloat16, false).total(), 4 * matrix + 4 * tensor);
    EXPECT_DOUBLE_EQ(standard_traffic(s, DType::bfloat16, true).total(), 7 * matrix + 8 * tensor);
    EXPECT_DOUBLE_EQ(least_traffic(s, DType::bfloat16, false).total(), 4 * tensor + 4 * 4096);
    EXPECT_DOUBLE_EQ(least_traffic(s, DType::bfloat16, true).total(), 8 * tensor + 4 * 4096);
    EXPECT_DOUBLE_EQ(least_traffic(s, DType::float8_e4m3, false).total(),
                     3 * tensor / 2 + tensor + 4 * 4096); // o: bfloat16
    const Growth orders = growth(s, 1000.0);
    EXPECT_DOUBLE_EQ(orders.standard, 4096.0 * 64 + 4096.0 * 4096.0);
    EXPECT_DOUBLE_EQ(orders.tiles, 4096.0 * 4096.0 * 64 * 64 / 1000);
}

TEST(Traffic, SplitKeysCostTheirPartialResults)
{
    const Shape s = parse_shape("b1_h1_n1x16384_d64");
    const Problem problem = problem_of(s, DType::float32, false, {});
    const Plan decided = plan(problem, host_with(2));
    ASSERT_GT(decided.splits, 1);
    const auto partial = static_cast<double>(decided.partial_bytes);
    EXPECT_DOUBLE_EQ(tile_traffic(problem, decided).written, least_traffic(s, DType::float32, false).written + partial);
}

TEST(Traffic, HeadsWithOneQueryReadTheirGroupsKeysOnce)
{
    const Shape shape = parse_shape("b2_h12kv3_n1x800_d64");
    const Problem problem = as_computed(problem_of(shape, DType::bfloat16, false, {}), host_with(2));
    const Plan decided = plan(problem, host_with(2));
    EXPECT_EQ(decided.passes.at(0).launch.resident_rows, 4);
    EXPECT_DOUBLE_EQ(tile_traffic(problem, decided).total(), least_traffic(shape, DType::bfloat16, false).total());
}

TEST(Budget, ClassicRule)
{
    // M = 48 KiB of float32 and d = 64: Bc = 12288/256 = 48, Br = min(48, 64).
    EXPECT_EQ(classic_blocks(12288, 64).columns, 48);
    EXPECT_EQ(classic_blocks(12288, 64).rows, 48);
    EXPECT_EQ(classic_blocks(100000, 64).columns, 391); // rounded up
    EXPECT_EQ(classic_blocks(100000, 64).rows, 64);
    EXPECT_EQ(classic_blocks(1, 256).columns, 1);
}

TEST(Budget, PiecesAreWhatTheHostMachineTakes)
{
    // Sizes that need no padding: the pieces must add up to the crew's memory that the kernels themselves ask for.
    for (const offload::HostIsa& isa : offload::host_isas()) {
        for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
            if (!isa.is_supported()) { // not even its sizes: the compiler may use its instructions for them
                continue;
            }
            const Problem problem = problem_of(parse_shape("b1_h1_n512_d64"), dtype, false, {});
            Hardware hardware = host_with(2);
            hardware.isa = &isa;
            const Plan decided = plan(problem, hardware);
            const TileBudget budget = tile_budget(problem, decided.passes.at(0));
            EXPECT_EQ(budget.total(), 4 * decided.passes.at(0).launch.crew_floats) << isa.name << " " << name_of(dtype);
            EXPECT_EQ(budget.in_registers, 0);
        }
    }
}

TEST(Budget, TensorCoreTilesFitTeamMemory)
{
    for (const Machine machine : {Machine::tensor, Machine::hopper}) {
        for (const int depth : {64, 128, 256}) {
            if (depth == 256 && machine == Machine::tensor) {
                continue; // one place for keys and one for values
            }
            const Problem problem =
                problem_of(parse_shape("b1_h1_n512_d" + std::to_string(depth)), DType::bfloat16, false, {});
            const auto shape =
                machine == Machine::hopper
                    ? offload::hopper_shape(offload::Operands::bits16, offload::Pass::forward, depth, false)
                    : offload::tensor_shape(offload::Operands::bits16, offload::Pass::forward, depth, false);
            PassPlan pass;
            pass.machine = machine;
            pass.launch.depth = depth;
            pass.launch.resident_rows = shape.resident_rows();
            pass.launch.stream_rows = shape.stream_rows;
            const TileBudget budget = tile_budget(problem, pass);
            EXPECT_EQ(budget.in_memory, budget.k + budget.v + shape.panels_in_memory * 64 * 2 * shape.resident_rows());
            EXPECT_LE(budget.in_memory, shape.team_bytes);
            EXPECT_EQ(budget.k % (2 * shape.stream_rows * depth), 0);
            EXPECT_GE(budget.k, 2 * 2 * shape.stream_rows * depth); // at work and on its way
        }
    }
}

TEST(Budget, EachWarpOfFewQueriesHasATile)
{
    for (const Backend backend : {Backend::openmp, Backend::cuda}) {
        Options options;
        options.backend = backend;
        if (backend == Backend::cuda ? !cuda::is_built() : !offload::has_gpu_code()) {
            continue;
        }
        const Problem problem =
            problem_of(parse_shape("b1_h16kv4_n8x4096_d128_causal"), DType::bfloat16, false, options);
        const Plan decided = plan(problem, place_on(*find_known_device("h200"), options).hardware);
        const offload::Launch& launch = decided.passes.front().launch;
        const TileBudget budget = tile_budget(problem, decided.passes.front());
        EXPECT_EQ(budget.q, 2 * 32 * 128); // four heads of eight queries, in memory
        EXPECT_EQ(budget.k, 2 * 2 * 16 * 128 * launch.crew_threads);
        EXPECT_EQ(budget.o, 4 * 32 * 128 * launch.crew_threads);
        EXPECT_LE(budget.in_memory,
                  offload::few_queries_shape(false, backend == Backend::cuda, 128, 32).memory_bytes());
        EXPECT_EQ(budget.in_memory, budget.q + budget.k + budget.v);
    }
}

TEST(Peaks, RooflineTurnsAtTheRidge)
{
    const Peaks peaks{100.0, 10.0, "", ""};
    const Roofline memory = roofline(1000.0, 500.0, peaks).value();
    EXPECT_TRUE(memory.is_memory_bound);
    EXPECT_DOUBLE_EQ(memory.seconds, 50.0);
    EXPECT_DOUBLE_EQ(memory.attainable_flops, 20.0);
    const Roofline arithmetic = roofline(1000.0, 50.0, peaks).value();
    EXPECT_FALSE(arithmetic.is_memory_bound);
    EXPECT_DOUBLE_EQ(arithmetic.seconds, 10.0);
    EXPECT_DOUBLE_EQ(arithmetic.ridge, 10.0);
    EXPECT_FALSE(roofline(1.0, 1.0, Peaks{}).has_value());
}

TEST(Peaks, KnownDevicesHaveSources)
{
    EXPECT_EQ(device_peaks("NVIDIA H2000", DType::bfloat16).flops, 0);
    for (const KnownDevice& device : known_devices()) {
        for (const DType dtype : {DType::bfloat16, DType::float32}) {
            const Peaks peaks = device_peaks(device.facts.name, dtype);
            EXPECT_GT(peaks.flops, 0) << device.key;
            EXPECT_FALSE(peaks.flops_source.empty());
            EXPECT_FALSE(peaks.bandwidth_source.empty());
        }
    }
}

TEST(Peaks, TheHostsAreMeasured)
{
    for (const offload::HostIsa& isa : offload::host_isas()) {
        for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
            if (!isa.is_supported()) {
                continue;
            }
            const Peaks peaks = host_peaks(1, isa, dtype);
            EXPECT_GT(peaks.flops, 1e7); // sanitizers are slow
            EXPECT_GT(peaks.bandwidth, 1e7);
            EXPECT_NE(peaks.flops_source.find("measured"), std::string::npos);
            if (isa.name == "avx2") { // not the widest vectors that this CPU has
                EXPECT_NE(peaks.flops_source.find("AVX2"), std::string::npos);
            }
        }
    }
}

} // namespace
} // namespace flashomp::cost
