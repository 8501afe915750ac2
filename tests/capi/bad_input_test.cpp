// Bad input to the C interface: one sentence that names the argument, and nothing written.
#include "c_call.hpp"

#include "support/attention_case.hpp"
#include "unit/refusal.hpp"

#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace flashomp::testing {
namespace {

void expect_sentence(const std::string& sentence, const std::string& says)
{
    EXPECT_NE(sentence.find(says), std::string::npos) << sentence;
    ASSERT_FALSE(sentence.empty());
    EXPECT_EQ(sentence.back(), '.') << sentence;
    EXPECT_EQ(sentence.find('\n'), std::string::npos) << sentence;
}

/// A call and copies of its tensors, to be made worse.
struct Worse {
    CCall& call;
    flashomp_tensor q, k, bias;
    flashomp_allocator allocator;
};

struct BadCall {
    const char* says;
    std::function<void(Worse&)> change;
};

std::vector<BadCall> bad_calls()
{
    static std::int64_t extents[] = {1, 1, 1, 1, 1};
    static std::int64_t backward_strides[] = {96, -32, 16, 1};
    static std::int64_t last_stride[] = {192, 64, 32, 2};
    return {
        {"q was not given", [](Worse& with) { with.call.forward.q = nullptr; }},
        {"q was not given", [](Worse& with) { with.q.ndim = 0; }},
        {"o was not given", [](Worse& with) { with.call.forward.o = nullptr; }},
        {"q has ndim -1", [](Worse& with) { with.q.ndim = -1; }},
        {"q has ndim 5",
         [](Worse& with) {
             with.q.ndim = 5;
             with.q.shape = extents;
         }},
        {"q has ndim 4 but its shape is null", [](Worse& with) { with.q.shape = nullptr; }},
        {"q has shape [1, 3, 2, 16] but its data is null", [](Worse& with) { with.q.data = nullptr; }},
        {"q has dtype code 5 with 64 bits",
         [](Worse& with) {
             with.q.dtype = {5, 64, 1};
         }},
        {"q has dtype code 2 with 8 bits", [](Worse& with) { with.q.dtype.bits = 8; }},
        {"q has dtype code 1 with 8 bits",
         [](Worse& with) {
             with.q.dtype = {FLASHOMP_UINT, 8, 1};
         }},
        {"q has dtype code 6 with 2 bits",
         [](Worse& with) {
             with.q.dtype = {FLASHOMP_BOOL, 2, 1};
         }},
        {"q has a dtype of 4 lanes", [](Worse& with) { with.q.dtype.lanes = 4; }},
        {"q is float64", [](Worse& with) { with.q.dtype.bits = 64; }},
        {"k is bfloat16 but q is float32",
         [](Worse& with) {
             with.k.dtype = {FLASHOMP_BFLOAT, 16, 1};
         }},
        {"stride -32 on axis 1", [](Worse& with) { with.q.strides = backward_strides; }},
        {"q has stride 2 on its last axis", [](Worse& with) { with.q.strides = last_stride; }},
        {"q has byte_offset 144115188075855872", [](Worse& with) { with.q.byte_offset = std::uint64_t{1} << 57U; }},
        {"as float32 it must be a multiple of 4", [](Worse& with) { with.q.byte_offset = 2; }},
        {"q has device_type 7", [](Worse& with) { with.q.device.device_type = 7; }},
        {"q has device_id -1",
         [](Worse& with) {
             with.q.device = {FLASHOMP_CUDA, -1};
         }},
        {"k is on GPU 1, but q is on GPU 0",
         [](Worse& with) {
             with.q.device = {FLASHOMP_CUDA, 0};
             with.k.device = {FLASHOMP_CUDA, 1};
         }},
        {"bias is on GPU 2, but q is on GPU 3",
         [](Worse& with) {
             with.q.device = {FLASHOMP_CUDA, 3};
             with.bias.device = {FLASHOMP_CUDA, 2};
         }},
        {"q is on GPU 1, but device_index was 0",
         [](Worse& with) {
             with.q.device = {FLASHOMP_CUDA, 1};
             with.call.options.device_choice = FLASHOMP_DEVICE_GPU;
         }},
        {"q is on GPU 99", // there is no such machine
         [](Worse& with) {
             with.q.device = {FLASHOMP_CUDA, 99};
             with.call.options.device_choice = FLASHOMP_DEVICE_AUTO;
         }},
        {"q is on GPU 0, but backend reference runs on the host",
         [](Worse& with) {
             with.q.device = {FLASHOMP_CUDA, 0};
             with.call.options.device_choice = FLASHOMP_DEVICE_AUTO;
             with.call.options.backend = FLASHOMP_BACKEND_REFERENCE;
         }},
        {"q is in device memory",
         [](Worse& with) {
             with.q.device = {FLASHOMP_CUDA, 0};
         }},
        {"causal was 3", [](Worse& with) { with.call.options.causal = 3; }},
        {"causal was 257", [](Worse& with) { with.call.options.causal = 257; }},
        {"causal was -1", [](Worse& with) { with.call.options.causal = -1; }},
        {"backend was 4", [](Worse& with) { with.call.options.backend = 4; }},
        {"machine was 256", [](Worse& with) { with.call.options.machine = 256; }},
        {"device_choice was 3", [](Worse& with) { with.call.options.device_choice = 3; }},
        {"device was -1",
         [](Worse& with) {
             with.call.options.device_choice = FLASHOMP_DEVICE_GPU;
             with.call.options.device_index = -1;
         }},
        {"has_scale was 2", [](Worse& with) { with.call.options.has_scale = 2; }},
        {"has_stream was -1", [](Worse& with) { with.call.options.has_stream = -1; }},
        {"tile_global_memory was 7", [](Worse& with) { with.call.options.tile_global_memory = 7; }},
        {"stream was given", [](Worse& with) { with.call.options.has_stream = 1; }},
        {"threads was -3", [](Worse& with) { with.call.options.threads = -3; }},
        {"window left was -2", [](Worse& with) { with.call.options.window_left = -2; }},
        {"softcap was nan", [](Worse& with) { with.call.options.softcap = std::numeric_limits<double>::quiet_NaN(); }},
        {"dropout was 1", [](Worse& with) { with.call.options.dropout_probability = 1.0; }},
        {"tiling.teams was 5000", [](Worse& with) { with.call.options.tile_teams = 5000; }},
        {"bias has shape [1, 1, 3, 5]; it must be",
         [](Worse& with) {
             static std::int64_t shape[] = {1, 1, 3, 5};
             with.bias.shape = shape;
         }},
        {"args->size was 0", [](Worse& with) { with.call.forward.size = 0; }},
        {"args->size was 47", [](Worse& with) { with.call.forward.size -= 1; }},
        {"options->size was 8", [](Worse& with) { with.call.options.size = 8; }},
        {"options->size was 18446744073709551615",
         [](Worse& with) { with.call.options.size = std::numeric_limits<std::size_t>::max(); }},
        {"allocator->size was 0",
         [](Worse& with) {
             with.allocator.size = 0;
             with.call.options.allocator = &with.allocator;
         }},
        {"allocator->allocate was null", [](Worse& with) { with.call.options.allocator = &with.allocator; }},
        {"allocator->release was null",
         [](Worse& with) {
             with.allocator.allocate = [](void*, std::int64_t, std::int64_t, std::int32_t, std::int32_t,
                                          void*) -> void* { return nullptr; };
             with.call.options.allocator = &with.allocator;
         }},
        {"allocator was given with backend reference",
         [](Worse& with) {
             with.allocator.allocate = [](void*, std::int64_t, std::int64_t, std::int32_t, std::int32_t,
                                          void*) -> void* { return nullptr; };
             with.allocator.release = [](void*, void*, std::int64_t, std::int32_t, std::int32_t, void*) {};
             with.call.options.allocator = &with.allocator;
             with.call.options.backend = FLASHOMP_BACKEND_REFERENCE;
         }},
    };
}

TEST(CApiBadInput, IsOneSentenceAndWritesNothing)
{
    AttentionCase good({1, 2, 2, 3, 7, 16, 16}, DType::float32, 1);
    const HostTensor bias(DType::float32, {1, 1, 3, 7});
    Options options;
    options.device.kind = Device::Kind::host;
    options.bias = bias.view();
    for (const BadCall& bad : bad_calls()) {
        SCOPED_TRACE(bad.says);
        good.poison_outputs();
        CCall call(good.forward_args(), options);
        Worse with{call, *call.forward.q, *call.forward.k, *call.options.bias, {}};
        flashomp_allocator_init(&with.allocator, sizeof with.allocator);
        call.forward.q = &with.q;
        call.forward.k = &with.k;
        call.options.bias = &with.bias;
        flashomp_report report;
        flashomp_report_init(&report, sizeof report);
        const flashomp_report before = report;
        bad.change(with);
        EXPECT_EQ(flashomp_forward(&call.forward, &call.options, &report), FLASHOMP_BAD_ARGUMENT);
        expect_sentence(flashomp_last_error(), bad.says);
        EXPECT_TRUE(is_poison(good.o) && is_poison(good.lse));
        EXPECT_EQ(std::memcmp(&report, &before, sizeof report), 0);
    }
}

TEST(CApiBadInput, NullPointersAreRefused)
{
    const auto expect_null = [](flashomp_status status, const char* says) {
        EXPECT_EQ(status, FLASHOMP_BAD_ARGUMENT);
        expect_sentence(flashomp_last_error(), says);
    };
    expect_null(flashomp_forward(nullptr, nullptr, nullptr), "args was null");
    expect_null(flashomp_backward(nullptr, nullptr, nullptr), "args was null");
    expect_null(flashomp_merge(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr), "o has 0 axes");
    expect_null(flashomp_dropout_mask(0.5, 1, 2, nullptr), "mask is");
    expect_null(flashomp_prepare_forward(nullptr, nullptr, nullptr), "prepared was null");
    flashomp_prepared* prepared = nullptr;
    expect_null(flashomp_prepare_backward(nullptr, nullptr, &prepared), "args was null");
    expect_null(flashomp_run_forward(nullptr, nullptr, nullptr, nullptr, 0, nullptr), "prepared was null");
    expect_null(flashomp_run_backward(nullptr, nullptr, nullptr, nullptr, 0, nullptr), "prepared was null");
    expect_null(flashomp_get_device(FLASHOMP_BACKEND_AUTO, 0, nullptr), "info was null");
    EXPECT_EQ(flashomp_workspace_bytes(nullptr), -1);
    EXPECT_EQ(flashomp_workspace_device_type(nullptr), -1);
    expect_sentence(flashomp_last_error(), "prepared was null");
    flashomp_prepared_free(nullptr);
    flashomp_options_init(nullptr, sizeof(flashomp_options));
    EXPECT_EQ(flashomp_device_count(9), -1);
    expect_sentence(flashomp_last_error(), "backend was 9");
    const flashomp_dtype complex{5, 64, 1};
    EXPECT_EQ(flashomp_host_isa(&complex), nullptr);
    expect_sentence(flashomp_last_error(), "dtype has dtype code 5");
}

TEST(CApiBadInput, SentencesAreOfTheThread)
{
    EXPECT_EQ(flashomp_device_count(101), -1);
    std::string before, after;
    std::thread other([&] {
        before = flashomp_last_error();
        static_cast<void>(flashomp_device_count(102));
        after = flashomp_last_error();
    });
    other.join();
    EXPECT_EQ(before, "");
    expect_sentence(after, "backend was 102");
    expect_sentence(flashomp_last_error(), "backend was 101");
    EXPECT_GE(flashomp_device_count(FLASHOMP_BACKEND_OPENMP), 0);
    expect_sentence(flashomp_last_error(), "backend was 101"); // what succeeds leaves the sentence
}

} // namespace
} // namespace flashomp::testing
