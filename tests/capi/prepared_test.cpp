// Prepared calls and allocators of the C interface.
#include "c_call.hpp"

#include "arguments.hpp"
#include "options.hpp"
#include "prepared.hpp"

#include "support/attention_case.hpp"
#include "unit/refusal.hpp"

#include "flashomp/prepared.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace flashomp::testing {
namespace {

/// 33 queries and 40 keys: every pass needs a workspace.
AttentionCase made()
{
    AttentionCase with({2, 4, 2, 33, 40, 24, 16}, DType::float32, 1);
    with.poison_outputs();
    return with;
}

Options on_host()
{
    Options options;
    options.device.kind = Device::Kind::host;
    options.threads = 2;
    options.dropout = {0.2, 3, 4};
    return options;
}

bool same(const HostTensor& a, const HostTensor& b)
{
    return std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())) == 0;
}

struct FreePrepared {
    void operator()(flashomp_prepared* prepared) const { flashomp_prepared_free(prepared); }
};
using Handle = std::unique_ptr<flashomp_prepared, FreePrepared>;

struct Aligned {
    void* data;
    explicit Aligned(std::int64_t bytes)
        : data(std::aligned_alloc(256, static_cast<std::size_t>(bytes) / 256 * 256 + 256))
    {
    }
    ~Aligned() { std::free(data); } // NOLINT(cppcoreguidelines-no-malloc)
    Aligned(const Aligned&) = delete;
    Aligned& operator=(const Aligned&) = delete;
};

TEST(CApiPrepared, RunsHaveTheBitsOfCalls)
{
    AttentionCase plain = made(), c = made();
    const Options options = on_host();
    const auto [first, second] = plain.run(options);

    // Prepared without addresses, run with them.
    CCall forward_shapes(c.forward_args(), options), backward_shapes(c.backward_args(), options);
    for (const flashomp_tensor* const tensor : {forward_shapes.forward.q, forward_shapes.forward.o,
                                                backward_shapes.backward.dq, backward_shapes.backward.lse}) {
        const_cast<flashomp_tensor*>(tensor)->data = nullptr;
    }
    flashomp_prepared* raw = nullptr;
    ASSERT_EQ(flashomp_prepare_forward(&forward_shapes.forward, &forward_shapes.options, &raw), FLASHOMP_OK)
        << flashomp_last_error();
    const Handle prepared_forward(raw);
    ASSERT_EQ(flashomp_prepare_backward(&backward_shapes.backward, &backward_shapes.options, &raw), FLASHOMP_OK)
        << flashomp_last_error();
    const Handle prepared_backward(raw);
    EXPECT_EQ(flashomp_workspace_bytes(prepared_forward.get()), prepare(c.forward_args(), options).workspace_bytes());
    EXPECT_EQ(flashomp_workspace_bytes(prepared_backward.get()), prepare(c.backward_args(), options).workspace_bytes());
    EXPECT_EQ(flashomp_workspace_device_type(prepared_forward.get()), FLASHOMP_CPU);

    const std::int64_t bytes =
        std::max(flashomp_workspace_bytes(prepared_forward.get()), flashomp_workspace_bytes(prepared_backward.get()));
    ASSERT_GT(bytes, 0);
    const Aligned workspace(bytes);
    flashomp_report report;
    flashomp_report_init(&report, sizeof report);
    for (const bool with_options : {false, true}) {
        c.poison_outputs(); // elsewhere
        CCall forward_again(c.forward_args(), options), backward_again(c.backward_args(), options);
        ASSERT_EQ(flashomp_run_forward(prepared_forward.get(), &forward_again.forward,
                                       with_options ? &forward_again.options : nullptr, workspace.data, bytes, &report),
                  FLASHOMP_OK)
            << flashomp_last_error();
        EXPECT_EQ(first.machine, report.machine);
        ASSERT_EQ(flashomp_run_backward(prepared_backward.get(), &backward_again.backward,
                                        with_options ? &backward_again.options : nullptr, workspace.data, bytes,
                                        &report),
                  FLASHOMP_OK)
            << flashomp_last_error();
        EXPECT_EQ(second.machine, report.machine);
        EXPECT_EQ(second.standard_bytes, report.standard_bytes);
        for (const auto member :
             {&AttentionCase::o, &AttentionCase::lse, &AttentionCase::dq, &AttentionCase::dk, &AttentionCase::dv}) {
            EXPECT_TRUE(same(plain.*member, c.*member));
        }
    }
}

TEST(CApiPrepared, RefusesWhatIsNotAsPrepared)
{
    AttentionCase c = made();
    const Options options = on_host();
    CCall forward_call(c.forward_args(), options), backward_call(c.backward_args(), options);
    flashomp_prepared* raw = nullptr;
    ASSERT_EQ(flashomp_prepare_backward(&backward_call.backward, &backward_call.options, &raw), FLASHOMP_OK);
    const Handle prepared(raw);
    const std::int64_t bytes = flashomp_workspace_bytes(raw);
    const Aligned workspace(bytes);
    const auto expect_refused = [&](flashomp_status status, const char* says) {
        EXPECT_EQ(status, FLASHOMP_BAD_ARGUMENT);
        EXPECT_NE(std::string(flashomp_last_error()).find(says), std::string::npos) << flashomp_last_error();
        EXPECT_TRUE(is_poison(c.dq) && is_poison(c.o));
    };
    const auto run = [&](void* memory, std::int64_t size) {
        return flashomp_run_backward(raw, &backward_call.backward, &backward_call.options, memory, size, nullptr);
    };
    expect_refused(flashomp_run_forward(raw, &forward_call.forward, nullptr, workspace.data, bytes, nullptr),
                   "prepared is a backward call; flashomp_run_forward() runs forward calls");
    expect_refused(run(workspace.data, bytes - 1), "workspace has");
    expect_refused(run(workspace.data, -1), "workspace_bytes was -1");
    expect_refused(run(static_cast<char*>(workspace.data) + 8, bytes), "workspace begins at address");
    expect_refused(run(nullptr, bytes), "workspace begins at address");
    backward_call.options.softcap = 1.0;
    expect_refused(run(workspace.data, bytes), "options differ from those");
    backward_call.options.softcap = 0.0;
    backward_call.backward.dsink = backward_call.backward.lse;
    expect_refused(run(workspace.data, bytes), "dsink");

    backward_call.options.backend = FLASHOMP_BACKEND_REFERENCE;
    raw = prepared.get();
    EXPECT_EQ(flashomp_prepare_backward(&backward_call.backward, &backward_call.options, &raw), FLASHOMP_BAD_ARGUMENT);
    EXPECT_EQ(raw, nullptr);
}

/// Managed memory as that of host tensors: what the library takes it for shows without a GPU.
void make_managed(CCall& call)
{
    for (const flashomp_tensor* const tensor :
         {call.forward.q, call.forward.k, call.forward.v, call.forward.o, call.forward.lse}) {
        const_cast<flashomp_tensor*>(tensor)->device.device_type = FLASHOMP_CUDA_MANAGED;
    }
}

TEST(CApiPrepared, ManagedMemoryIsInRunsWithoutOptionsWhatPrepareTookItFor)
{
    AttentionCase plain = made(), c = made();
    const Options options = on_host();
    forward(plain.forward_args(), options);
    CCall call(c.forward_args(), options);
    make_managed(call);
    flashomp_prepared* raw = nullptr;
    ASSERT_EQ(flashomp_prepare_forward(&call.forward, &call.options, &raw), FLASHOMP_OK) << flashomp_last_error();
    const Handle prepared(raw);
    EXPECT_FALSE(raw->managed_is_gpus);
    const std::int64_t bytes = flashomp_workspace_bytes(raw);
    const Aligned workspace(bytes);
    const auto run = [&](bool with_options) {
        c.poison_outputs(); // elsewhere
        CCall again(c.forward_args(), options);
        make_managed(again);
        return flashomp_run_forward(raw, &again.forward, with_options ? &again.options : nullptr, workspace.data, bytes,
                                    nullptr);
    };
    ASSERT_EQ(run(false), FLASHOMP_OK) << flashomp_last_error();
    EXPECT_TRUE(same(c.o, plain.o));

    // A call that took it for a GPU's, which only a build with backend cuda prepares: the same memory is a GPU's again.
    raw->managed_is_gpus = true;
    EXPECT_EQ(run(false), FLASHOMP_BAD_ARGUMENT);
    EXPECT_NE(std::string(flashomp_last_error()).find("device memory"), std::string::npos) << flashomp_last_error();
    EXPECT_TRUE(is_poison(c.o));
    EXPECT_EQ(run(true), FLASHOMP_OK) << flashomp_last_error(); // with options that name neither cuda nor a stream
    EXPECT_TRUE(same(c.o, plain.o));
}

TEST(CApiPrepared, TakesManagedMemoryForAGpusWhereBackendCudaOrAStreamIsNamed)
{
    AttentionCase c = made();
    CCall call(c.forward_args(), on_host());
    make_managed(call);
    for (const bool stream : {false, true}) {
        flashomp_options options = call.options;
        EXPECT_FALSE(capi::managed_is_gpus(options));
        options.has_stream = stream ? 1 : 0;
        options.backend = stream ? FLASHOMP_BACKEND_AUTO : FLASHOMP_BACKEND_CUDA;
        EXPECT_TRUE(capi::managed_is_gpus(options));
    }
    for (const bool is_gpus : {false, true}) {
        const ForwardArgs args = capi::args_of(&call.forward, is_gpus);
        EXPECT_EQ(args.q.memory, is_gpus ? Memory::device : Memory::host);
        EXPECT_EQ(args.lse.memory, is_gpus ? Memory::device : Memory::host);
        EXPECT_EQ(args.q.data, c.q.data());
    }
}

/// Counts, and lends one block.
struct Lender {
    std::vector<std::string> calls;
    std::int64_t bytes = 0;
    void* lent = nullptr;
    std::int64_t misalign = 0;
    bool has_none = false;
    void* stands_in = nullptr; ///< lent instead
    bool throws = false;       ///< when it gets its memory back
    bool has_no_list =
        false; ///< throws std::bad_alloc, when it is asked or, with `throws`, when it gets its memory back

    static void* allocate(void* context, std::int64_t bytes, std::int64_t alignment, std::int32_t device_type,
                          std::int32_t device_id, void* stream)
    {
        auto& self = *static_cast<Lender*>(context);
        self.calls.emplace_back("allocate");
        EXPECT_GT(bytes, 0);
        EXPECT_EQ(alignment, 256);
        EXPECT_EQ(device_type, FLASHOMP_CPU);
        EXPECT_EQ(device_id, 0);
        EXPECT_EQ(stream, nullptr);
        if (self.has_none) {
            return nullptr;
        }
        if (self.has_no_list && !self.throws) {
            throw std::bad_alloc();
        }
        self.bytes = bytes;
        if (self.stands_in != nullptr) {
            return self.lent = self.stands_in;
        }
        char* const block = static_cast<char*>(
            std::aligned_alloc(256, static_cast<std::size_t>(bytes + self.misalign + 255) / 256 * 256));
        return self.lent = block + self.misalign;
    }
    static void release(void* context, void* memory, std::int64_t bytes, std::int32_t device_type,
                        std::int32_t device_id, void* stream)
    {
        auto& self = *static_cast<Lender*>(context);
        self.calls.emplace_back("release");
        EXPECT_EQ(memory, self.lent);
        EXPECT_EQ(bytes, self.bytes);
        EXPECT_EQ(device_type, FLASHOMP_CPU);
        EXPECT_EQ(device_id, 0);
        EXPECT_EQ(stream, nullptr);
        if (self.stands_in == nullptr) {
            std::free(static_cast<char*>(memory) - self.misalign); // NOLINT(cppcoreguidelines-no-malloc)
        }
        if (self.throws && self.has_no_list) {
            throw std::bad_alloc();
        }
        if (self.throws) {
            throw std::runtime_error("the lender is upset");
        }
    }
    [[nodiscard]] flashomp_allocator allocator()
    {
        flashomp_allocator made;
        flashomp_allocator_init(&made, sizeof made);
        made.context = this;
        made.allocate = allocate;
        made.release = release;
        return made;
    }
};

const std::vector<std::string> once{"allocate", "release"};

TEST(CApiAllocator, LendsTheWorkspaceOfCalls)
{
    AttentionCase plain = made(), c = made();
    const Options options = on_host();
    const auto [first, second] = plain.run(options);
    Lender lender;
    const flashomp_allocator allocator = lender.allocator();
    CCall forward_call(c.forward_args(), options), backward_call(c.backward_args(), options);
    forward_call.options.allocator = backward_call.options.allocator = &allocator;
    flashomp_report report;
    flashomp_report_init(&report, sizeof report);
    ASSERT_EQ(flashomp_forward(&forward_call.forward, &forward_call.options, &report), FLASHOMP_OK)
        << flashomp_last_error();
    EXPECT_EQ(lender.calls, once);
    EXPECT_EQ(lender.bytes, prepare(c.forward_args(), options).workspace_bytes());
    EXPECT_EQ(first.extra_bytes, report.extra_bytes);
    EXPECT_GT(report.seconds, 0.0);
    lender.calls.clear();
    ASSERT_EQ(flashomp_backward(&backward_call.backward, &backward_call.options, &report), FLASHOMP_OK)
        << flashomp_last_error();
    EXPECT_EQ(lender.calls, once);
    EXPECT_EQ(lender.bytes, prepare(c.backward_args(), options).workspace_bytes());
    EXPECT_EQ(second.extra_bytes, report.extra_bytes);
    for (const auto member :
         {&AttentionCase::o, &AttentionCase::lse, &AttentionCase::dq, &AttentionCase::dk, &AttentionCase::dv}) {
        EXPECT_TRUE(same(plain.*member, c.*member));
    }
}

TEST(CApiAllocator, IsAskedForNothingWhereACallIsRefused)
{
    AttentionCase c = made();
    Lender lender;
    const flashomp_allocator allocator = lender.allocator();
    CCall call(c.forward_args(), on_host());
    call.options.allocator = &allocator;
    call.options.softcap = -1.0;
    EXPECT_EQ(flashomp_forward(&call.forward, &call.options, nullptr), FLASHOMP_BAD_ARGUMENT);
    EXPECT_TRUE(lender.calls.empty());
}

TEST(CApiAllocator, GetsItsMemoryBackAfterFailures)
{
    AttentionCase c = made();
    Lender lender;
    const flashomp_allocator allocator = lender.allocator();
    CCall call(c.forward_args(), on_host());
    call.options.allocator = &allocator;
    const auto expect_failed = [&](flashomp_status expected, const char* says) {
        lender.calls.clear();
        EXPECT_EQ(flashomp_forward(&call.forward, &call.options, nullptr), expected);
        EXPECT_NE(std::string(flashomp_last_error()).find(says), std::string::npos) << flashomp_last_error();
        EXPECT_TRUE(is_poison(c.o) && is_poison(c.lse));
    };
    lender.has_none = true;
    expect_failed(FLASHOMP_RUN_FAILURE, "but the caller's allocator has none");
    EXPECT_EQ(lender.calls, std::vector<std::string>{"allocate"});
    lender.has_none = false;

    lender.misalign = 8;
    expect_failed(FLASHOMP_BAD_ARGUMENT, "allocator->allocate returned address");
    EXPECT_EQ(lender.calls, once);
    lender.misalign = 0;

    const auto address = reinterpret_cast<std::uintptr_t>(c.q.data());
    lender.stands_in = static_cast<char*>(c.q.data()) - address % 256; // the tensor is longer than this
    expect_failed(FLASHOMP_BAD_ARGUMENT, "returned memory that overlaps q");
    EXPECT_EQ(lender.calls, once);

    lender.throws = true; // the first failure is told
    expect_failed(FLASHOMP_BAD_ARGUMENT, "returned memory that overlaps q");
    EXPECT_EQ(lender.calls, once);
}

TEST(CApiAllocator, MayThrowWhenItGetsItsMemoryBack)
{
    AttentionCase c = made();
    Lender lender;
    lender.throws = true;
    const flashomp_allocator allocator = lender.allocator();
    CCall forward_call(c.forward_args(), on_host()), backward_call(c.backward_args(), on_host());
    forward_call.options.allocator = backward_call.options.allocator = &allocator;
    const auto expect_told = [&](flashomp_status status) {
        EXPECT_EQ(status, FLASHOMP_UNEXPECTED);
        EXPECT_NE(std::string(flashomp_last_error()).find("the lender is upset"), std::string::npos)
            << flashomp_last_error();
        EXPECT_EQ(lender.calls, once);
        lender.calls.clear();
    };
    expect_told(flashomp_forward(&forward_call.forward, &forward_call.options, nullptr));
    expect_told(flashomp_backward(&backward_call.backward, &backward_call.options, nullptr));
}

/// A type that the library throws, too, is no failure of the library's own.
TEST(CApiAllocator, MayRunOutOfMemoryOfItsOwn)
{
    AttentionCase c = made();
    Lender lender;
    lender.has_no_list = true;
    const flashomp_allocator allocator = lender.allocator();
    CCall call(c.forward_args(), on_host());
    call.options.allocator = &allocator;
    for (const char* const function : {"allocator->allocate threw", "allocator->release threw"}) {
        lender.calls.clear();
        EXPECT_EQ(flashomp_forward(&call.forward, &call.options, nullptr), FLASHOMP_UNEXPECTED);
        EXPECT_NE(std::string(flashomp_last_error()).find(function), std::string::npos) << flashomp_last_error();
        lender.throws = true;
    }
    EXPECT_EQ(lender.calls, once);
}

TEST(CApiAllocator, IsNotLookedAtWhereItDoesNotCount)
{
    AttentionCase c = made();
    flashomp_allocator broken;
    std::memset(&broken, 0, sizeof broken); // no size, and no functions
    CCall forward_call(c.forward_args(), on_host()), backward_call(c.backward_args(), on_host());
    forward_call.options.allocator = backward_call.options.allocator = &broken;
    flashomp_prepared* raw = nullptr;
    ASSERT_EQ(flashomp_prepare_forward(&forward_call.forward, &forward_call.options, &raw), FLASHOMP_OK)
        << flashomp_last_error();
    const Handle prepared_forward(raw);
    ASSERT_EQ(flashomp_prepare_backward(&backward_call.backward, &backward_call.options, &raw), FLASHOMP_OK)
        << flashomp_last_error();
    const Handle prepared_backward(raw);
    const std::int64_t bytes =
        std::max(flashomp_workspace_bytes(prepared_forward.get()), flashomp_workspace_bytes(prepared_backward.get()));
    const Aligned workspace(bytes);
    EXPECT_EQ(flashomp_run_forward(prepared_forward.get(), &forward_call.forward, &forward_call.options, workspace.data,
                                   bytes, nullptr),
              FLASHOMP_OK)
        << flashomp_last_error();
    EXPECT_EQ(flashomp_run_backward(prepared_backward.get(), &backward_call.backward, &backward_call.options,
                                    workspace.data, bytes, nullptr),
              FLASHOMP_OK)
        << flashomp_last_error();

    AttentionCase part = made();
    HostTensor o(DType::float32, c.o.shape()), lse(DType::float32, c.lse.shape());
    forward(part.forward_args(), on_host());
    CCall call(on_host());
    call.options.dropout_probability = 0.0;
    call.options.allocator = &broken;
    EXPECT_EQ(flashomp_merge(call.tensor(c.o.view()), call.tensor(c.lse.view()), call.tensor(part.o.view()),
                             call.tensor(part.lse.view()), call.tensor(o.view()), call.tensor(lse.view()),
                             &call.options, nullptr),
              FLASHOMP_OK)
        << flashomp_last_error();
}

} // namespace
} // namespace flashomp::testing
