// Calls that are captured into a CUDA graph: the graph may run while other calls use the stream's scratch memory.
#include "support/attention_case.hpp"
#include "support/on_device.hpp"
#include "support/target.hpp"

#include "flashomp/prepared.hpp"

#include "cuda/runtime.hpp"
#include "space.hpp"

#include <algorithm>
#include <cstddef>
#include <dlfcn.h>
#include <span>
#include <vector>

namespace flashomp::testing {
namespace {

/// A stream and a graph of the CUDA driver, which is not linked.
class Graph {
public:
    Graph() { expect(call("cuStreamCreate", &stream_, 1U /* beside the default stream */)); }
    ~Graph()
    {
        if (runnable_ != nullptr) {
            call("cuGraphExecDestroy", runnable_);
        }
        call("cuStreamDestroy_v2", stream_);
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;

    [[nodiscard]] void* stream() const { return stream_; }

    /// Records what f() sends to the stream.
    template <class F>
    void capture(F f)
    {
        expect(call("cuStreamBeginCapture_v2", stream_, 0 /* no other thread's calls either */));
        f();
        void* graph = nullptr;
        expect(call("cuStreamEndCapture", stream_, &graph));
        expect(call("cuGraphInstantiateWithFlags", &runnable_, graph, 0ULL));
        expect(call("cuGraphDestroy", graph));
    }

    void run()
    {
        expect(call("cuGraphLaunch", runnable_, stream_));
        expect(call("cuStreamSynchronize", stream_));
    }

private:
    template <class... Arguments>
    static int call(const char* name, Arguments... arguments)
    {
        static void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        return reinterpret_cast<int (*)(Arguments...)>(dlsym(driver, name))(arguments...);
    }

    static void expect(int status) { ASSERT_EQ(status, 0) << "of the CUDA driver"; }

    void* stream_ = nullptr;
    void* runnable_ = nullptr;
};

class CapturedCalls : public CudaTest {};

TEST_F(CapturedCalls, GiveTheSameBitsWhenTheyRun)
{
    const Space space{Space::Kind::cuda, 0};
    const std::vector<Shape> all{{1, 4, 2, 300, 330, 64, 64},
                                 {1, 4, 2, 300, 330, 192, 192},
                                 {1, 4, 2, 3, 4100, 128, 128}}; // parts of the keys, merged by the pass
    for (const Shape& shape : all) {
        SCOPED_TRACE(shape.seqlen_q);
        AttentionCase waited(shape, DType::bfloat16, 420);
        AttentionCase captured(shape, DType::bfloat16, 420);
        static_cast<void>(waited.run(on_target({})));
        captured.poison_outputs();
        OnDevice device(space);
        const DeviceCalls calls(device, captured);
        const cuda::CurrentDevice current(0);
        Graph graph;
        Options options = on_target({});
        options.stream = graph.stream();
        graph.capture([&] {
            forward(calls.forward, options);
            backward(calls.backward, options);
        });
        // Another problem takes the stream's scratch memory, and is given other results.
        AttentionCase other(shape, DType::bfloat16, 421);
        other.poison_outputs();
        OnDevice elsewhere(space);
        const DeviceCalls between(elsewhere, other);
        for (int repeat = 0; repeat < 3; ++repeat) {
            forward(between.forward, options);
            backward(between.backward, options);
            graph.run();
        }
        device.download();
        expect_same_bits(waited.take_results(), captured.take_results());
    }
}

TEST_F(CapturedCalls, PackedSequencesAreRefused)
{
    AttentionCase attention({1, 2, 1, 1, 1, 64, 64}, Lengths{{30, 45}, {50, 70}}, DType::bfloat16, 422);
    attention.poison_outputs();
    OnDevice device({Space::Kind::cuda, 0});
    const DeviceCalls calls(device, attention);
    const cuda::CurrentDevice current(0);
    Graph graph;
    Options options = on_target(attention.options);
    options.stream = graph.stream();
    std::string message;
    graph.capture([&] {
        try {
            forward(calls.forward, options);
        } catch (const Error& error) {
            message = error.what();
        }
    });
    EXPECT_EQ(message, "stream is being captured into a CUDA graph, and the tensors are packed (cu_seqlens_q): allowed "
                       "in a graph are tensors that are not packed, and runs of a call that was prepared before.");
}

TEST_F(CapturedCalls, OfPackedSequencesAreRunsOfAPreparedCall)
{
    const Space space{Space::Kind::cuda, 0};
    const std::vector<Lengths> all{{{30, 0, 145}, {50, 8, 70}}, {{3, 0, 1}, {2000, 8, 700}}}; // few: parts of the keys
    for (const Lengths& lengths : all) {
        SCOPED_TRACE(lengths.q.front());
        AttentionCase waited({0, 4, 2, 0, 0, 64, 64}, lengths, DType::bfloat16, 423);
        AttentionCase captured({0, 4, 2, 0, 0, 64, 64}, lengths, DType::bfloat16, 423);
        static_cast<void>(waited.run(on_target(waited.options)));
        captured.poison_outputs();
        OnDevice device(space);
        const DeviceCalls calls(device, captured);
        const cuda::CurrentDevice current(0);
        Options options = on_target(captured.options);
        options.stream = nullptr; // prepared on one stream, run on another
        PreparedForward forward_call = prepare(calls.forward, options);
        PreparedBackward backward_call = prepare(calls.backward, options);
        const auto bytes = std::max(forward_call.workspace_bytes(), backward_call.workspace_bytes());
        void* const memory = allocate(std::max<std::int64_t>(bytes, 1), space);
        const std::span workspace(static_cast<std::byte*>(memory), static_cast<std::size_t>(bytes));
        {
            Graph graph;
            graph.capture([&] {
                forward_call.run(calls.forward, workspace, graph.stream());
                backward_call.run(calls.backward, workspace, graph.stream());
            });
            for (int repeat = 0; repeat < 3; ++repeat) {
                graph.run();
            }
        }
        release(memory, space);
        device.download();
        expect_same_bits(waited.take_results(), captured.take_results());
    }
}

} // namespace
} // namespace flashomp::testing
