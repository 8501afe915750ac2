// Calls on a CUDA stream: the same bits as calls without one, and one sentence about tensors that no stream can reach.
#include "support/attention_case.hpp"
#include "support/target.hpp"

#include "reference.hpp"
#include "space.hpp"
#include "workspace.hpp"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace flashomp::testing {
namespace {

/// Device copies of one call's tensors.
class OnDevice {
public:
    explicit OnDevice(const Space& space) : space_(space) {}
    ~OnDevice()
    {
        for (const auto& [host, copy] : copies_) {
            release(copy, space_);
        }
    }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

    TensorView place(HostTensor& tensor)
    {
        void* const copy = allocate(tensor.bytes(), space_);
        copies_.emplace_back(&tensor, copy);
        copy_in(copy, space_, tensor.data(), tensor.bytes());
        TensorView view = tensor.view();
        view.data = copy;
        view.memory = Memory::device;
        return view;
    }

    void download()
    {
        for (const auto& [host, copy] : copies_) {
            copy_out(host->data(), copy, space_, host->bytes());
        }
        wait_for(space_);
    }

private:
    Space space_;
    std::vector<std::pair<HostTensor*, void*>> copies_;
};

class Stream : public TargetTest {
protected:
    struct Calls {
        ForwardArgs forward;
        BackwardArgs backward;
    };

    /// The arguments of a case, on the device.
    static Calls place(OnDevice& device, AttentionCase& attention)
    {
        attention.poison_outputs();
        Calls calls;
        ForwardArgs& first = calls.forward;
        BackwardArgs& second = calls.backward;
        second.q = first.q = device.place(attention.q);
        second.k = first.k = device.place(attention.k);
        second.v = first.v = device.place(attention.v);
        second.o = first.o = device.place(attention.o);
        second.lse = first.lse = device.place(attention.lse);
        second.dout = device.place(attention.dout);
        second.dq = device.place(attention.dq);
        second.dk = device.place(attention.dk);
        second.dv = device.place(attention.dv);
        return calls;
    }

    Options on_default_stream() const
    {
        Options options = on_target({});
        options.stream = nullptr;
        return options;
    }

    void SetUp() override
    {
        if (!has_cuda()) {
            GTEST_SKIP() << "this build has no CUDA backend";
        }
        use({"cuda_device", Machine::automatic, true, "", Backend::cuda});
    }
};

TEST_F(Stream, ResultsAreThoseOfACallWithout)
{
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        AttentionCase waited({2, 4, 2, 100, 130, 64, 64}, dtype, 401);
        AttentionCase queued({2, 4, 2, 100, 130, 64, 64}, dtype, 401);
        static_cast<void>(waited.run(on_target({})));
        OnDevice device({Space::Kind::cuda, 0});
        const Calls calls = place(device, queued);
        for (int repeat = 0; repeat < 3; ++repeat) { // the later ones with the first one's scratch memory
            expect_ran_on_target(forward(calls.forward, on_default_stream()), dtype);
            expect_ran_on_target(backward(calls.backward, on_default_stream()), dtype);
        }
        device.download();
        expect_same_bits(waited.take_results(), queued.take_results());
    }
}

TEST_F(Stream, HiddenKeysMayHoldAnything)
{
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        AttentionCase attention({2, 2, 2, 100, 130, 64, 64}, dtype, 404);
        for (HostTensor* const tensor : {&attention.k, &attention.v}) {
            // Keys that no query sees, of the first sequence.
            for (std::int64_t x = 100 * 2 * 64; x < 130 * 2 * 64; ++x) {
                reference::write_element(tensor->view(), x, std::numeric_limits<double>::quiet_NaN());
            }
        }
        OnDevice device({Space::Kind::cuda, 0});
        const Calls calls = place(device, attention);
        Options options = on_default_stream();
        options.causal = Causal::top_left;
        for (int repeat = 0; repeat < 2; ++repeat) {
            forward(calls.forward, options);
            backward(calls.backward, options);
        }
        device.download();
        for (const HostTensor* const result :
             {&attention.o, &attention.lse, &attention.dq, &attention.dk, &attention.dv}) {
            for (const double x : doubles(*result)) {
                ASSERT_TRUE(std::isfinite(x));
            }
        }
        EXPECT_EQ(doubles(attention.dk)[100 * 2 * 64], 0.0);
    }
}

TEST_F(Stream, AllocatesNothingOnceWarm)
{
    const Space space{Space::Kind::cuda, 0};
    for (const std::int64_t head_dim : {64, 192}) { // backward in one kernel, and in two
        AttentionCase attention({2, 4, 2, 300, 330, head_dim, head_dim}, DType::bfloat16, 403);
        OnDevice device(space);
        const Calls calls = place(device, attention);
        const auto call = [&] {
            forward(calls.forward, on_default_stream());
            backward(calls.backward, on_default_stream());
        };
        call();
        const WorkspaceWatch watch(space);
        for (int repeat = 0; repeat < 3; ++repeat) {
            call();
        }
        EXPECT_EQ(watch.allocations(), 0);
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

} // namespace
} // namespace flashomp::testing
