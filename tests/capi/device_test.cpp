// The C interface on GPUs: tensors, workspaces and streams of a device, with the bits of the C++ calls.
#include "c_call.hpp"

#include "support/attention_case.hpp"
#include "support/on_device.hpp"
#include "support/target.hpp"

#include "space.hpp"

#include <memory>
#include <optional>

namespace flashomp::testing {
namespace {

/// Lends memory of a device, and counts.
struct DeviceLender {
    Space space;
    int lent = 0, returned = 0;

    static void* allocate(void* context, std::int64_t bytes, std::int64_t /*alignment*/, std::int32_t device_type,
                          std::int32_t device_id, void* /*stream*/)
    {
        auto& self = *static_cast<DeviceLender*>(context);
        EXPECT_EQ(device_type, FLASHOMP_CUDA);
        EXPECT_EQ(device_id, 0);
        ++self.lent;
        return flashomp::allocate(bytes, self.space);
    }
    static void release(void* context, void* memory, std::int64_t /*bytes*/, std::int32_t /*device_type*/,
                        std::int32_t /*device_id*/, void* /*stream*/)
    {
        auto& self = *static_cast<DeviceLender*>(context);
        ++self.returned;
        wait_for(self.space); // a call on a stream gives back memory that its kernels still use
        flashomp::release(memory, self.space);
    }
};

class CApiOnDevice : public EveryTargetTest {
protected:
    [[nodiscard]] Space space() const
    {
        return {GetParam().backend == Backend::cuda ? Space::Kind::cuda : Space::Kind::openmp, 0};
    }

    /// Calls of both languages on device memory; `run` makes the C calls.
    template <class Run>
    void expect_bits_of_cpp(std::optional<void*> stream, Run run)
    {
        for (const DType dtype : {DType::float32, DType::bfloat16}) {
            AttentionCase cpp({2, 4, 2, 100, 130, 64, 48}, dtype, 31), c({2, 4, 2, 100, 130, 64, 48}, dtype, 31);
            Options options = on_target({});
            options.causal = Causal::bottom_right;
            options.dropout = {0.2, 3, 4};
            static_cast<void>(cpp.run(options));
            c.poison_outputs();
            OnDevice device(space());
            DeviceCalls calls(device, c);
            wait_for(space());
            CCall first(calls.forward, options), second(calls.backward, options);
            for (CCall* const call : {&first, &second}) {
                call->options.has_stream = stream ? 1 : 0;
                call->options.stream = stream.value_or(nullptr);
            }
            run(first, second);
            wait_for(space());
            device.download();
            expect_same_bits(cpp.take_results(), c.take_results());
        }
    }
};

TEST_P(CApiOnDevice, CallsTakeDeviceMemoryAndLentWorkspaces)
{
    for (const std::optional<void*> stream : {std::optional<void*>(), std::optional<void*>(nullptr)}) {
        DeviceLender lender{space()};
        flashomp_allocator allocator;
        flashomp_allocator_init(&allocator, sizeof allocator);
        allocator.context = &lender;
        allocator.allocate = DeviceLender::allocate;
        allocator.release = DeviceLender::release;
        expect_bits_of_cpp(stream, [&](CCall& first, CCall& second) {
            first.options.allocator = second.options.allocator = &allocator;
            flashomp_report report;
            flashomp_report_init(&report, sizeof report);
            ASSERT_EQ(flashomp_forward(&first.forward, &first.options, &report), FLASHOMP_OK) << flashomp_last_error();
            EXPECT_EQ(report.on_device, 1);
            EXPECT_EQ(report.staged_bytes, 0);
            ASSERT_EQ(flashomp_backward(&second.backward, &second.options, &report), FLASHOMP_OK)
                << flashomp_last_error();
            EXPECT_EQ(report.on_device, 1);
        });
        EXPECT_GT(lender.lent, 0);
        EXPECT_EQ(lender.lent, lender.returned);
    }
}

TEST_P(CApiOnDevice, PreparedCallsRunInDeviceMemory)
{
    struct FreePrepared {
        void operator()(flashomp_prepared* prepared) const { flashomp_prepared_free(prepared); }
    };
    using Handle = std::unique_ptr<flashomp_prepared, FreePrepared>;
    for (const std::optional<void*> stream : {std::optional<void*>(), std::optional<void*>(nullptr)}) {
        expect_bits_of_cpp(stream, [&](CCall& first, CCall& second) {
            flashomp_prepared* raw = nullptr;
            ASSERT_EQ(flashomp_prepare_forward(&first.forward, &first.options, &raw), FLASHOMP_OK)
                << flashomp_last_error();
            const Handle there(raw);
            ASSERT_EQ(flashomp_prepare_backward(&second.backward, &second.options, &raw), FLASHOMP_OK)
                << flashomp_last_error();
            const Handle back(raw);
            EXPECT_EQ(flashomp_workspace_device_type(raw), FLASHOMP_CUDA);
            const std::int64_t bytes =
                std::max(flashomp_workspace_bytes(there.get()), flashomp_workspace_bytes(back.get()));
            void* const workspace = allocate(bytes, space());
            for (int repeat = 0; repeat < 3; ++repeat) {
                ASSERT_EQ(flashomp_run_forward(there.get(), &first.forward, &first.options, workspace, bytes, nullptr),
                          FLASHOMP_OK)
                    << flashomp_last_error();
                ASSERT_EQ(
                    flashomp_run_backward(back.get(), &second.backward, &second.options, workspace, bytes, nullptr),
                    FLASHOMP_OK)
                    << flashomp_last_error();
            }
            wait_for(space());
            release(workspace, space());
        });
    }
}

std::vector<Target> gpus()
{
    std::vector<Target> all{{"device", Machine::automatic, true, ""}};
    if (has_cuda()) {
        all.push_back({"cuda_device", Machine::automatic, true, "", Backend::cuda});
    }
    return all;
}

INSTANTIATE_TEST_SUITE_P(Gpus, CApiOnDevice, ::testing::ValuesIn(gpus()), target_name);

} // namespace
} // namespace flashomp::testing
