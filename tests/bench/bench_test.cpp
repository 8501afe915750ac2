// The benchmark's own parts: what it checks, times and measures must be able to fail.
#include "accuracy.hpp"
#include "check.hpp"
#include "memory.hpp"
#include "run.hpp"
#include "standard.hpp"
#include "suites.hpp"
#include "support/sanitizers.hpp"
#include "workspace.hpp"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include <Eigen/Core>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace flashomp::bench {
namespace {

constexpr std::int64_t mebibyte = std::int64_t{1} << 20;

Options on_host()
{
    Options options;
    options.device.kind = Device::Kind::host;
    options.threads = 2;
    return options;
}

RunSettings quick_settings()
{
    RunSettings settings;
    settings.options = on_host();
    settings.timing.least_seconds = 0;
    settings.timing.repetitions = 3;
    return settings;
}

std::vector<Row> rows_of(const RunSettings& settings, const char* shape)
{
    std::vector<Row> rows;
    Runner(settings).run(
        cost::parse_shape(shape), [](const std::string&) {}, [&](const Row& row) { rows.push_back(row); });
    return rows;
}

/// Forward and backward of the library, then the named tensor is spoilt in one place.
Accuracy spoilt(const char* shape, const ConstTensorView BackwardArgs::*tensor, bool backward)
{
    BenchCase bench(cost::parse_shape(shape), DType::float32, on_host(), Space{});
    bench.make_outputs(false);
    bench.forward();
    bench.make_outputs(true);
    bench.backward();
    const BackwardArgs args = bench.on_host();
    const ConstTensorView& view = args.*tensor;
    auto* const last = static_cast<float*>(const_cast<void*>(view.data)) + view.elements() - 1;
    *last += 0.01F;
    return check(bench, backward);
}

class BenchShapes : public testing::TestWithParam<const char*> {};

TEST_P(BenchShapes, RightResultsPassForBothDirectionsAndImplementations)
{
    RunSettings settings = quick_settings();
    settings.beside_standard = true;
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        settings.dtype = dtype;
        const std::vector<Row> rows = rows_of(settings, GetParam());
        const bool packed = cost::parse_shape(GetParam()).packed;
        ASSERT_EQ(rows.size(), packed ? 2U : 4U);
        for (const Row& row : rows) {
            EXPECT_EQ(row.failure, "") << row.name() << " " << row.implementation;
            EXPECT_GT(row.timing.median, 0);
            EXPECT_LE(row.timing.least, row.timing.median);
            EXPECT_GE(row.timing.most, row.timing.median);
            EXPECT_EQ(row.timing.repetitions, 3);
            EXPECT_FALSE(row.on_device);
            EXPECT_FALSE(row.accuracy.compared.empty());
            EXPECT_EQ(row.accuracy.has_gradients, row.direction == "backward");
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, BenchShapes,
                         testing::Values("b2_h2_n100_d32", "b1_h4kv2_n65x130_d24v40_causal", "b2_h3_n80_d16_topleft",
                                         "b3_h4kv1_n96_d32_causal_varlen", "b1_h4kv2_n1x300_d64"),
                         [](const auto& shape) { return std::string(shape.param); });

TEST(BenchCheck, OneWrongElementIsSeen)
{
    const char* const shape = "b2_h4kv2_n70_d16_causal";
    EXPECT_TRUE(spoilt(shape, &BackwardArgs::dout, false).is_good()); // not a result
    EXPECT_FALSE(spoilt(shape, &BackwardArgs::o, false).is_good());
    EXPECT_FALSE(spoilt(shape, &BackwardArgs::lse, false).is_good());
    EXPECT_FALSE(spoilt(shape, &BackwardArgs::o, true).is_good());
}

TEST(BenchCheck, AWrongGradientIsSeen)
{
    for (int tensor = 0; tensor < 3; ++tensor) {
        BenchCase bench(cost::parse_shape("b2_h4kv2_n70_d16"), DType::float32, on_host(), Space{});
        bench.make_outputs(false);
        bench.forward();
        bench.make_outputs(true);
        bench.backward();
        EXPECT_TRUE(check(bench, true).is_good());
        const BackwardArgs args = bench.on_host();
        const TensorView gradient = tensor == 0 ? args.dq : tensor == 1 ? args.dk : args.dv;
        static_cast<float*>(gradient.data)[gradient.elements() - 1] += 0.01F;
        const Accuracy accuracy = check(bench, true);
        EXPECT_FALSE(accuracy.is_good()) << tensor;
        EXPECT_NE(accuracy.text().find(tensor == 0 ? "dq" : tensor == 1 ? "dk" : "dv"), std::string::npos);
    }
}

TEST(BenchCheck, ResultsThatNobodyWroteAreSeen)
{
    BenchCase bench(cost::parse_shape("b1_h2_n64_d16"), DType::bfloat16, on_host(), Space{});
    bench.make_outputs(false); // NaN
    EXPECT_FALSE(check(bench, false).is_good());
}

/// A case with the results of both directions.
std::unique_ptr<BenchCase> with_results(const char* shape, DType dtype = DType::float32)
{
    auto bench = std::make_unique<BenchCase>(cost::parse_shape(shape), dtype, on_host(), Space{});
    bench->make_outputs(false);
    bench->forward();
    bench->make_outputs(true);
    bench->backward();
    return bench;
}

TEST(BenchCheck, LargeShapesAreSampledAndSaySo)
{
    BenchCase bench(cost::parse_shape("b1_h1_n4096_d16_topleft"), DType::float32, on_host(), Space{});
    bench.make_outputs(false);
    bench.forward();
    const Accuracy accuracy = check(bench, false);
    EXPECT_TRUE(accuracy.is_good()) << accuracy.text();
    EXPECT_EQ(accuracy.compared,
              "o, LSE of rows 0-63, 2016-2079, 4032-4095 of 4096: sequence 0 head 0 (of 1 sequence, 1 "
              "head)");
}

TEST(BenchCheck, OfLargeShapesEveryTensorIsComparedInSeveralHeadsAndBlocks)
{
    const auto bench = with_results("b2_h6kv3_n1500_d16_causal");
    const Expected right = expected(*bench, true);
    const Accuracy accuracy = check(*bench, true, right);
    EXPECT_TRUE(accuracy.is_good()) << accuracy.text();
    EXPECT_TRUE(accuracy.has_dkv);
    const std::string three = "0-63, 718-781, 1436-1499 of 1500";
    EXPECT_EQ(accuracy.compared,
              "o, LSE, dQ of rows " + three +
                  ": sequence 0 heads 0-1, sequence 1 heads 2-3, sequence 1 heads 4-5; dK, dV of keys " + three +
                  ": sequence 0 key head 0, sequence 1 key head 1, sequence 1 key head 2 (of 2 "
                  "sequences, 6 heads, 3 key heads)");
    const BackwardArgs args = bench->on_host();
    const std::initializer_list<std::pair<const char*, ConstTensorView>> tensors{
        {"o", args.o}, {"lse", args.lse}, {"dq", args.dq}, {"dk", args.dk}, {"dv", args.dv}};
    for (const auto& [name, view] : tensors) {
        const bool is_lse = view.rank == 3;
        const std::int64_t group = name[0] == 'd' && name[1] != 'q' ? 1 : 2;
        for (const std::int64_t place : {0, 4, 5}) { // of six pairs of sequence and key head
            for (const std::int64_t row : {0, 63, 718, 781, 1499}) {
                const std::int64_t head = place % 3 * group;
                const std::int64_t at = place / 3 * view.strides[0] + row * view.strides[is_lse ? 2 : 1] +
                                        head * view.strides[is_lse ? 1 : 2];
                float& value = static_cast<float*>(const_cast<void*>(view.data))[at];
                const float before = std::exchange(value, value + 0.01F);
                EXPECT_FALSE(check(*bench, true, right).is_good()) << name << " " << place << " " << row;
                value = before;
            }
        }
    }
    EXPECT_TRUE(check(*bench, true, right).is_good());
}

TEST(BenchCheck, EarlyRowsOfACausalMaskExcuseNoLaterOnes)
{
    const auto bench = with_results("b1_h1_n4096_d16_causal", DType::bfloat16);
    const Expected right = expected(*bench, false);
    const double middle_bound = 2 * reference::naive_error(right.naive[0].rows[1].o, right.exact[0].rows[1].o) + 1e-5;
    const double early_bound = 2 * reference::naive_error(right.naive[0].rows[0].o, right.exact[0].rows[0].o) + 1e-5;
    ASSERT_LT(4 * middle_bound, early_bound);
    const auto& o = bench->on_host().o;
    auto* const element = static_cast<Eigen::bfloat16*>(const_cast<void*>(o.data)) + 2048 * o.strides[1];
    *element = static_cast<Eigen::bfloat16>(static_cast<float>(*element) + 2 * static_cast<float>(middle_bound));
    EXPECT_FALSE(check(*bench, false, right).is_good());
}

TEST(BenchCheck, AFactorTooSmallForALargestDifferenceIsSeen)
{
    const auto bench = with_results("b1_h2_n1024_d64", DType::bfloat16);
    const Expected right = expected(*bench, true);
    ASSERT_TRUE(check(*bench, true, right).is_good()) << check(*bench, true, right).text();
    const BackwardArgs args = bench->on_host();
    for (const auto& [view, name] : {std::pair{args.dq, "dq"}, std::pair{args.dk, "dk"}, std::pair{args.dv, "dv"}}) {
        auto* const values = static_cast<Eigen::bfloat16*>(view.data);
        const std::vector<Eigen::bfloat16> before(values, values + view.elements());
        std::transform(before.begin(), before.end(), values,
                       [](Eigen::bfloat16 x) { return static_cast<Eigen::bfloat16>(1.005F * static_cast<float>(x)); });
        const Accuracy accuracy = check(*bench, true, right);
        EXPECT_FALSE(accuracy.is_good()) << name;
        EXPECT_NE(accuracy.failures.find(std::string(name) + ": common factor"), std::string::npos)
            << accuracy.failures;
        std::copy(before.begin(), before.end(), values);
    }
}

TEST(BenchCheck, LseIsHeldToFloat32WhateverTheDtype)
{
    const auto bench = with_results("b1_h2_n256_d32", DType::bfloat16);
    EXPECT_TRUE(check(*bench, false).is_good()) << check(*bench, false).text();
    *static_cast<float*>(const_cast<void*>(bench->on_host().lse.data)) += 1e-3F;
    EXPECT_FALSE(check(*bench, false).is_good());
}

TEST(BenchCheck, WhatTheTimedCallsLeftIsComparedToo)
{
    const auto bench = with_results("b1_h2_n64_d16");
    std::optional<Expected> right;
    Row row;
    row.direction = "backward";
    check_and_time(
        *bench, right, [&] { bench->backward(); }, row);
    EXPECT_EQ(row.failure, "");
    EXPECT_TRUE(row.accuracy.after_timing);
    check_and_time(
        *bench, right, [] {}, row); // calls that write nothing: what an earlier one left must not pass for theirs
    EXPECT_TRUE(row.is_wrong);
    EXPECT_EQ(row.failure.rfind("after the timed calls, errors: ", 0), 0U) << row.failure;
}

TEST(BenchCheck, AWrongRowIsNotTimed)
{
    const auto bench = with_results("b1_h2_n64_d16");
    *static_cast<float*>(bench->on_host().dv.data) += 1;
    std::optional<Expected> right;
    Row row;
    row.direction = "backward";
    check_and_time(
        *bench, right, [] { FAIL(); }, row);
    EXPECT_TRUE(row.is_wrong);
}

TEST(BenchSample, TakesAsManyKeysAsAreAffordable)
{
    const auto keys_of = [](const char* shape) {
        std::vector<std::size_t> counts;
        for (const reference::Chosen& part : Sample(cost::parse_shape(shape)).parts) {
            counts.push_back(part.keys.size());
        }
        return counts;
    };
    using Counts = std::vector<std::size_t>;
    EXPECT_EQ(keys_of("b1_h16_n16384_d128"), (Counts{3, 3, 3}));
    EXPECT_EQ(keys_of("b1_h8_n16384_d256"), (Counts{0, 3, 3}));
    EXPECT_EQ(keys_of("b4_h16kv1_n16384_d64"), (Counts{0, 0, 3}));
    EXPECT_EQ(keys_of("b1_h1_n65536_d64"), (Counts{3}));
    EXPECT_EQ(keys_of("b1_h1_n131072_d128"), (Counts{0}));
    EXPECT_EQ(keys_of("b1_h1_n100_d8"), (Counts{1}));
    EXPECT_EQ(
        Sample(cost::parse_shape("b1_h1_n131072_d128")).text(true),
        "o, LSE, dQ of rows 0-63, 65504-65567, 131008-131071 of 131072: sequence 0 head 0 (of 1 sequence, 1 head)");
}

TEST(BenchMemory, ResidentPeakSeesWhatWasTouchedAndGivenBack)
{
    make_allocations_visible();
    const ResidentPeak peak;
    if (!peak.bytes()) {
        GTEST_SKIP() << "/proc does not tell the resident peak here";
    }
    {
        const io::HostTensor touched(DType::boolean, {64 * mebibyte}, io::Fill::poison);
        EXPECT_EQ(touched.bytes(), 64 * mebibyte);
    }
    EXPECT_GT(*peak.bytes(), 60 * mebibyte);
    EXPECT_LT(*ResidentPeak().bytes(), 8 * mebibyte); // starts anew
}

TEST(BenchMemory, ResidentPeakSeesWhatIsTakenAgain)
{
#if FLASHOMP_ADDRESS_SANITIZER
    GTEST_SKIP() << "AddressSanitizer keeps freed memory resident";
#endif
    make_allocations_visible();
    if (!ResidentPeak().bytes()) {
        GTEST_SKIP() << "/proc does not tell the resident peak here";
    }
    // Small blocks, which the heap keeps when they are freed: the last one lies behind them.
    std::vector<std::unique_ptr<char[]>> blocks(1025); // NOLINT(modernize-avoid-c-arrays)
    for (auto& block : blocks) {
        block = std::make_unique<char[]>(32 << 10); // NOLINT(modernize-avoid-c-arrays): zeros
    }
    blocks.erase(blocks.begin(), blocks.end() - 1);
    const ResidentPeak peak;
    for (int i = 0; i < 1024; ++i) {
        blocks.push_back(std::make_unique<char[]>(32 << 10)); // NOLINT(modernize-avoid-c-arrays)
    }
    EXPECT_GT(*peak.bytes(), 30 * mebibyte);
}

TEST(BenchMemory, StandardAttentionTakesItsMatricesFlashompDoesNot)
{
#if FLASHOMP_ADDRESS_SANITIZER
    GTEST_SKIP() << "AddressSanitizer keeps freed memory resident";
#endif
    RunSettings settings = quick_settings();
    settings.beside_standard = true;
    const std::vector<Row> rows = rows_of(settings, "b1_h4_n1024_d32");
    ASSERT_EQ(rows.size(), 4U);
    if (!rows[0].peak_bytes) {
        GTEST_SKIP() << "/proc does not tell the resident peak here";
    }
    constexpr std::int64_t matrix = 4 * 1024 * 1024 * 4;
    constexpr std::int64_t tensor = 4 * 1024 * 32 * 4;
    constexpr std::int64_t step = mebibyte;            // how finely resident pages are counted
    EXPECT_GT(*rows[1].peak_bytes, 2 * matrix - step); // S and P
    EXPECT_LT(*rows[1].peak_bytes, 3 * matrix);
    EXPECT_GT(*rows[0].peak_bytes, tensor - step);
    EXPECT_LT(*rows[0].peak_bytes, tensor + 4 * step);
    EXPECT_LT(*rows[2].peak_bytes, 3 * tensor + 5 * step);
}

TEST(BenchMemory, StandardAttentionSaysWhenThereIsTooLittle)
{
    // S of 2^20 x 2^20 float32 is 4 TiB.
    BenchCase bench(cost::parse_shape("b1_h1_n1048576_d1"), DType::float32, on_host(), Space{});
    bench.make_outputs(false);
    StandardAttention standard(bench, 1);
    EXPECT_THROW(standard.forward(false), RunFailure);
}

TEST(BenchMemory, WatchSeesThePeakOfLeases)
{
    release_workspaces();
    const Workspace outer(mebibyte, Space{});
    const WorkspaceWatch watch(Space{});
    EXPECT_EQ(watch.peak_bytes(), 0);
    {
        const Workspace a(2 * mebibyte, Space{});
        const Workspace b(mebibyte, Space{});
    }
    const Workspace c(mebibyte, Space{});
    EXPECT_EQ(watch.peak_bytes(), 3 * mebibyte);
}

TEST(BenchTiming, MedianOfRepetitionsOfWholeCalls)
{
    TimingSettings settings;
    settings.repetitions = 3;
    settings.warmup = 2;
    settings.least_seconds = 0.01;
    int calls = 0;
    const Timing timing = time_calls(
        "sleep",
        [&] {
            ++calls;
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        },
        0.005, settings);
    EXPECT_EQ(timing.calls, 2);
    EXPECT_EQ(calls, 2 + 3 * 2);
    EXPECT_GE(timing.least, 0.005);
    EXPECT_GE(timing.spread(), 0.0);
}

TEST(BenchTiming, FewerRepetitionsWhereTheyWouldTakeTooLong)
{
    TimingSettings settings;
    settings.repetitions = 100;
    settings.warmup = 0;
    settings.most_seconds = 3.5;
    int calls = 0;
    EXPECT_EQ(time_calls(
                  "pretended", [&] { ++calls; }, 1.0, settings)
                  .repetitions,
              3);
    EXPECT_EQ(calls, 3);
    EXPECT_EQ(time_calls(
                  "pretended", [&] { ++calls; }, 100.0, settings)
                  .repetitions,
              1);
}

TEST(BenchRows, JsonAndCsvHoldTheSame)
{
    Row row;
    row.direction = "forward";
    row.dtype = "bfloat16";
    row.shape = "b1_h1_n8_d8";
    row.implementation = "flashomp";
    row.backend = "openmp";
    row.machine = "plain";
    row.ran_on = "a GPU, the first";
    row.flops = 2e9;
    row.timing = {0.001, 0.0009, 0.0012, 4, 5};
    row.kernel_seconds = 0.0007;
    row.kernel_least = 0.0006;
    row.kernel_most = 0.0008;
    row.accuracy.has_gradients = true;
    row.accuracy.after_timing = true;
    row.accuracy.sample.emplace(cost::parse_shape(row.shape));
    row.peak_bytes = 1234;
    const nlohmann::json json = nlohmann::json::parse(row_json(row).dump());
    EXPECT_DOUBLE_EQ(json["real_time"], 1.0);
    EXPECT_DOUBLE_EQ(json["TFLOP/s"], 2.0);
    EXPECT_DOUBLE_EQ(json["kernel_time"], 0.7);
    EXPECT_DOUBLE_EQ(json["least_kernel_time"], 0.6);
    EXPECT_DOUBLE_EQ(json["most_kernel_time"], 0.8);
    EXPECT_EQ(json["compared_after_timing"], true);
    EXPECT_EQ(json["compared_parts"].dump(),
              R"([{"heads":[0,1],"key_head":0,"key_tensors":["dk","dv"],"keys":[[0,8]],"row_tensors":["o","lse","dq"],)"
              R"("rows":[[0,8]],"sequence":0}])");
    EXPECT_EQ(json["label"], "openmp:plain on a GPU, the first");
    EXPECT_EQ(json["peak_bytes"], 1234);
    EXPECT_NEAR(json["spread"].get<double>(), 0.3, 1e-9);
    const std::string csv = csv_text({row});
    EXPECT_NE(csv.find("forward,bfloat16,b1_h1_n8_d8,flashomp,openmp,plain,\"a GPU, the first\",0,1,0.9,1.2,0.7,5,2,"),
              std::string::npos)
        << csv;
    EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 2);

    row.failure = "out of memory";
    row.peak_bytes.reset();
    const nlohmann::json failed = nlohmann::json::parse(row_json(row).dump());
    EXPECT_EQ(failed["error_message"], "out of memory");
    EXPECT_FALSE(failed.contains("real_time"));
    EXPECT_NE(csv_text({row}).find(",out of memory\n"), std::string::npos);
}

TEST(BenchSuites, AreWhatTheirPapersSay)
{
    const auto& fa2 = find_suite("fa2").shapes;
    EXPECT_EQ(fa2.size(), 36U);
    for (const cost::Shape& shape : fa2) {
        EXPECT_EQ(shape.batch * shape.seqlen_q, 16384) << shape.name();
        EXPECT_EQ(shape.heads_q * shape.head_dim, 2048) << shape.name();
    }
    const auto& repro = find_suite("repro").shapes;
    EXPECT_EQ(repro.size(), 24U);
    for (const cost::Shape& shape : repro) {
        EXPECT_EQ(shape.batch, 4);
        EXPECT_EQ(shape.heads_q, 16);
        EXPECT_EQ(shape.head_dim, 64);
        EXPECT_TRUE(shape.heads_kv == 16 || shape.heads_kv == 1);
    }
    EXPECT_EQ(repro.front().seqlen_q, 512);
    EXPECT_EQ(repro.back().seqlen_q, 16384);
    EXPECT_TRUE(find_suite("repro").beside_standard);
    for (const Suite& suite : suites()) {
        std::set<std::string> names;
        for (const cost::Shape& shape : suite.shapes) {
            EXPECT_EQ(cost::parse_shape(shape.name()).name(), shape.name()) << suite.name;
            EXPECT_TRUE(names.insert(shape.name()).second) << shape.name() << " twice";
        }
    }
    EXPECT_TRUE(std::all_of(find_suite("decode").shapes.begin(), find_suite("decode").shapes.end(),
                            [](const cost::Shape& shape) { return shape.seqlen_q == 1; }));
    const auto& mla = find_suite("mla").shapes;
    EXPECT_EQ(mla.size(), 15U);
    EXPECT_TRUE(std::all_of(mla.begin(), mla.end(), [](const cost::Shape& shape) {
        return shape.latent && shape.seqlen_q == 1 && shape.heads_q == 128 && shape.heads_kv == 1 &&
               shape.head_dim == 576 && shape.head_dim_v == 512;
    }));
    EXPECT_TRUE(std::all_of(find_suite("varlen").shapes.begin(), find_suite("varlen").shapes.end(),
                            [](const cost::Shape& shape) { return shape.packed; }));
    EXPECT_THROW(static_cast<void>(find_suite("fa4")), Error);
}

} // namespace
} // namespace flashomp::bench
