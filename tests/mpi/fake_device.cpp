#include "fake_device.hpp"

#include "arena.hpp"

#include "messages.hpp"
#include "site.hpp"

#include "elements_params.hpp"
#include "launch/launch_elements.hpp"

#include "flashomp/prepared.hpp"

#include <cstring>
#include <deque>
#include <gtest/gtest.h>
#include <random>
#include <utility>

namespace flashomp::testing {

namespace {

const char* next_failure = nullptr;

template <class Pointer>
BasicTensorView<Pointer> on_host(BasicTensorView<Pointer> view)
{
    view.memory = Memory::host;
    return view;
}

Options on_host(Options options)
{
    for (ConstTensorView* const view :
         {&options.bias, &options.mask, &options.alibi_slopes, &options.key_padding_mask, &options.sink}) {
        view->memory = Memory::host;
    }
    return options;
}

ForwardArgs on_host(const ForwardArgs& a)
{
    return {on_host(a.q), on_host(a.k), on_host(a.v), on_host(a.o), on_host(a.lse)};
}

BackwardArgs on_host(BackwardArgs a)
{
    for (ConstTensorView* const view : {&a.q, &a.k, &a.v, &a.o, &a.lse, &a.dout}) {
        view->memory = Memory::host;
    }
    for (TensorView* const view : {&a.dq, &a.dk, &a.dv, &a.dbias, &a.dsink}) {
        view->memory = Memory::host;
    }
    return a;
}

/// Work is done in its order, a piece at a time, when somebody waits or asks whether it is done; and so are the copies
/// beside it, behind their marks.
class FakeSite : public mpi::Site {
public:
    FakeSite() : is_reached_(mpi::mpi_takes_device_memory()) {}
    ~FakeSite() override { wait(); }

    [[nodiscard]] Memory memory() const override { return Memory::device; }
    [[nodiscard]] bool is_reached_by_mpi() const override { return is_reached_; }
    [[nodiscard]] Options options_of_calls(const Options& given) const override { return given; }

    std::shared_ptr<std::byte> allocate(std::int64_t bytes) override
    {
        return {arena().take(static_cast<std::size_t>(bytes)), [this](std::byte* block) {
                    EXPECT_TRUE(work_.empty() && copies_.empty()) << "memory goes while work is under way";
                    arena().give_back(block);
                }};
    }
    std::shared_ptr<std::byte> allocate_stage(std::int64_t bytes) override
    {
        std::shared_ptr<std::byte> stage(new std::byte[static_cast<std::size_t>(bytes)],
                                         [](const std::byte* block) { delete[] block; });
        std::memset(stage.get(), 0xFF, static_cast<std::size_t>(bytes));
        return stage;
    }

    flashomp::Report forward(const ForwardArgs& args, const Options& options) override
    {
        prepare(args, options);
        put_off([=] { flashomp::forward(on_host(args), on_host(options)); });
        return report();
    }
    flashomp::Report backward(const BackwardArgs& args, const Options& options) override
    {
        prepare(args, options);
        put_off([=] { flashomp::backward(on_host(args), on_host(options)); });
        return report();
    }
    void merge(const Partial& a, const Partial& b, const TensorView& o, const TensorView& lse,
               const Options& options) override
    {
        put_off([=] {
            flashomp::merge({on_host(a.o), on_host(a.lse)}, {on_host(b.o), on_host(b.lse)}, on_host(o), on_host(lse),
                            options);
        });
    }
    void prepare(const ForwardArgs& args, const Options& options) override
    {
        static_cast<void>(flashomp::prepare(on_host(args), on_host(options)));
    }
    void prepare(const BackwardArgs& args, const Options& options) override
    {
        static_cast<void>(flashomp::prepare(on_host(args), on_host(options)));
    }

    void copy(const ConstTensorView& from, const TensorView& to) noexcept override
    {
        elements(offload::ElementsWork::copy, from, to);
    }
    void add(const ConstTensorView& terms, const TensorView& sums) noexcept override
    {
        elements(offload::ElementsWork::add, terms, sums);
    }
    void convert(const ConstTensorView& from, const TensorView& to) noexcept override
    {
        elements(from.dtype == to.dtype ? offload::ElementsWork::copy : offload::ElementsWork::convert, from, to);
    }
    void unpack_bits(const ConstTensorView& bits, std::int64_t first, const TensorView& booleans) noexcept override
    {
        elements(offload::ElementsWork::unpack, bits, booleans, first);
    }
    void fill(const TensorView& tensor, float value) noexcept override
    {
        elements(offload::ElementsWork::fill, tensor, tensor, 0, value);
    }

    void wait() noexcept override
    {
        while (pass_time()) {
        }
    }
    bool is_idle() noexcept override
    {
        pass_some_time();
        return work_.empty();
    }
    void expect_no_failure() override
    {
        if (!failure_.empty()) {
            throw RunFailure(std::exchange(failure_, {}));
        }
    }

    Mark mark() noexcept override { return std::make_shared<Point>(Point{asked_, false}); }
    bool is_past(const Mark& mark) noexcept override
    {
        pass_some_time();
        return is_behind_us(mark);
    }
    Mark copy_out(std::byte* stage, const std::byte* here, std::int64_t bytes, const Mark& after) noexcept override
    {
        return copy_beside(stage, here, bytes, after);
    }
    Mark copy_in(std::byte* here, const std::byte* stage, std::int64_t bytes, const Mark& after) noexcept override
    {
        return copy_beside(here, stage, bytes, after);
    }

private:
    struct Point { ///< of the work, or the end of a copy
        std::int64_t asked;
        bool is_of_copy;
        bool is_past = false;
    };
    struct Copy {
        std::byte* to;
        const std::byte* from;
        std::int64_t bytes;
        Mark after, end;
    };

    static flashomp::Report report()
    {
        flashomp::Report report;
        report.backend = "openmp";
        report.on_device = true;
        return report;
    }

    void put_off(std::function<void()> work)
    {
        work_.push_back(std::move(work));
        ++asked_;
    }

    void elements(offload::ElementsWork work, const ConstTensorView& from, const TensorView& to, std::int64_t first = 0,
                  float value = 0.0F)
    {
        EXPECT_TRUE(from.memory == Memory::device && to.memory == Memory::device);
        offload::ElementsParams params = elements_params(work, from, to);
        params.first = first;
        params.value = value;
        put_off([=] { offload::elements(params, 1); });
    }

    Mark copy_beside(std::byte* to, const std::byte* from, std::int64_t bytes, const Mark& after)
    {
        copies_.push_back({to, from, bytes, after, std::make_shared<Point>(Point{0, true})});
        return copies_.back().end;
    }

    [[nodiscard]] bool is_behind_us(const Mark& mark) const
    {
        const auto* const point = static_cast<const Point*>(mark.get());
        return point == nullptr || (point->is_of_copy ? point->is_past : point->asked <= done_);
    }

    void pass_some_time()
    {
        for (auto pieces = random_() % 8; pieces > 0 && pass_time(); --pieces) {
        }
    }

    /// One piece of work or one copy, whichever it happens to be. False: there is none.
    bool pass_time()
    {
        const bool may_copy = !copies_.empty() && is_behind_us(copies_.front().after);
        if (work_.empty() && !may_copy) {
            return false;
        }
        const Door door;
        if (may_copy && (work_.empty() || random_() % 2 == 0)) {
            const Copy copy = copies_.front();
            copies_.pop_front();
            std::memcpy(copy.to, copy.from, static_cast<std::size_t>(copy.bytes));
            static_cast<Point*>(copy.end.get())->is_past = true;
            return true;
        }
        const std::function<void()> work = std::move(work_.front());
        work_.pop_front();
        try {
            if (const char* const reason = std::exchange(next_failure, nullptr); reason != nullptr) {
                throw RunFailure(reason);
            }
            work();
        } catch (const std::exception& failed) {
            failure_ = failed.what();
        }
        ++done_;
        return true;
    }

    bool is_reached_;
    std::deque<std::function<void()>> work_;
    std::deque<Copy> copies_;
    std::int64_t asked_ = 0, done_ = 0;
    std::string failure_;
    std::minstd_rand random_{std::random_device{}()};
};

} // namespace

void install_fake_device()
{
    mpi::device_sites() = [](const Options&) { return std::make_unique<FakeSite>(); };
}

void fail_on_fake_device(const char* reason)
{
    next_failure = reason;
}

void* FakeMemory::take(std::int64_t bytes)
{
    return arena().take(static_cast<std::size_t>(bytes));
}

void FakeMemory::give_back(void* block)
{
    arena().give_back(static_cast<std::byte*>(block));
}

void FakeMemory::put(void* there, const void* host, std::int64_t bytes)
{
    const Door door;
    std::memcpy(there, host, static_cast<std::size_t>(bytes));
}

void FakeMemory::get(void* host, const void* there, std::int64_t bytes)
{
    const Door door;
    std::memcpy(host, there, static_cast<std::size_t>(bytes));
}

} // namespace flashomp::testing
