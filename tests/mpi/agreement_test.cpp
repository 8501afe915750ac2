// What one rank does otherwise is told on all ranks, in one sentence, and none of them waits for ever.
#include "agreement.hpp"
#include "engine.hpp"
#include "fake_device.hpp"
#include "on_ranks.hpp"

#include "flashomp/device.hpp"

#include <array>
#include <string>

namespace flashomp::testing {
namespace {

constexpr Shape shape{2, 4, 2, 32, 32, 8, 8};

/// The sentence of the Error that f throws on this rank.
template <class F>
std::string refusal(F f)
{
    try {
        f();
    } catch (const Error& error) {
        return error.what();
    } catch (const std::exception& other) {
        ADD_FAILURE() << "not an Error: " << other.what();
        return other.what();
    }
    ADD_FAILURE() << "no Error";
    return {};
}

/// All ranks have said the same.
void expect_same_everywhere(const std::string& sentence)
{
    std::array<char, 800> first{};
    sentence.copy(first.data(), first.size() - 1);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibcast(first.data(), static_cast<int>(first.size()), MPI_CHAR, 0, MPI_COMM_WORLD, &request);
    wait_for(request);
    EXPECT_EQ(sentence.substr(0, first.size() - 1), first.data());
}

/// One thing that the last rank does otherwise, and words of what is said of it.
struct Otherwise {
    const char* name;
    std::function<void(OnRanks&, BackwardArgs&, mpi::Sharding&)> change;
    const char* words;
};

const std::vector<Otherwise>& others()
{
    static const std::vector<Otherwise> all{
        {"causal", [](OnRanks& r, BackwardArgs&, mpi::Sharding&) { r.options.causal = Causal::top_left; },
         "causal is top_left on rank"},
        {"scale", [](OnRanks& r, BackwardArgs&, mpi::Sharding&) { r.options.scale = 0.5; }, "scale is given on rank"},
        {"window", [](OnRanks& r, BackwardArgs&, mpi::Sharding&) { r.options.window.left = 3; },
         "window left is 3 on rank"},
        {"softcap", [](OnRanks& r, BackwardArgs&, mpi::Sharding&) { r.options.softcap = 2.5; },
         "softcap is 2.5 on rank"},
        {"dropout", [](OnRanks& r, BackwardArgs&, mpi::Sharding&) { r.options.dropout.seed = 7; },
         "the dropout's seed is 7 on rank"},
        {"first head", [](OnRanks& r, BackwardArgs&, mpi::Sharding&) { r.options.first_head = 3; },
         "first_head is 3 on rank"},
        {"dtype", [](OnRanks&, BackwardArgs& a, mpi::Sharding&) { a.k.dtype = DType::bfloat16; },
         "dtype of k is bfloat16 on rank"},
        {"axes", [](OnRanks&, BackwardArgs& a, mpi::Sharding&) { a.q.rank = 3; },
         "the number of axes of q is 3 on rank"},
        {"heads", [](OnRanks&, BackwardArgs& a, mpi::Sharding&) { a.q.shape[2] = 2; }, "extent 2 of q is 2 on rank"},
        {"no view", [](OnRanks&, BackwardArgs& a, mpi::Sharding&) { a.v = {}; },
         "the number of axes of v is 0 on rank"},
        {"sink", [](OnRanks& r, BackwardArgs&, mpi::Sharding&) { r.options.sink = {}; }, "sink is not given on rank"},
        {"dsink", [](OnRanks&, BackwardArgs& a, mpi::Sharding&) { a.dsink = {}; }, "dsink is not given on rank"},
        {"layout", [](OnRanks&, BackwardArgs&, mpi::Sharding& s) { s.layout = mpi::Layout::zigzag; },
         "layout is zigzag on rank"},
        {"scheme", [](OnRanks&, BackwardArgs&, mpi::Sharding& s) { s.scheme = mpi::Scheme::all_gather; },
         "scheme is all_gather on rank"},
        {"no data", [](OnRanks&, BackwardArgs& a, mpi::Sharding&) { a.dout.data = nullptr; }, "dout has no data"},
        {"rows of v", [](OnRanks&, BackwardArgs& a, mpi::Sharding&) { --a.v.shape[1]; }, "v has shape"},
        {"rows of lse", [](OnRanks&, BackwardArgs& a, mpi::Sharding&) { --a.lse.shape[2]; }, "lse is float32"},
        {"overlap", [](OnRanks&, BackwardArgs& a, mpi::Sharding&) { a.dk.data = const_cast<void*>(a.k.data); },
         "dk overlaps k"},
        {"strides", [](OnRanks&, BackwardArgs& a, mpi::Sharding&) { a.q.strides[3] = 2; }, "q"},
        {"padding", [](OnRanks& r, BackwardArgs&, mpi::Sharding&) { --r.options.key_padding_mask.shape[1]; },
         "key_padding_mask is boolean [2, 31]"},
        {"device memory", [](OnRanks&, BackwardArgs& a, mpi::Sharding&) { a.q.memory = Memory::device; },
         "the memory of q is"},
        {"memory of k", [](OnRanks&, BackwardArgs& a, mpi::Sharding&) { a.k.memory = Memory::device; },
         "all tensors must be in one memory"},
        {"machine", [](OnRanks& r, BackwardArgs&, mpi::Sharding&) { r.options.threads = -1; }, "threads was -1"},
        {"stream", [](OnRanks& r, BackwardArgs&, mpi::Sharding&) { r.options.stream = nullptr; }, "stream"},
        {"positions", [](OnRanks& r, BackwardArgs&, mpi::Sharding&) { r.options.positions_q.whole = 5; },
         "positions_q was given"},
        {"values",
         [](OnRanks& r, BackwardArgs&, mpi::Sharding&) {
             static_cast<float*>(const_cast<void*>(r.options.sink.data))[1] = 3.0F;
         },
         "sink has other values on rank"},
        {"values of the padding",
         [](OnRanks& r, BackwardArgs&, mpi::Sharding&) {
             auto* const first = static_cast<std::uint8_t*>(const_cast<void*>(r.options.key_padding_mask.data));
             first[0] = first[0] == 0 ? 1 : 0;
         },
         "key_padding_mask has other values on rank"},
        {"no such scheme", [](OnRanks&, BackwardArgs&, mpi::Sharding& s) { s.scheme = static_cast<mpi::Scheme>(9); },
         "scheme is 9 on rank"},
        {"no such layout", [](OnRanks&, BackwardArgs&, mpi::Sharding& s) { s.layout = static_cast<mpi::Layout>(9); },
         "layout is 9 on rank"},
    };
    return all;
}

TEST(Disagreement, IsToldOnAllRanks)
{
    if (ranks() == 1) {
        return;
    }
    for (const Otherwise& other : others()) {
        if (test_device() == TestDevice::gpu && std::string(other.name) == "stream") {
            continue; // CUDA's default stream is as good as none
        }
        SCOPED_TRACE(other.name);
        AttentionCase attention(shape, DType::float32, 8);
        attention.add_sink();
        attention.add_key_padding();
        mpi::Sharding sharding;
        sharding.scheme = mpi::Scheme::ring;
        OnRanks on_ranks(attention, sharding);
        BackwardArgs args = on_ranks.backward_args();
        HostTensor kept = HostTensor::copy_of(std::as_const(on_ranks.dq).view());
        if (rank() == ranks() - 1) {
            other.change(on_ranks, args, sharding);
        }
        const std::string said = refusal([&] { sharded_backward(args, on_ranks.options, sharding); });
        expect_same_everywhere(said);
        EXPECT_NE(said.find(other.words), std::string::npos) << said;
        EXPECT_NE(said.find("rank " + std::to_string(ranks() - 1)), std::string::npos) << said;
        EXPECT_EQ(said.back(), '.') << said;
        EXPECT_TRUE(same_bits(kept, on_ranks.dq)) << "nothing is written";
    }
}

/// One row is one for all ranks, or for none.
TEST(Disagreement, OfOneRowOfBias)
{
    if (ranks() == 1) {
        return;
    }
    for (const bool is_mask : {false, true}) {
        SCOPED_TRACE(is_mask ? "mask" : "bias");
        AttentionCase attention(shape, DType::float32, 13);
        attention.add_bias();
        attention.mask = HostTensor(DType::boolean, {2, 4, 32, 32});
        attention.options.mask = std::as_const(attention.mask).view();
        OnRanks on_ranks(attention, {});
        BackwardArgs args = on_ranks.backward_args();
        if (rank() == ranks() - 1) {
            if (is_mask) {
                on_ranks.options.mask.shape[2] = 1;
            } else {
                on_ranks.options.bias.shape[2] = args.dbias.shape[2] = 1;
            }
        }
        const std::string said = refusal([&] { sharded_backward(args, on_ranks.options, {}); });
        expect_same_everywhere(said);
        EXPECT_NE(said.find(is_mask ? "mask has 1 rows on rank" : "bias has 1 rows on rank"), std::string::npos)
            << said;
    }
}

TEST(Disagreement, OfThePass)
{
    if (ranks() == 1) {
        return;
    }
    AttentionCase attention(shape, DType::float32, 9);
    OnRanks on_ranks(attention, {});
    const std::string said = refusal([&] {
        if (rank() == 0) {
            sharded_forward(on_ranks.forward_args(), on_ranks.options);
        } else {
            sharded_backward(on_ranks.backward_args(), on_ranks.options);
        }
    });
    expect_same_everywhere(said);
    EXPECT_NE(said.find("pass is backward on rank 1 but forward on rank 0"), std::string::npos) << said;
}

/// What all ranks ask for, and cannot have.
TEST(Disagreement, WithTheLibrary)
{
    using mpi::Layout;
    using mpi::Scheme;
    if (ranks() == 1) {
        return;
    }
    const auto said = [](const mpi::Sharding& sharding, const std::function<void(AttentionCase&, OnRanks&)>& change,
                         std::vector<std::int64_t> lengths = {}) {
        AttentionCase attention(shape, DType::float32, 10);
        OnRanks on_ranks(attention, sharding, lengths, lengths);
        change(attention, on_ranks);
        const std::string sentence =
            refusal([&] { sharded_forward(on_ranks.forward_args(), on_ranks.options, sharding); });
        expect_same_everywhere(sentence);
        return sentence;
    };
    const auto nothing = [](AttentionCase&, OnRanks&) {};
    EXPECT_NE(said({MPI_COMM_WORLD, Layout::contiguous, Scheme::ring, 2}, nothing).find("heads_ranks was 2"),
              std::string::npos);
    EXPECT_NE(said({MPI_COMM_WORLD, Layout::contiguous, Scheme::grid, ranks() + 1}, nothing).find("heads_ranks was"),
              std::string::npos);
    if (ranks() > shape.heads_q) {
        EXPECT_NE(said({MPI_COMM_WORLD, Layout::contiguous, Scheme::ulysses, 0}, nothing).find("share out 4 heads"),
                  std::string::npos);
    }
    // Zigzag shards are those of positions().
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(ranks()));
    lengths.front() = 32;
    const std::string sentence = said(
        {MPI_COMM_WORLD, Layout::contiguous, Scheme::ring, 0},
        [](AttentionCase&, OnRanks& r) {
            r.options.cache_seqlens = ConstTensorView::contiguous(nullptr, DType::int32, {2});
        },
        lengths);
    EXPECT_NE(sentence.find("a key/value cache was given"), std::string::npos) << sentence;
    AttentionCase attention(shape, DType::float32, 11);
    OnRanks on_ranks(attention, {MPI_COMM_WORLD, Layout::contiguous, Scheme::ring, 0}, lengths, lengths);
    const std::string zigzag = refusal([&] {
        sharded_forward(on_ranks.forward_args(), on_ranks.options, {MPI_COMM_WORLD, Layout::zigzag, Scheme::ring, 0});
    });
    expect_same_everywhere(zigzag);
    EXPECT_NE(zigzag.find("zigzag shards of 32 rows"), std::string::npos) << zigzag;
}

/// A pass whose parts fail on the last rank.
class Failing : public mpi::Engine {
public:
    using Engine::Engine;

private:
    void begin_step(int /*step*/) override {}
    void compute(const mpi::Piece& /*piece*/, const mpi::HeadRun& /*heads*/, int /*step*/) override
    {
        if (rank() == ranks() - 1) {
            throw RunFailure("a part failed.");
        }
    }
    void end_step(int /*step*/) override {}
    void finish() override {}
};

TEST(Failure, InTheMiddleIsToldOnAllRanks)
{
    if (ranks() == 1) {
        return;
    }
    AttentionCase attention(shape, DType::float32, 12);
    OnRanks on_ranks(attention, {});
    for (const mpi::Scheme scheme : {mpi::Scheme::ring, mpi::Scheme::all_gather}) {
        mpi::Messages messages(MPI_COMM_WORLD);
        const ForwardArgs args = on_ranks.forward_args();
        const mpi::Call call(args, on_ranks.options);
        const mpi::Whole whole = agree(messages, call, {});
        const mpi::Geometry geometry(call, whole, mpi::Layout::contiguous, rank(), 1);
        Failing engine(messages, call, whole, geometry, {scheme, 1, ""});
        std::string said;
        try {
            engine.run(true);
            ADD_FAILURE() << "no exception";
        } catch (const RunFailure& failed) {
            said = failed.what();
        }
        EXPECT_EQ(said, "rank " + std::to_string(ranks() - 1) + ": a part failed.");
    }
    static_cast<void>(on_ranks.run()); // the communicator is as good as before
}

/// Work that was queued fails when the engine has gone on.
TEST(Failure, OfADeviceIsToldOnAllRanks)
{
    if (ranks() == 1 || test_device() != TestDevice::fake) {
        return;
    }
    AttentionCase attention(shape, DType::float32, 15);
    for (const auto& [name, sharding] : shardings(4)) {
        SCOPED_TRACE(name);
        OnRanks on_ranks(attention, sharding);
        if (rank() == 0) {
            fail_on_fake_device("a kernel failed.");
        }
        try {
            sharded_forward(on_ranks.forward_args(), on_ranks.options, sharding);
            ADD_FAILURE() << "no exception";
        } catch (const RunFailure& failed) {
            EXPECT_STREQ(failed.what(), "rank 0: a kernel failed.");
        }
        static_cast<void>(on_ranks.run());
    }
}

/// Tensors that are said to be on a GPU where there is none.
TEST(Device, ThatIsNotThereIsRefused)
{
    if (test_device() != TestDevice::none || !devices().empty()) {
        return;
    }
    AttentionCase attention(shape, DType::float32, 16);
    OnRanks on_ranks(attention, {});
    ForwardArgs args = on_ranks.forward_args();
    for (ConstTensorView* const view : {&args.q, &args.k, &args.v}) {
        view->memory = Memory::device;
    }
    args.o.memory = args.lse.memory = Memory::device;
    const std::string said = refusal([&] { mpi::forward(args, on_ranks.options); });
    expect_same_everywhere(said);
    EXPECT_NE(said.find("in device memory, but the call runs on"), std::string::npos) << said;
}

/// What a rank's environment refuses is told before anything moves.
TEST(Failure, OfARanksEnvironment)
{
    if (ranks() == 1) {
        return;
    }
    AttentionCase attention(shape, DType::float32, 14);
    OnRanks on_ranks(attention, {});
    if (rank() == ranks() - 1) {
        setenv("FLASHOMP_HOST_ISA", "no such set", 1);
    }
    const std::string said = refusal([&] { sharded_forward(on_ranks.forward_args(), on_ranks.options); });
    unsetenv("FLASHOMP_HOST_ISA");
    expect_same_everywhere(said);
    EXPECT_NE(said.find("FLASHOMP_HOST_ISA"), std::string::npos) << said;
}

TEST(Communicator, ThatIsNoneIsRefused)
{
    AttentionCase attention(shape, DType::float32, 13);
    OnRanks on_ranks(attention, {});
    mpi::Sharding sharding;
    sharding.comm = MPI_COMM_NULL;
    EXPECT_NE(
        refusal([&] { sharded_forward(on_ranks.forward_args(), on_ranks.options, sharding); }).find("MPI_COMM_NULL"),
        std::string::npos);
}

} // namespace
} // namespace flashomp::testing
