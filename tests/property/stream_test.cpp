// Calls on a CUDA stream: the same bits as calls without one, and one sentence about tensors that no stream can reach.
#include "support/attention_case.hpp"
#include "support/target.hpp"

#include "space.hpp"

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
        queued.poison_outputs();
        OnDevice device({Space::Kind::cuda, 0});
        BackwardArgs args;
        args.q = device.place(queued.q);
        args.k = device.place(queued.k);
        args.v = device.place(queued.v);
        args.dout = device.place(queued.dout);
        args.dq = device.place(queued.dq);
        args.dk = device.place(queued.dk);
        args.dv = device.place(queued.dv);
        const TensorView o = device.place(queued.o);
        const TensorView lse = device.place(queued.lse);
        args.o = o;
        args.lse = lse;
        Options options = on_target({});
        options.stream = nullptr;                    // CUDA's default stream
        for (int repeat = 0; repeat < 3; ++repeat) { // the later ones with the first one's scratch memory
            expect_ran_on_target(forward({args.q, args.k, args.v, o, lse}, options), dtype);
            expect_ran_on_target(backward(args, options), dtype);
        }
        device.download();
        expect_same_bits(waited.take_results(), queued.take_results());
    }
}

TEST_F(Stream, HostTensorsAreRefused)
{
    AttentionCase attention({1, 1, 1, 20, 30, 16, 16}, DType::float32, 402);
    attention.poison_outputs();
    Options options = on_target({});
    options.stream = nullptr;
    try {
        forward(attention.forward_args(), options);
        FAIL() << "host tensors were taken";
    } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()),
                  "q is in host memory, but a stream was given; allowed with one is device memory.");
    }
}

} // namespace
} // namespace flashomp::testing
