// Calls on a CUDA stream: the same bits as calls without one, and one sentence about tensors that no stream can reach.
#include "support/attention_case.hpp"
#include "support/on_device.hpp"
#include "support/target.hpp"

#include "cuda/runtime.hpp"
#include "reference.hpp"
#include "space.hpp"
#include "workspace.hpp"

#include "flashomp/device.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

namespace flashomp::testing {
namespace {

class Stream : public CudaTest {
protected:
    static void expect_hidden(AttentionCase attention, std::int64_t first_key, std::int64_t hidden_keys);

    Options on_default_stream() const
    {
        Options options = on_target({});
        options.stream = nullptr;
        return options;
    }
};

TEST_F(Stream, ResultsAreThoseOfACallWithout)
{
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        AttentionCase waited({2, 4, 2, 100, 130, 64, 64}, dtype, 401);
        AttentionCase queued({2, 4, 2, 100, 130, 64, 64}, dtype, 401);
        static_cast<void>(waited.run(on_target({})));
        OnDevice device({Space::Kind::cuda, 0});
        queued.poison_outputs();
        const DeviceCalls calls(device, queued);
        for (int repeat = 0; repeat < 3; ++repeat) { // the later ones with the first one's scratch memory
            expect_ran_on_target(forward(calls.forward, on_default_stream()), dtype);
            expect_ran_on_target(backward(calls.backward, on_default_stream()), dtype);
        }
        device.download();
        expect_same_bits(waited.take_results(), queued.take_results());
    }
}

/// Runs a case whose K and V hold NaN in `hidden_keys` keys from `first_key` on, which nobody sees.
void Stream::expect_hidden(AttentionCase attention, std::int64_t first_key, std::int64_t hidden_keys)
{
    const std::int64_t width = attention.shape().heads_kv * attention.shape().head_dim;
    for (HostTensor* const tensor : {&attention.k, &attention.v}) {
        for (std::int64_t x = first_key * width; x < (first_key + hidden_keys) * width; ++x) {
            reference::write_element(tensor->view(), x, std::numeric_limits<double>::quiet_NaN());
        }
    }
    OnDevice device({Space::Kind::cuda, 0});
    attention.poison_outputs();
    const DeviceCalls calls(device, attention);
    Options options = attention.options;
    options.backend = Backend::cuda;
    options.device.kind = Device::Kind::gpu;
    options.stream = nullptr;
    for (int repeat = 0; repeat < 2; ++repeat) {
        forward(calls.forward, options);
        backward(calls.backward, options);
    }
    device.download();
    const std::vector<Comparison> results = attention.compare(attention.expected());
    expect_passed(results);
    EXPECT_EQ(doubles(attention.dk)[static_cast<std::size_t>(first_key * width)], 0.0);
}

TEST_F(Stream, HiddenKeysMayHoldAnything)
{
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        for (const std::int64_t head_dim : {64, 128, 192}) {
            AttentionCase attention({2, 2, 2, 100, 130, head_dim, head_dim}, dtype, 404);
            attention.options.causal = Causal::top_left;
            expect_hidden(std::move(attention), 100, 30); // of the first sequence
        }
    }
}

TEST_F(Stream, HiddenKeysOfPackedSequencesMayHoldAnything)
{
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        // The second sequence has no queries.
        expect_hidden(AttentionCase({1, 2, 1, 1, 1, 64, 64}, Lengths{{30, 0, 45}, {50, 9, 70}}, dtype, 405), 50, 9);
    }
}

TEST_F(Stream, HiddenKeysOfADecodingStepMayHoldAnything)
{
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        AttentionCase attention({1, 8, 2, 1, 5000, 64, 64}, dtype, 406);
        attention.options.window = {-1, 0};
        attention.options.causal = Causal::top_left; // the query sees the first key only
        expect_hidden(std::move(attention), 1, 4999);
    }
}

/// cudaStreamPerThread is one handle for the streams of all threads.
TEST_F(Stream, ThreadsMayHaveStreamsOfTheSameHandle)
{
    constexpr int threads = 4;
    std::vector<Results> waited(threads), queued(threads);
    std::vector<std::thread> running;
    running.reserve(threads);
    for (int i = 0; i < threads; ++i) {
        running.emplace_back([&, i] {
            const auto make = [&] {
                return AttentionCase({1, 4, 2, 300, 400, 128, 128}, DType::bfloat16,
                                     static_cast<std::uint64_t>(410 + i));
            };
            AttentionCase first = make();
            static_cast<void>(first.run(on_target({})));
            waited.at(static_cast<std::size_t>(i)) = first.take_results();
            AttentionCase second = make();
            OnDevice device({Space::Kind::cuda, 0});
            second.poison_outputs();
            const DeviceCalls calls(device, second);
            Options options = on_target({});
            options.stream = reinterpret_cast<void*>(std::uintptr_t{2}); // cudaStreamPerThread
            for (int repeat = 0; repeat < 20; ++repeat) {
                forward(calls.forward, options);
                backward(calls.backward, options);
            }
            wait_for({Space::Kind::cuda, 0, *options.stream});
            device.download();
            queued.at(static_cast<std::size_t>(i)) = second.take_results();
        });
    }
    for (std::thread& thread : running) {
        thread.join();
    }
    for (std::size_t i = 0; i < threads; ++i) {
        expect_same_bits(waited[i], queued[i]);
    }
}

TEST_F(Stream, AllocatesNothingOnceWarm)
{
    const Space space{Space::Kind::cuda, 0};
    for (const std::int64_t head_dim : {64, 192}) { // backward in one kernel, and in two
        AttentionCase attention({2, 4, 2, 300, 330, head_dim, head_dim}, DType::bfloat16, 403);
        OnDevice device(space);
        attention.poison_outputs();
        const DeviceCalls calls(device, attention);
        const auto call = [&] {
            forward(calls.forward, on_default_stream());
            backward(calls.backward, on_default_stream());
        };
        call();
        const std::int64_t reserved = cuda::reserved_bytes(0);
        const WorkspaceWatch watch(space);
        for (int repeat = 0; repeat < 3; ++repeat) {
            call();
        }
        EXPECT_EQ(watch.allocations(), 0);
        EXPECT_EQ(cuda::reserved_bytes(0), reserved);
        EXPECT_GT(watch.peak_bytes(), 0); // what there was to watch
        device.download();
    }
}

TEST_F(Stream, HostTensorsAreRefused)
{
    AttentionCase attention({1, 1, 1, 20, 30, 16, 16}, DType::float32, 402);
    attention.poison_outputs();
    try {
        forward(attention.forward_args(), on_default_stream());
        FAIL() << "host tensors were taken";
    } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()),
                  "q is in host memory, but a stream was given; allowed with one is device memory.");
    }
}

/// OpenMP works in the context that CUDA's run time works in, so that the backends take each other's memory and
/// streams.
class StreamOfOpenmp : public CudaTest {
protected:
    void SetUp() override
    {
        CudaTest::SetUp();
        if (!IsSkipped()) {
            use({"device", Machine::automatic, true, ""});
        }
    }
};

TEST_F(StreamOfOpenmp, TakesCudasMemory)
{
    for (const DeviceInfo& device : devices(Backend::openmp)) {
        EXPECT_TRUE(device.shares_cuda_memory) << device.name;
    }
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        AttentionCase own({2, 4, 2, 100, 130, 64, 64}, dtype, 420);
        AttentionCase cudas({2, 4, 2, 100, 130, 64, 64}, dtype, 420);
        static_cast<void>(own.run(on_target({})));
        const Space space{Space::Kind::cuda, 0};
        OnDevice device(space);
        cudas.poison_outputs();
        const DeviceCalls calls(device, cudas);
        wait_for(space);
        for (const std::uintptr_t stream : {0U, 1U, 2U}) { // CUDA's default streams: as set, legacy, of the thread
            Options options = on_target({});
            options.stream = reinterpret_cast<void*>(stream); // NOLINT(performance-no-int-to-ptr)
            expect_ran_on_target(forward(calls.forward, options), dtype);
            expect_ran_on_target(backward(calls.backward, options), dtype);
        }
        device.download();
        expect_same_bits(own.take_results(), cudas.take_results());
    }
}

TEST_F(StreamOfOpenmp, BackendsTakeTurns)
{
    AttentionCase attention({2, 4, 2, 100, 130, 64, 64}, DType::bfloat16, 421);
    for (int repeat = 0; repeat < 5; ++repeat) {
        for (const Backend backend : {Backend::openmp, Backend::cuda}) {
            Options options = attention.options;
            options.backend = backend;
            options.device.kind = Device::Kind::gpu;
            const auto [there, back] = attention.run(options);
            EXPECT_TRUE(there.on_device && back.on_device);
            expect_passed(attention.compare(attention.expected()));
        }
    }
}

} // namespace
} // namespace flashomp::testing
