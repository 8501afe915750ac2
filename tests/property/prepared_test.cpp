// Prepared calls: the same bits as forward() and backward(), whatever their workspace held, with nothing written beside
// it; and one sentence where a run is not what was prepared.
#include "support/attention_case.hpp"
#include "support/on_device.hpp"
#include "support/target.hpp"

#include "flashomp/prepared.hpp"

#include "cuda/runtime.hpp"
#include "reference.hpp"
#include "unit/refusal.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <thread>
#include <vector>

namespace flashomp::testing {
namespace {

constexpr std::size_t guard = 256;
constexpr unsigned char garbage = 0xa5;

/// Exactly as much workspace as a call says, full of garbage, between two guards.
class Guarded {
public:
    Guarded(std::int64_t bytes, const Space& space)
        : space_(space), here_(static_cast<std::size_t>(bytes) + 2 * guard, garbage),
          there_(allocate(static_cast<std::int64_t>(here_.size()), space))
    {
        copy_in(there_, space_, here_.data(), static_cast<std::int64_t>(here_.size()));
    }
    ~Guarded()
    {
        copy_out(here_.data(), there_, space_, static_cast<std::int64_t>(here_.size()));
        wait_for(space_);
        const auto is_garbage = [](unsigned char byte) { return byte == garbage; };
        EXPECT_TRUE(std::all_of(here_.begin(), here_.begin() + guard, is_garbage)) << "written before the workspace";
        EXPECT_TRUE(std::all_of(here_.end() - guard, here_.end(), is_garbage)) << "written behind the workspace";
        release(there_, space_);
    }
    Guarded(const Guarded&) = delete;
    Guarded& operator=(const Guarded&) = delete;

    [[nodiscard]] std::span<std::byte> span() const
    {
        return {static_cast<std::byte*>(there_) + guard, here_.size() - 2 * guard};
    }

private:
    Space space_;
    std::vector<unsigned char> here_;
    void* there_;
};

template <class Args>
Args without_addresses(Args args)
{
    for (auto view : {&Args::q, &Args::k, &Args::v}) {
        (args.*view).data = nullptr;
    }
    args.o.data = nullptr;
    args.lse.data = nullptr;
    if constexpr (std::is_same_v<Args, BackwardArgs>) {
        args.dout.data = nullptr;
        for (auto view : {&Args::dq, &Args::dk, &Args::dv, &Args::dbias, &Args::dsink}) {
            (args.*view).data = nullptr;
        }
    }
    return args;
}

Options without_addresses(Options options)
{
    for (auto view : {&Options::alibi_slopes, &Options::bias, &Options::key_padding_mask, &Options::sink}) {
        (options.*view).data = nullptr;
    }
    return options;
}

class PreparedCalls : public EveryTargetTest {
protected:
    [[nodiscard]] Space space() const
    {
        if (!target_.is_device) {
            return {};
        }
        return {target_.backend == Backend::cuda ? Space::Kind::cuda : Space::Kind::openmp, 0};
    }

    /// Options of the case on this target; two threads, as the tests run side by side.
    [[nodiscard]] Options options_of(const AttentionCase& attention) const
    {
        Options options = on_target(attention.options);
        options.threads = 2;
        return options;
    }

    template <class Args>
    RunReport run(Prepared<Args>& prepared, const Args& args, const Options& options) const
    {
        const Guarded workspace(prepared.workspace_bytes(), space());
        return prepared.run(args, options, workspace.span());
    }

    /// Prepares calls like `first` without addresses, and runs them on each of the cases.
    void expect_same(AttentionCase& first, const std::vector<AttentionCase*>& cases) const
    {
        first.poison_outputs();
        const Options like = without_addresses(options_of(first));
        PreparedForward forward_call = prepare(without_addresses(first.forward_args()), like);
        PreparedBackward backward_call = prepare(without_addresses(first.backward_args()), like);
        for (AttentionCase* const attention : cases) {
            const Options options = options_of(*attention);
            const auto [forward_report, backward_report] = attention->run(options);
            const Results expected = attention->take_results();
            for (int repeat = 0; repeat < 2; ++repeat) {
                attention->poison_outputs();
                const RunReport once = run(forward_call, attention->forward_args(), options);
                const RunReport back = run(backward_call, attention->backward_args(), options);
                expect_same_reports(forward_call.report(once), forward_report);
                expect_same_reports(backward_call.report(back), backward_report);
                expect_same_bits(attention->take_results(), expected);
                attention->poison_outputs(); // take_results() took them
            }
        }
    }

    static void expect_same_reports(const Report& a, const Report& b)
    {
        EXPECT_EQ(a.backend, b.backend);
        EXPECT_EQ(a.machine, b.machine);
        EXPECT_EQ(a.ran_on, b.ran_on);
        EXPECT_EQ(a.on_device, b.on_device);
        EXPECT_EQ(a.tuned, b.tuned);
        EXPECT_EQ(a.computed_twice, b.computed_twice);
        EXPECT_EQ(a.note, b.note);
        EXPECT_EQ(a.extra_bytes, b.extra_bytes);
        EXPECT_EQ(a.staged_bytes, b.staged_bytes);
        EXPECT_EQ(a.standard_bytes, b.standard_bytes);
    }
};

INSTANTIATE_TEST_SUITE_P(Machines, PreparedCalls, ::testing::ValuesIn(targets()), target_name);

TEST_P(PreparedCalls, HaveTheBitsOfCallsAtOnce)
{
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
        const auto make = [&](std::uint64_t seed) {
            AttentionCase attention({2, 4, 2, 70, 90, 64, 48}, dtype, seed);
            attention.options.causal = Causal::bottom_right;
            return attention;
        };
        AttentionCase first = make(601);
        AttentionCase second = make(602);
        expect_same(first, {&first, &second});
    }
}

TEST_P(PreparedCalls, TakeTheTensorsOfOptionsFromEachRun)
{
    const auto make = [](std::uint64_t seed) {
        AttentionCase attention({2, 4, 2, 70, 90, 32, 32}, DType::float32, seed);
        attention.add_alibi();
        attention.add_bias();
        attention.add_key_padding();
        attention.add_sink();
        attention.add_dropout(0.2);
        attention.options.softcap = 20.0;
        return attention;
    };
    AttentionCase first = make(603);
    AttentionCase second = make(604);
    expect_same(first, {&first, &second});
}

/// Each run is compared with a call on the keys that the window leaves, taken out of its tensors by hand.
TEST_P(PreparedCalls, SkipTheKeysThatAWindowHidesInEachRunsTensors)
{
    constexpr std::int64_t keys = 90, left = 33;
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
        const auto make = [dtype](std::uint64_t seed) {
            AttentionCase attention({2, 4, 2, 1, keys, 32, 24}, dtype, seed);
            attention.add_sink();
            return attention;
        };
        AttentionCase first = make(607);
        AttentionCase second = make(608);
        first.options.window = {left, -1};
        first.poison_outputs();
        PreparedForward call = prepare(first.forward_args(), options_of(first));
        for (AttentionCase* const attention : {&first, &second, &first}) {
            SCOPED_TRACE(name_of(dtype));
            attention->poison_outputs();
            ForwardArgs args = attention->forward_args();
            for (ConstTensorView* const view : {&args.k, &args.v}) {
                view->data = static_cast<const char*>(view->data) +
                             (keys - left - 1) * view->strides[1] * static_cast<std::int64_t>(size_of(dtype));
                view->shape[1] = left + 1;
            }
            Options options = options_of(*attention);
            options.window = {};
            forward(args, options);
            const Results expected = attention->take_results();
            attention->poison_outputs();
            options.window = first.options.window;
            run(call, attention->forward_args(), options);
            expect_same_bits(attention->take_results(), expected);
        }
    }
}

TEST_P(PreparedCalls, OfPackedSequencesKeepTheirBoundaries)
{
    const Lengths lengths{{3, 0, 40, 17}, {5, 8, 33, 29}};
    AttentionCase first({0, 4, 2, 0, 0, 64, 64}, lengths, DType::bfloat16, 605);
    AttentionCase second({0, 4, 2, 0, 0, 64, 64}, lengths, DType::bfloat16, 606);
    first.poison_outputs();
    const Options options = options_of(first);
    PreparedForward forward_call = prepare(first.forward_args(), options);
    PreparedBackward backward_call = prepare(first.backward_args(), options);
    static_cast<void>(second.run(options_of(second)));
    const Results expected = second.take_results();
    second.poison_outputs();
    for (HostTensor* const starts : {&first.cu_seqlens_q, &first.cu_seqlens_k}) { // nobody reads them again
        std::fill_n(static_cast<std::int32_t*>(starts->data()), lengths.q.size() + 1, -1);
    }
    run(forward_call, second.forward_args(), options);
    run(backward_call, second.backward_args(), options);
    expect_same_bits(second.take_results(), expected);
}

TEST_P(PreparedCalls, OfFewQueriesSplitTheKeys)
{
    AttentionCase first({1, 4, 2, 1, 3000, 64, 64}, DType::bfloat16, 607);
    AttentionCase second({1, 4, 2, 1, 3000, 64, 64}, DType::bfloat16, 608);
    expect_same(first, {&first, &second});
}

TEST_P(PreparedCalls, SeeALargeLse)
{
    AttentionCase ordinary({1, 2, 2, 60, 60, 64, 64}, DType::float32, 609);
    AttentionCase large({1, 2, 2, 60, 60, 64, 64}, DType::float32, 610, 8.0F);
    expect_same(ordinary, {&ordinary, &large, &ordinary});
}

TEST_P(PreparedCalls, ComputeTwiceWhatIsNotFinite)
{
    AttentionCase ordinary({1, 2, 2, 60, 60, 64, 64}, DType::float32, 611);
    AttentionCase hidden({1, 2, 2, 60, 60, 64, 64}, DType::float32, 612);
    for (AttentionCase* const attention : {&ordinary, &hidden}) {
        attention->options.causal = Causal::top_left;
    }
    reference::write_element(hidden.k.view(), 59L * 2 * 64, std::numeric_limits<double>::quiet_NaN());
    expect_same(ordinary, {&ordinary, &hidden, &ordinary});
    EXPECT_TRUE(hidden.run(options_of(hidden)).first.computed_twice);
}

TEST_P(PreparedCalls, OfAnyStridesAreStaged)
{
    AttentionCase attention({2, 4, 4, 50, 50, 32, 32}, DType::float32, 613);
    attention.poison_outputs();
    const auto heads_first = [](auto view) { // the same memory as [batch, head, row, depth]
        view.strides = {4 * 50 * 32, 32, 50 * 32, 1};
        return view;
    };
    ForwardArgs args = attention.forward_args();
    args.q = heads_first(args.q);
    args.o = heads_first(args.o);
    static_cast<void>(forward(args, options_of(attention)));
    const HostTensor expected = std::move(attention.o);
    attention.poison_outputs();
    args.o.data = attention.o.data();
    args.lse.data = attention.lse.data();
    PreparedForward call = prepare(args, options_of(attention));
    run(call, args, options_of(attention));
    EXPECT_TRUE(same_bits(attention.o, expected));
}

TEST_P(PreparedCalls, BringGradientsOfAnyStridesBack)
{
    AttentionCase attention({2, 4, 4, 50, 50, 32, 32}, DType::float32, 622);
    static_cast<void>(attention.run(options_of(attention)));
    const auto rows_apart = [](TensorView view, std::vector<float>& memory) { // every other row is nobody's
        memory.assign(static_cast<std::size_t>(2 * view.elements()), -7.0F);
        view.data = memory.data();
        view.strides[0] *= 2;
        view.strides[1] *= 2;
        return view;
    };
    std::vector<float> dq, dk, dv;
    BackwardArgs args = attention.backward_args();
    args.dq = rows_apart(args.dq, dq);
    args.dk = rows_apart(args.dk, dk);
    args.dv = rows_apart(args.dv, dv);
    PreparedBackward call = prepare(args, options_of(attention));
    run(call, args, options_of(attention));
    const std::size_t width = 4 * 32;
    for (const auto& [strided, dense] :
         {std::pair{&dq, &attention.dq}, std::pair{&dk, &attention.dk}, std::pair{&dv, &attention.dv}}) {
        const auto* const expected = static_cast<const float*>(dense->data());
        for (std::size_t row = 0; row < 2 * 50; ++row) {
            const auto* const at = strided->data() + 2 * row * width;
            ASSERT_TRUE(std::equal(at, at + width, expected + row * width)) << row;
            ASSERT_TRUE(std::all_of(at + width, at + 2 * width, [](float x) { return x == -7.0F; })) << row;
        }
    }
}

TEST_P(PreparedCalls, RunSideBySide)
{
    std::vector<AttentionCase> cases;
    std::vector<Results> expected;
    for (std::uint64_t seed = 614; seed < 617; ++seed) {
        cases.emplace_back(Shape{1, 2, 2, 80, 80, 64, 64}, DType::bfloat16, seed);
        static_cast<void>(cases.back().run(options_of(cases.back())));
        expected.push_back(cases.back().take_results());
        cases.back().poison_outputs();
    }
    std::vector<std::thread> threads;
    for (AttentionCase& attention : cases) {
        threads.emplace_back([&attention, this] {
            const Options options = options_of(attention);
            PreparedForward forward_call = prepare(attention.forward_args(), options);
            PreparedBackward backward_call = prepare(attention.backward_args(), options);
            for (int repeat = 0; repeat < 5; ++repeat) {
                run(forward_call, attention.forward_args(), options);
                run(backward_call, attention.backward_args(), options);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (std::size_t i = 0; i < cases.size(); ++i) {
        expect_same_bits(cases[i].take_results(), expected[i]);
    }
}

TEST_P(PreparedCalls, RefuseWhatWasNotPrepared)
{
    AttentionCase attention({1, 2, 2, 60, 60, 64, 64}, DType::float32, 618);
    attention.add_bias();
    attention.poison_outputs();
    const Options options = options_of(attention);
    PreparedForward call = prepare(without_addresses(attention.forward_args()), without_addresses(options));
    const ForwardArgs args = attention.forward_args();
    const Guarded guarded(call.workspace_bytes() + 512, space());
    const std::span<std::byte> workspace = guarded.span();
    const auto refused = [&](const char* says, const ForwardArgs& given, const Options& with,
                             std::span<std::byte> memory) {
        expect_refused(says, [&] { call.run(given, with, memory); });
    };
    ForwardArgs other = args;
    other.q = ConstTensorView::contiguous(args.q.data, DType::float32, {1, 30, 2, 64});
    refused("q is float32 [1, 30, 2, 64], but the call was prepared for float32 [1, 60, 2, 64]", other, options,
            workspace);
    other = args;
    other.q.strides[1] = 256;
    refused("q has stride 256 on axis 1, but the call was prepared for 128", other, options, workspace);
    other = args;
    other.k.memory = Memory::device;
    refused("k is in device memory, but the call was prepared for host memory", other, options, workspace);
    other = args;
    other.k.dtype = DType::bfloat16;
    refused("k is bfloat16", other, options, workspace);
    other = args;
    other.v.data = nullptr;
    refused("v has no data", other, options, workspace);
    other = args;
    other.o.data = static_cast<char*>(args.o.data) + 2;
    refused("o begins at address", other, options, workspace);
    other = args;
    other.o.data = const_cast<void*>(args.q.data);
    refused("o overlaps q", other, options, workspace);
    Options changed = options;
    changed.softcap = 3.0;
    refused("options differ", args, changed, workspace);
    changed = options;
    changed.bias = {};
    refused("bias is not given, but the call was prepared for float32 [1, 2, 60, 60]", args, changed, workspace);
    changed = options;
    changed.stream = nullptr;
    refused("stream was given, but the call was prepared without one", args, changed, workspace);
    expect_refused("bias has no data", [&] { call.run(args, workspace); }); // prepare() was given none
    if (call.workspace_bytes() > 0) {
        refused("workspace has 1 bytes", args, options, workspace.first(1));
        refused("workspace begins at", args, options, workspace.subspan(1));
        refused("workspace begins at", args, options, std::span(static_cast<std::byte*>(nullptr), workspace.size()));
    }
    if (call.workspace_bytes() > 0 && !target_.is_device) {
        other = args; // a tensor in the workspace
        other.v.data = workspace.data();
        refused("workspace overlaps v", other, options, workspace);
    }
    EXPECT_TRUE(is_poison(attention.o));
    EXPECT_TRUE(is_poison(attention.lse));
}

TEST(Prepared, RefusesTheReference)
{
    AttentionCase attention({1, 1, 1, 4, 4, 8, 8}, DType::float32, 619);
    attention.poison_outputs();
    Options options;
    options.backend = Backend::reference;
    expect_refused("backend was reference", [&] { static_cast<void>(prepare(attention.forward_args(), options)); });
}

TEST(Prepared, NeedsTheBoundariesOfPackedSequences)
{
    AttentionCase attention({0, 1, 1, 0, 0, 8, 8}, Lengths{{4}, {4}}, DType::float32, 620);
    attention.poison_outputs();
    Options options = attention.options;
    options.cu_seqlens_k.data = nullptr;
    expect_refused("cu_seqlens_k", [&] { static_cast<void>(prepare(attention.forward_args(), options)); });
}

TEST(Prepared, DoesNotLookAtBoundariesAgain)
{
    AttentionCase attention({0, 1, 1, 0, 0, 8, 8}, Lengths{{4}, {4}}, DType::float32, 623);
    attention.poison_outputs();
    Options options = attention.options;
    options.device.kind = Device::Kind::host;
    std::vector<std::int32_t> starts{0, 4};
    options.cu_seqlens_q = ConstTensorView::contiguous(std::span<const std::int32_t>(starts), {2});
    PreparedForward call = prepare(attention.forward_args(), options);
    const Guarded workspace(call.workspace_bytes(), Space{});
    options.cu_seqlens_q.data = attention.o.data(); // its memory was given back, and o has it now
    EXPECT_NO_THROW(call.run(attention.forward_args(), options, workspace.span()));
}

/// One query makes a merge of parts of the keys, a NaN a second computation.
TEST(Prepared, InsideAParallelRegionHasOneThread)
{
    AttentionCase attention({1, 2, 2, 1, 5000, 32, 32}, DType::float32, 624);
    reference::write_element(attention.k.view(), 7, std::numeric_limits<double>::quiet_NaN());
    attention.poison_outputs();
    Options options;
    options.device.kind = Device::Kind::host;
    PreparedForward call = prepare(attention.forward_args(), options);
    const Guarded workspace(call.workspace_bytes(), Space{});
    int threads = 0;
#pragma omp parallel num_threads(2)
    {
#pragma omp single
        threads = call.run(attention.forward_args(), workspace.span()).threads;
    }
    EXPECT_EQ(threads, 1);
    const HostTensor inside = std::move(attention.o);
    attention.poison_outputs();
    static_cast<void>(forward(attention.forward_args(), options));
    EXPECT_TRUE(same_bits(inside, attention.o));
}

class PreparedOnStream : public CudaTest {};

/// A stream's runs queue behind one another; each has its own workspace until the stream is done.
TEST_F(PreparedOnStream, HasTheBitsOfACallAtOnce)
{
    const Lengths lengths{{3, 0, 40, 17}, {5, 8, 33, 29}};
    AttentionCase waited({0, 4, 2, 0, 0, 64, 64}, lengths, DType::bfloat16, 621);
    AttentionCase queued({0, 4, 2, 0, 0, 64, 64}, lengths, DType::bfloat16, 621);
    static_cast<void>(waited.run(on_target(waited.options)));
    const Space space{Space::Kind::cuda, 0};
    OnDevice device(space);
    queued.poison_outputs();
    const DeviceCalls calls(device, queued);
    Options options = on_target(queued.options);
    options.stream = nullptr;
    PreparedForward forward_call = prepare(calls.forward, options);
    PreparedBackward backward_call = prepare(calls.backward, options);
    EXPECT_EQ(forward_call.workspace_memory(), Memory::device);
    {
        const Guarded forward_memory(forward_call.workspace_bytes(), space);
        const Guarded backward_memory(backward_call.workspace_bytes(), space);
        for (int repeat = 0; repeat < 3; ++repeat) {
            forward_call.run(calls.forward, forward_memory.span(), nullptr);
            backward_call.run(calls.backward, backward_memory.span(), nullptr);
        }
        wait_for(space);
    }
    device.download();
    expect_same_bits(waited.take_results(), queued.take_results());
}

} // namespace
} // namespace flashomp::testing
