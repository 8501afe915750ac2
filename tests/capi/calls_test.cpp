// Calls of the C interface have the bits of the C++ calls, with every option.
#include "c_call.hpp"

#include "support/attention_case.hpp"
#include "support/every_option.hpp"

#include "flashomp/device.hpp"
#include "flashomp/version.hpp"

#include <cstring>
#include <string>

namespace flashomp::testing {
namespace {

Options on_host(Options options)
{
    options.backend = Backend::openmp;
    options.device.kind = Device::Kind::host;
    options.threads = 2;
    return options;
}

::testing::AssertionResult have_same_bits(const HostTensor& a, const HostTensor& b)
{
    if (a.shape() != b.shape() || std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())) != 0) {
        return ::testing::AssertionFailure() << "the bits differ";
    }
    return ::testing::AssertionSuccess();
}

void expect_same(const Report& report, const flashomp_report& c_report)
{
    EXPECT_EQ(report.backend, c_report.backend);
    EXPECT_EQ(report.machine, c_report.machine);
    EXPECT_EQ(report.ran_on, c_report.ran_on);
    EXPECT_EQ(report.note, c_report.note);
    EXPECT_EQ(report.on_device, c_report.on_device != 0);
    EXPECT_EQ(report.tuned, c_report.tuned != 0);
    EXPECT_EQ(report.computed_twice, c_report.computed_twice != 0);
    EXPECT_EQ(report.extra_bytes, c_report.extra_bytes);
    EXPECT_EQ(report.staged_bytes, c_report.staged_bytes);
    EXPECT_EQ(report.standard_bytes, c_report.standard_bytes);
    EXPECT_GT(c_report.seconds, 0.0);
}

/// What OptionCase::run() does, through C. `tensors` have the names of files.
void run_in_c(const OptionCase& with, const Options& options, Tensors& results)
{
    const auto given = [&](const char* name) { return with.tensors.at(name).view(); };
    const auto made = [&](const char* name) {
        const auto found = results.find(name);
        return found == results.end() ? TensorView{} : found->second.view();
    };
    const ForwardArgs args{given("q"), given("k"), given("v"), made("o"), made("lse")};
    CCall first(args, options);
    ASSERT_EQ(flashomp_forward(&first.forward, &first.options, nullptr), FLASHOMP_OK) << flashomp_last_error();
    if (with.is_forward_only()) {
        return;
    }
    const BackwardArgs back{args.q,     args.k,     args.v,     args.o,        args.lse,     given("do"),
                            made("dq"), made("dk"), made("dv"), made("dbias"), made("dsink")};
    CCall second(back, options);
    ASSERT_EQ(flashomp_backward(&second.backward, &second.options, nullptr), FLASHOMP_OK) << flashomp_last_error();
}

TEST(CApi, HasTheBitsOfCppWithEveryOption)
{
    int count = 0;
    for (const OptionCase& with : OptionCases::all(9)) {
        SCOPED_TRACE(::testing::Message() << with.option << " " << with.json);
        const Options options = on_host(with.options);
        if (with.is_float8()) { // of the cuda backend alone: what is refused is refused in the same words
            const io::HostTensor& q = with.tensors.at("q");
            HostTensor o(DType::bfloat16, q.shape());
            HostTensor lse(DType::float32, {q.shape()[0], q.shape()[2], q.shape()[1]});
            const ForwardArgs args{q.view(), with.tensors.at("k").view(), with.tensors.at("v").view(), o.view(),
                                   lse.view()};
            CCall call(args, options);
            try {
                forward(args, options);
                ADD_FAILURE() << "accepted";
            } catch (const Error& error) {
                EXPECT_EQ(flashomp_forward(&call.forward, &call.options, nullptr), FLASHOMP_BAD_ARGUMENT);
                EXPECT_STREQ(flashomp_last_error(), error.what());
            }
            continue;
        }
        const Tensors expected = with.run(options);
        Tensors results;
        for (const auto& [name, tensor] : expected) {
            results.emplace(name, HostTensor(tensor.dtype(), tensor.shape(), Fill::poison));
        }
        run_in_c(with, options, results);
        for (const auto& [name, tensor] : expected) {
            EXPECT_TRUE(have_same_bits(results.at(name), tensor)) << name;
        }
        ++count;
    }
    EXPECT_GT(count, 10);
}

TEST(CApi, HasTheBitsAndReportsOfCppWithEveryTypeAndChoice)
{
    Options reference, tiled, one_thread;
    reference.backend = Backend::reference;
    tiled.tiling.resident_rows = 32;
    tiled.tiling.stream_rows = 16;
    one_thread.threads = 1;
    one_thread.machine = Machine::host;
    one_thread.device.kind = Device::Kind::host;
    for (Options options : {Options{}, reference, tiled, one_thread}) {
        options.device.kind = Device::Kind::host;
        for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
            SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << static_cast<int>(options.backend));
            AttentionCase plain({2, 4, 2, 33, 40, 24, 16}, dtype, 1);
            AttentionCase c({2, 4, 2, 33, 40, 24, 16}, dtype, 1);
            plain.poison_outputs();
            c.poison_outputs();
            const auto [first, second] = plain.run(options);
            CCall forward_call(c.forward_args(), options);
            CCall backward_call(c.backward_args(), options);
            flashomp_report report;
            flashomp_report_init(&report, sizeof report);
            ASSERT_EQ(flashomp_forward(&forward_call.forward, &forward_call.options, &report), FLASHOMP_OK)
                << flashomp_last_error();
            expect_same(first, report);
            ASSERT_EQ(flashomp_backward(&backward_call.backward, &backward_call.options, &report), FLASHOMP_OK)
                << flashomp_last_error();
            expect_same(second, report);
            for (const auto member :
                 {&AttentionCase::o, &AttentionCase::lse, &AttentionCase::dq, &AttentionCase::dk, &AttentionCase::dv}) {
                EXPECT_TRUE(have_same_bits(plain.*member, c.*member));
            }
        }
    }
}

TEST(CApi, TakesByteOffsetsNullStridesAndTransposedTensors)
{
    AttentionCase plain({2, 2, 2, 5, 7, 8, 8}, DType::float32, 1);
    plain.poison_outputs();
    const Options options = on_host({});
    forward(plain.forward_args(), options);
    const HostTensor expected = HostTensor::copy_of(plain.o.view());

    plain.poison_outputs();
    CCall call(plain.forward_args(), options);
    flashomp_tensor q = *call.forward.q;
    q.data = static_cast<std::byte*>(q.data) - 64;
    q.byte_offset = 64;
    q.strides = nullptr;
    call.forward.q = &q;
    const HostTensor heads_first = HostTensor::copy_of(plain.k.view().transposed(1, 2));
    call.forward.k = call.tensor(heads_first.view().transposed(1, 2));
    ASSERT_EQ(flashomp_forward(&call.forward, &call.options, nullptr), FLASHOMP_OK) << flashomp_last_error();
    EXPECT_TRUE(have_same_bits(plain.o, expected));

    // Page-locked memory is the host's, and so is managed memory without cuda.
    for (const int device_type : {FLASHOMP_CUDA_HOST, FLASHOMP_CUDA_MANAGED}) {
        q.device.device_type = device_type;
        std::memset(plain.o.data(), 0xff, static_cast<std::size_t>(plain.o.bytes()));
        ASSERT_EQ(flashomp_forward(&call.forward, &call.options, nullptr), FLASHOMP_OK) << flashomp_last_error();
        EXPECT_TRUE(have_same_bits(plain.o, expected));
    }
}

TEST(CApi, MergesAsCppDoes)
{
    AttentionCase a({1, 2, 2, 5, 7, 8, 8}, DType::float32, 1), b({1, 2, 2, 5, 9, 8, 8}, DType::float32, 2);
    const Options options = on_host({});
    for (AttentionCase* part : {&a, &b}) {
        part->poison_outputs();
        forward(part->forward_args(), options);
    }
    HostTensor o(DType::float32, a.o.shape()), lse(DType::float32, a.lse.shape());
    HostTensor c_o(DType::float32, a.o.shape()), c_lse(DType::float32, a.lse.shape());
    const Report expected =
        merge({a.o.view(), a.lse.view()}, {b.o.view(), b.lse.view()}, o.view(), lse.view(), options);
    CCall call(options);
    flashomp_report report;
    flashomp_report_init(&report, sizeof report);
    ASSERT_EQ(flashomp_merge(call.tensor(a.o.view()), call.tensor(a.lse.view()), call.tensor(b.o.view()),
                             call.tensor(b.lse.view()), call.tensor(c_o.view()), call.tensor(c_lse.view()),
                             &call.options, &report),
              FLASHOMP_OK)
        << flashomp_last_error();
    EXPECT_TRUE(have_same_bits(c_o, o));
    EXPECT_TRUE(have_same_bits(c_lse, lse));
    expect_same(expected, report);
}

TEST(CApi, WritesTheDropoutMaskOfCpp)
{
    HostTensor expected(DType::boolean, {2, 3, 5, 7}), mask(DType::boolean, {2, 3, 5, 7}, Fill::poison);
    dropout_mask({0.3, 11, 12}, expected.view());
    CCall call(Options{});
    ASSERT_EQ(flashomp_dropout_mask(0.3, 11, 12, call.tensor(mask.view())), FLASHOMP_OK) << flashomp_last_error();
    EXPECT_TRUE(have_same_bits(mask, expected));
}

TEST(CApi, TellsOfTheLibraryWhatCppTells)
{
    EXPECT_STREQ(flashomp_version(), FLASHOMP_VERSION);
    EXPECT_EQ(flashomp_abi_version(), FLASHOMP_ABI_VERSION);
    const flashomp_build* const build = flashomp_get_build();
    EXPECT_EQ(build->size, sizeof(flashomp_build));
    EXPECT_STREQ(build->version, build_info().version);
    EXPECT_STREQ(build->commit, build_info().commit);
    EXPECT_STREQ(build->compiler, build_info().compiler);
    EXPECT_STREQ(build->flags, build_info().flags);
    EXPECT_STREQ(build->offload, build_info().offload);
    EXPECT_STREQ(build->backends, build_info().backends);

    EXPECT_EQ(flashomp_host_isa(nullptr), host_isa());
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
        const flashomp_dtype c = c_dtype(dtype);
        EXPECT_EQ(flashomp_host_isa(&c), host_isa(dtype));
    }

    const std::vector<DeviceInfo> found = devices(Backend::openmp);
    ASSERT_EQ(flashomp_device_count(FLASHOMP_BACKEND_OPENMP), static_cast<int>(found.size()));
    EXPECT_EQ(flashomp_device_count(FLASHOMP_BACKEND_REFERENCE), 0);
    flashomp_device_info info;
    flashomp_device_info_init(&info, sizeof info);
    for (const DeviceInfo& device : found) {
        ASSERT_EQ(flashomp_get_device(FLASHOMP_BACKEND_OPENMP, device.index, &info), FLASHOMP_OK);
        EXPECT_EQ(info.name, device.name);
        EXPECT_EQ(info.capability, device.capability);
        EXPECT_EQ(info.driver, device.driver);
        EXPECT_EQ(info.multiprocessors, device.multiprocessors);
        EXPECT_EQ(info.l2_bytes, device.l2_bytes);
        EXPECT_EQ(info.shared_bytes, device.shared_bytes);
        EXPECT_EQ(info.shares_cuda_memory != 0, device.shares_cuda_memory);
    }
    EXPECT_EQ(flashomp_get_device(FLASHOMP_BACKEND_OPENMP, static_cast<int>(found.size()), &info),
              FLASHOMP_BAD_ARGUMENT);
}

} // namespace
} // namespace flashomp::testing
