// What plan() promises about kernels, on GPUs that are described and not there; and that a call runs what was planned.
#include "registry.hpp"

#include "place.hpp"
#include "shape.hpp"
#include "validate.hpp"
#include "words.hpp"

#include "cuda/kernels.hpp"

#include "flashomp/attention.hpp"
#include "flashomp/block_mask.hpp"

#include <algorithm>
#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <vector>

namespace flashomp {
namespace {

/// The GPUs of the table under every backend that this build has kernels for.
std::vector<Place> described_places()
{
    std::vector<Place> places;
    for (const KnownDevice& device : known_devices()) {
        for (const Backend backend : {Backend::openmp, Backend::cuda}) {
            const bool is_built = backend == Backend::cuda ? cuda::is_built() : offload::has_gpu_code();
            Options options;
            options.backend = backend;
            if (is_built) {
                places.push_back(place_on(device, options));
            }
        }
    }
    return places;
}

const std::vector<const char*> shapes{"b2_h4_n1000_d64",
                                      "b2_h4_n1000_d64_causal",
                                      "b1_h4kv2_n300_d96",
                                      "b1_h2_n1024_d128_causal",
                                      "b1_h4_n513_d192v128",
                                      "b1_h4_n1024_d200",
                                      "b1_h4_n1024_d256",
                                      "b1_h2_n100x100_d64",
                                      "b1_h8kv2_n1x4096_d128",
                                      "b3_h2_n700_d64_varlen",
                                      "b1_h2_n7x5_d33",
                                      "b1_h4_n300_d576v512",
                                      "b2_h128kv1_n1x4096_d576v512_latent"};

/// plan(), or none where the call is refused.
std::optional<Plan> planned(const Problem& problem, const Hardware& hardware)
{
    try {
        return plan(as_computed(problem, hardware), hardware);
    } catch (const Error&) {
        return {};
    }
}

/// That a plan has the first kernel of the list that runs each pass, and says so.
void expect_first_kernels(const Plan& plan, const Problem& problem, const Hardware& hardware, const std::string& what)
{
    for (const PassPlan& pass : plan.passes) {
        const offload::Pass launched = pass.launch.pass;
        // A launch of dQ that computes all gradients, but where D has one before.
        const bool is_of_dq = launched == offload::Pass::backward_once && &pass == &plan.passes.front();
        const offload::Pass which = is_of_dq ? offload::Pass::backward_query : launched;
        ASSERT_NE(pass.kernel, nullptr) << what;
        EXPECT_EQ(pass.machine, pass.kernel->machine) << what;
        EXPECT_EQ(pass.kernel->backend, hardware.backend) << what;
        EXPECT_EQ(obstacle_of(*pass.kernel, which, problem, hardware), "") << what;
        EXPECT_GT(pass.launch.resident_rows, 0) << what;
        EXPECT_GT(pass.launch.stream_rows, 0) << what;
        EXPECT_NE(plan.machine_name.find(tuning::word_of(pass.machine)), std::string::npos) << what;
        for (const Kernel& kernel : kernels()) { // the first that runs the pass
            if (kernel.backend == hardware.backend && obstacle_of(kernel, which, problem, hardware).empty()) {
                EXPECT_EQ(kernel.name, pass.kernel->name) << what;
                break;
            }
        }
    }
    const auto computes_keys = [](const PassPlan& pass) { return offload::keys_stay(pass.launch.pass); };
    EXPECT_EQ(std::count_if(plan.passes.begin(), plan.passes.end(), computes_keys), problem.is_backward ? 1 : 0)
        << what;
}

TEST(Registry, EveryCallHasKernelsOnEveryGpu)
{
    const std::vector<Place> places = described_places();
    if (places.empty()) {
        GTEST_SKIP() << "this build has no GPU code";
    }
    for (const Place& place : places) {
        for (const char* const name : shapes) {
            for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
                for (const double softcap : {0.0, 30.0}) {
                    for (const bool backward : {false, true}) {
                        Options options;
                        options.softcap = softcap;
                        const Problem problem = cost::problem_of(cost::parse_shape(name), dtype, backward, options);
                        const std::string what = place.name + ", " + name + ", " + std::to_string(backward);
                        const std::optional<Plan> decided = planned(problem, place.hardware);
                        ASSERT_TRUE(decided.has_value()) << what;
                        expect_first_kernels(*decided, as_computed(problem, place.hardware), place.hardware, what);
                    }
                }
            }
        }
    }
}

TEST(Registry, AMachineThatIsNamedRunsOrIsRefused)
{
    const std::vector<Place> places = described_places();
    if (places.empty()) {
        GTEST_SKIP() << "this build has no GPU code";
    }
    for (const Place& place : places) {
        for (const char* const name : shapes) {
            for (const Machine machine : {Machine::plain, Machine::tensor, Machine::hopper, Machine::host}) {
                Options options;
                options.machine = machine;
                const Problem problem = cost::problem_of(cost::parse_shape(name), DType::bfloat16, true, options);
                const std::optional<Plan> decided = planned(problem, place.hardware);
                const std::string what = place.name + ", " + name;
                const bool has_tensor = problem.kernel_depth() <= 256; // beyond it, for forward alone
                EXPECT_TRUE(decided || (machine != Machine::plain && (machine != Machine::tensor || !has_tensor)))
                    << what;
                EXPECT_FALSE(decided && machine == Machine::host) << what;
                EXPECT_EQ(decided ? decided->machine_name : std::string(tuning::word_of(machine)),
                          tuning::word_of(machine))
                    << what;
            }
        }
    }
}

/// The machines of a bfloat16 call on a GPU of the table under a backend.
std::string machines(const char* device, Backend backend, const char* shape, bool backward)
{
    Options options;
    options.backend = backend;
    const Place place = place_on(*find_known_device(device), options);
    return plan(cost::problem_of(cost::parse_shape(shape), DType::bfloat16, backward, {}), place.hardware).machine_name;
}

TEST(Registry, WarpgroupProductsAreHoppersAlone)
{
    if (!offload::has_gpu_code() && !cuda::is_built()) {
        GTEST_SKIP() << "this build has no GPU code";
    }
    for (const Backend backend : {Backend::openmp, Backend::cuda}) {
        if (backend == Backend::cuda ? !cuda::is_built() : !offload::has_gpu_code()) {
            continue;
        }
        const bool has_kernels = backend == Backend::cuda || offload::load_hopper_machine(); // FLASHOMP_HOPPER
        const char* const of_hopper = has_kernels ? "hopper" : "tensor";
        for (const bool backward : {false, true}) {
            EXPECT_EQ(machines("h100", backend, "b1_h4_n1024_d128", backward), of_hopper);
            EXPECT_EQ(machines("h200", backend, "b1_h4_n1024_d64", backward), of_hopper);
            for (const char* const other : {"a100", "l40s", "rtx4090", "b200"}) {
                EXPECT_EQ(machines(other, backend, "b1_h4_n1024_d128", backward), "tensor") << other;
            }
        }
    }
}

TEST(Registry, OnePassForAllGradientsWhereItIsFaster)
{
    if (!offload::has_gpu_code() || !offload::load_hopper_machine()) {
        GTEST_SKIP() << "this build has no GPU code";
    }
    const auto passes = [](const char* shape, const Options& options = {}) {
        const Hardware h200 = place_on(*find_known_device("h200"), {.backend = Backend::openmp}).hardware;
        const Plan decided = plan(cost::problem_of(cost::parse_shape(shape), DType::bfloat16, true, options), h200);
        return std::pair{decided.passes.size(), is_one_pass(decided)};
    };
    const std::pair one{std::size_t{3}, true}, two{std::size_t{2}, false}; // D and the sums of dQ have theirs
    EXPECT_EQ(passes("b4_h16_n4096_d128"), one);
    EXPECT_EQ(passes("b4_h16_n4096_d128_causal"), one);
    EXPECT_EQ(passes("b32_h32kv4_n512_d80"), one);
    EXPECT_EQ(passes("b4_h32_n4096_d64"), two);
    EXPECT_EQ(passes("b4_h8_n4096_d256"), two);
    EXPECT_EQ(passes("b32_h16_n500_d128"), two); // few queries
    EXPECT_EQ(passes("b1_h8_n2048_d128"), two);  // 128 key blocks, for 132 multiprocessors
    EXPECT_EQ(passes("b4_h16_n4096_d128_varlen"), two);
    EXPECT_EQ(passes("b4_h16_n4096_d128_window255x0"), one);
    EXPECT_EQ(passes("b4_h16_n4096_d128_window254x0"), two); // D of rows that see few keys is repaired
    EXPECT_EQ(passes("b128_h16_n4096x200_d128"), two);
    Options softcap;
    softcap.softcap = 20.0F;
    EXPECT_EQ(passes("b4_h16_n4096_d128", softcap), two);
    std::vector<float> values(16);
    Problem with_sink = cost::problem_of(cost::parse_shape("b4_h16_n4096_d128"), DType::bfloat16, true, {});
    with_sink.dsink = TensorView(values.data(), DType::float32, {16}, {1});
    const Hardware h200 = place_on(*find_known_device("h200"), {.backend = Backend::openmp}).hardware;
    EXPECT_FALSE(is_one_pass(plan(with_sink, h200))); // dsink is a sum of D
}

TEST(Registry, CudasHopperKernelsTakeModifiedScores)
{
    if (!cuda::is_built()) {
        GTEST_SKIP() << "this build has no CUDA backend";
    }
    const auto of = [](const char* shape, bool backward) { return machines("h200", Backend::cuda, shape, backward); };
    for (const char* const shape :
         {"b1_h4_n1024_d64_softcap50_alibi_bias_dropout10_sink", "b1_h4_n1024_d128_causal_bias",
          "b1_h4_n100_d192v128_alibi", "b1_h4_n1024_d256_softcap50"}) {
        EXPECT_EQ(of(shape, false), "hopper") << shape;
    }
    for (const char* const shape :
         {"b1_h4_n1024_d64_alibi_bias_dropout10", "b1_h4_n1024_d128_softcap50_dropout10", "b1_h4_n1024_d64_softcap50",
          "b1_h4_n64x1024_d128_alibi", "b1_h4_n1024_d256_softcap50", "b1_h4_n100_d192v128_alibi_bias_dropout10"}) {
        EXPECT_EQ(of(shape, true), "hopper") << shape;
    }
    // What its backward has no kernels for: a softcap beside ALiBi or a bias, few queries or keys, a softcap so large
    // that LSE may be.
    for (const char* const shape :
         {"b1_h4_n1024_d128_softcap50_alibi", "b1_h4_n1024_d64_softcap50_bias", "b1_h4_n1024_d256_softcap50_alibi",
          "b1_h4_n63x1024_d128_alibi", "b1_h4_n200_d128_alibi", "b1_h4_n1024_d128_softcap4096"}) {
        EXPECT_EQ(of(shape, true), "tensor") << shape;
    }
    Options options;
    options.backend = Backend::cuda;
    const Hardware h200 = place_on(*find_known_device("h200"), options).hardware;
    const auto problem_of = [&](const char* shape, bool backward) {
        return cost::problem_of(cost::parse_shape(shape), DType::bfloat16, backward, options);
    };
    Problem with_gradient = problem_of("b1_h4_n512_d128_bias", true);
    const auto name_with = [&](DType dtype, std::int64_t queries, Machine machine) {
        with_gradient.dbias = TensorView::contiguous(nullptr, dtype, {1, 4, queries, 512});
        with_gradient.options.bias = with_gradient.dbias;
        with_gradient.options.machine = machine;
        return plan(with_gradient, h200).machine_name;
    };
    EXPECT_EQ(name_with(DType::bfloat16, 512, Machine::automatic), "hopper");
    EXPECT_EQ(name_with(DType::float32, 512, Machine::automatic), "tensor+hopper"); // D is corrected
    EXPECT_EQ(name_with(DType::bfloat16, 1, Machine::automatic), "tensor+hopper");
    EXPECT_EQ(name_with(DType::bfloat16, 512, Machine::hopper), "hopper");
    EXPECT_EQ(name_with(DType::bfloat16, 512, Machine::tensor), "tensor+plain");
    EXPECT_EQ(name_with(DType::bfloat16, 512, Machine::plain), "plain");
    Problem shard = problem_of("b1_h4_n512_d128_dropout10", false);
    shard.options.positions_q = {1024, {{Stretch{512, 512}, Stretch{}}}};
    for (const std::int64_t first : {512, 510}) { // four keys share a draw
        shard.options.positions_k = {1024, {{Stretch{first, 512}, Stretch{}}}};
        EXPECT_EQ(plan(shard, h200).machine_name, first % 4 == 0 ? "hopper" : "tensor") << first;
    }
    Problem capped = problem_of("b1_h4_n512_d128_softcap1", false);
    for (const double scale : {0.1, 1e-12, -0.1}) { // the kernel divides by it
        capped.options.scale = scale;
        EXPECT_EQ(plan(capped, h200).machine_name, scale == 0.1 ? "hopper" : "tensor") << scale;
    }
}

TEST(Registry, CudasHopperKernelsAreInThePlan)
{
    if (!cuda::is_built()) {
        GTEST_SKIP() << "this build has no CUDA backend";
    }
    const auto of = [](const char* shape, bool backward) { return machines("h200", Backend::cuda, shape, backward); };
    EXPECT_EQ(of("b1_h8kv2_n1x16384_d128", false), "tensor");  // parts of the keys
    EXPECT_EQ(of("b16_h32kv8_n64x4096_d128", true), "tensor"); // key blocks would wait for each other
    EXPECT_EQ(of("b16_h32kv8_n64x2048_d128", true), "hopper");
    EXPECT_EQ(of("b16_h32kv8_n256x4096_d128", true), "hopper");
    EXPECT_EQ(of("b1_h4_n100_d128", true), "tensor");   // few keys: D is to be corrected
    EXPECT_EQ(of("b1_h4_n100_d256", true), "hopper");   // where the wide kernels do so
    EXPECT_EQ(of("b1_h4_n1024_d320", false), "tensor"); // beyond its depths
    EXPECT_EQ(of("b1_h4_n1024_d576v512", false), "tensor");
    EXPECT_EQ(of("b1_h4_n1024_d320", true), "plain");
    const auto passes = [](const char* shape) {
        const Place place = place_on(*find_known_device("h200"), {.backend = Backend::cuda});
        const Plan decided =
            plan(cost::problem_of(cost::parse_shape(shape), DType::bfloat16, true, {}), place.hardware);
        return std::pair{decided.passes.size(), is_one_pass(decided)};
    };
    EXPECT_EQ(passes("b1_h4_n1024_d128"), (std::pair{std::size_t{1}, true})); // five products
    EXPECT_EQ(passes("b1_h4_n1024_d256"), (std::pair{std::size_t{2}, false}));
    Options options;
    options.backend = Backend::cuda;
    const Hardware h200 = place_on(*find_known_device("h200"), options).hardware;
    Problem problem = cost::problem_of(cost::parse_shape("b2_h4_n1024_d128"), DType::bfloat16, true, {});
    const Plan whole = plan(problem, h200);
    ASSERT_EQ(whole.passes.size(), 1U); // one launch does all gradients
    EXPECT_EQ(whole.passes.front().kernel->name, "cuda hopper");
    EXPECT_GT(whole.crew_memory_bytes, 4 * 2 * 4 * 1024 * 128); // dQ in float32
    alignas(16) char memory[32];
    problem.dq.memory = Memory::device; // where the copy engine cannot write it
    problem.dq.data = memory + 2;
    EXPECT_EQ(plan(problem, h200).machine_name, "tensor");
    problem.dq.data = memory;
    EXPECT_EQ(plan(problem, h200).machine_name, "hopper");
}

TEST(Registry, FewQueriesHaveAKernelOfTheirOwn)
{
    const std::vector<Place> places = described_places();
    if (places.empty()) {
        GTEST_SKIP() << "this build has no GPU code";
    }
    for (const Place& place : places) {
        const auto planned = [&](const char* shape, DType dtype = DType::bfloat16,
                                 Machine machine = Machine::automatic) {
            Options options;
            options.machine = machine;
            return plan(as_computed(cost::problem_of(cost::parse_shape(shape), dtype, false, options), place.hardware),
                        place.hardware);
        };
        const auto has_it = [](const Plan& decided) {
            return decided.passes.front().kernel->name.find(", few queries") != std::string_view::npos;
        };
        for (const char* const shape :
             {"b1_h32kv8_n1x1024_d128", "b16_h8_n1x10_d64", "b1_h4kv2_n32x4096_d128_causal", "b2_h4_n16x500_d256",
              "b1_h8kv2_n1x4096_d128_sink", "b1_h8kv2_n1x4096_d128_page16", "b2_h4_n5x700_d192v128_causal_window99"}) {
            EXPECT_TRUE(has_it(planned(shape))) << place.name << ' ' << shape;
            EXPECT_TRUE(has_it(planned(shape, DType::float16, Machine::tensor))) << place.name << ' ' << shape;
            EXPECT_FALSE(has_it(planned(shape, DType::float32))) << place.name << ' ' << shape;
            EXPECT_FALSE(has_it(planned(shape, DType::bfloat16, Machine::plain))) << place.name << ' ' << shape;
        }
        for (const char* const shape : {"b1_h8_n33x1024_d128", "b1_h8_n1x1024_d128_softcap50",
                                        "b1_h8_n1x4096_d128_blocks50", "b1_h8_n1x4096_d257"}) {
            EXPECT_FALSE(has_it(planned(shape))) << place.name << ' ' << shape;
        }
        // As many heads of a group as a tile has room for, and as divide it.
        const auto block = [&](const char* shape) {
            const offload::Launch launch = planned(shape).passes.front().launch;
            return std::pair(launch.heads_in_block, launch.resident_rows);
        };
        EXPECT_EQ(block("b1_h32kv8_n1x1024_d128"), std::pair(1, 4)); // rows already
        EXPECT_EQ(block("b1_h32kv8_n8x1024_d128_causal"), std::pair(4, 8));
        EXPECT_EQ(block("b1_h32kv8_n9x1024_d128_causal"), std::pair(2, 9));
        EXPECT_EQ(block("b1_h6kv1_n10x1024_d128_causal"), std::pair(3, 10));
        EXPECT_EQ(block("b1_h8kv2_n5x1024_d256_causal"), std::pair(2, 5));
        EXPECT_EQ(block("b1_h8kv2_n21x1024_d256_causal"), std::pair(1, 16));
    }
}

TEST(Registry, GradientsOfFewQueriesHaveAKernelOfTheirOwn)
{
    for (const Backend backend : {Backend::cuda, Backend::openmp}) {
        const bool is_cuda = backend == Backend::cuda;
        if (is_cuda ? !cuda::is_built() : !offload::has_gpu_code()) {
            continue;
        }
        for (const char* const device : {"a100", "h200"}) {
            const auto has_it = [&](const char* shape, DType dtype = DType::bfloat16,
                                    Machine machine = Machine::automatic) {
                Options options;
                options.backend = backend;
                options.machine = machine;
                const Plan decided = plan(cost::problem_of(cost::parse_shape(shape), dtype, true, options),
                                          place_on(*find_known_device(device), options).hardware);
                const std::string name(decided.passes.front().kernel->name);
                return name.find("gradients of few queries") != std::string::npos && decided.passes.size() == 1;
            };
            for (const char* const shape : {"b1_h32kv8_n1x1024_d128", "b16_h32kv8_n1x65536_d128", "b1_h8kv1_n4x300_d64",
                                            "b1_h4kv2_n8x4096_d128_causal", "b1_h8kv2_n1x4096_d128_sink"}) {
                EXPECT_TRUE(has_it(shape)) << device << ' ' << shape;
                EXPECT_TRUE(has_it(shape, DType::float16, Machine::tensor)) << device << ' ' << shape;
            }
            // A team of OpenMP's has less shared memory.
            for (const char* const shape :
                 {"b2_h4_n16x500_d256", "b1_h32_n32x512_d96", "b1_h4kv2_n8x4096_d192v128_causal"}) {
                EXPECT_EQ(has_it(shape), is_cuda) << device << ' ' << shape;
            }
            for (const char* const shape :
                 {"b1_h11kv1_n3x1024_d128", "b1_h33_n33x1024_d64", "b1_h17kv1_n1x1024_d256", "b1_h8_n1x255_d128",
                  "b1_h8_n1x1024_d128_softcap50", "b1_h8_n1x4096_d128_blocks50"}) {
                EXPECT_FALSE(has_it(shape)) << device << ' ' << shape;
            }
            for (const std::int64_t keys : {4096, 0}) { // dsink is a sum of D
                Options options;
                options.backend = backend;
                Problem with_sink =
                    cost::problem_of(cost::parse_shape("b1_h8kv2_n1x4096_d128"), DType::bfloat16, true, options);
                with_sink.dsink = TensorView::contiguous(nullptr, DType::float32, {8});
                if (keys == 0) {
                    with_sink.starts_q = with_sink.starts_k = {0, 0};
                }
                EXPECT_EQ(plan(with_sink, place_on(*find_known_device(device), options).hardware).passes.size(), 3U)
                    << keys;
            }
            EXPECT_FALSE(has_it("b1_h8_n1x1024_d128", DType::float32));
            EXPECT_FALSE(has_it("b1_h8_n1x1024_d128", DType::bfloat16, Machine::plain));
        }
    }
}

TEST(Registry, MasksHaveKernelsOnTensorCores)
{
    const std::vector<Place> places = described_places();
    if (places.empty()) {
        GTEST_SKIP() << "this build has no GPU code";
    }
    for (const Place& place : places) {
        const auto machine = [&](const char* shape, DType dtype, const Options& options) {
            return plan(cost::problem_of(cost::parse_shape(shape), dtype, true, options), place.hardware).machine_name;
        };
        EXPECT_EQ(machine("b1_h4_n1024_d64_blocks50", DType::bfloat16, {}), "tensor") << place.name;
        EXPECT_EQ(machine("b1_h4_n1024_d128_blocks50", DType::float16, {}), "tensor") << place.name;
        EXPECT_EQ(machine("b1_h4_n1024_d256_blocks50", DType::bfloat16, {}), "plain") << place.name;
        EXPECT_EQ(machine("b1_h4_n1024_d64_blocks50", DType::float32, {}), "plain") << place.name;
        EXPECT_EQ(machine("b1_h4_n1024_d64_blocks50", DType::bfloat16, {.softcap = 9.0}), "plain") << place.name;
    }
}

/// Crews for few rows of queries are not for every dtype. Without any query, too, another kernel runs the others.
TEST(Registry, NoQueriesHaveKernelsOnTensorCores)
{
    const std::vector<Place> places = described_places();
    if (places.empty()) {
        GTEST_SKIP() << "this build has no GPU code";
    }
    for (const Place& place : places) {
        for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
            Problem problem = cost::problem_of(cost::parse_shape("b1_h2_n1x10_d64"), dtype, true, {});
            problem.seqlen_q = 0;
            EXPECT_NE(plan(problem, place.hardware).machine_name, "plain") << place.name;
        }
    }
}

TEST(Registry, AGpuWithoutTensorCoresRunsThePlainMachine)
{
    if (!offload::has_gpu_code()) {
        GTEST_SKIP() << "this build has no GPU code";
    }
    Options options;
    options.backend = Backend::openmp;
    Hardware hardware = place_on(*find_known_device("a100"), options).hardware;
    hardware.gpu.major = 7;
    hardware.gpu.matrix_units = matrix_units_of(7, 5);
    const Problem problem = cost::problem_of(cost::parse_shape("b1_h4_n1024_d64"), DType::bfloat16, true, {});
    EXPECT_EQ(plan(problem, hardware).machine_name, "plain");
}

/// Names and flags that the registry promises.
TEST(Registry, KernelsHaveNamesOfTheirOwn)
{
    std::vector<std::string_view> names;
    for (const Kernel& kernel : kernels()) {
        names.push_back(kernel.name);
        EXPECT_EQ(kernel.run_on_stream != nullptr, kernel.backend == Backend::cuda) << kernel.name;
        EXPECT_EQ(kernel.run_region != nullptr, kernel.backend == Backend::openmp && kernel.machine != Machine::host)
            << kernel.name;
    }
    std::sort(names.begin(), names.end());
    EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

/// Calls on this machine, on its GPU if there is one: the report names what plan() said.
class PlannedAndRun : public ::testing::TestWithParam<DType> {};

TEST_P(PlannedAndRun, AgreeOnTheMachines)
{
    const DType dtype = GetParam();
    constexpr std::int64_t batch = 2, heads = 2, rows = 70, depth = 32;
    const auto tensor = [&](std::vector<char>& memory) {
        memory.assign(static_cast<std::size_t>(batch * rows * heads * depth * size_of(dtype)), 0);
        return TensorView::contiguous(memory.data(), dtype, {batch, rows, heads, depth});
    };
    std::vector<char> q, k, v, o, dout, dq, dk, dv;
    std::vector<float> lse(batch * heads * rows), bias(heads * rows * rows), dbias(bias.size());
    const auto lse_view = TensorView::contiguous(lse.data(), DType::float32, {batch, heads, rows});
    const ForwardArgs args{tensor(q), tensor(k), tensor(v), tensor(o), lse_view};
    BackwardArgs back{args.q, args.k, args.v, args.o, lse_view, tensor(dout), tensor(dq), tensor(dk), tensor(dv)};
    for (const Machine machine : {Machine::automatic, Machine::plain, Machine::host}) {
        for (const bool has_bias : {false, true}) {
            Options options;
            options.machine = machine;
            options.causal = Causal::top_left;
            if (has_bias) {
                options.bias = TensorView::contiguous(bias.data(), DType::float32, {1, heads, rows, rows});
                back.dbias = TensorView::contiguous(dbias.data(), DType::float32, {1, heads, rows, rows});
            }
            const Hardware hardware = choose_place(options).hardware;
            const auto name = [&](const Problem& problem) {
                return plan(as_computed(problem, hardware), hardware).machine_name;
            };
            EXPECT_EQ(forward(args, options).machine, name(validate_forward(args, options)));
            EXPECT_EQ(backward(back, options).machine, name(validate_backward(back, options)));
        }
        back.dbias = {};
    }
}

INSTANTIATE_TEST_SUITE_P(DTypes, PlannedAndRun, ::testing::Values(DType::float32, DType::bfloat16, DType::float16));

} // namespace
} // namespace flashomp
