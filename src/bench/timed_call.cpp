#include "timed_call.hpp"

#include <cstddef>
#include <span>
#include <variant>

namespace flashomp::bench {

/// A prepared call, its workspace, and what it did last.
class TimedCall::Run {
public:
    Run(BenchCase& bench, bool backward, const Space& space)
        : stream_(bench.options().stream), call_(backward ? Call(prepare(bench.arguments(), bench.options()))
                                                          : Call(prepare(bench.forward_arguments(), bench.options()))),
          workspace_(std::visit([](const auto& call) { return call.workspace_bytes(); }, call_), space)
    {
    }

    [[nodiscard]] bool is_for(const Options& options) const { return options.stream == stream_; }

    void operator()(BenchCase& bench)
    {
        if (auto* const forward = std::get_if<PreparedForward>(&call_)) {
            last_ = forward->run(bench.forward_arguments(), memory(forward->workspace_bytes()), stream_);
        } else {
            auto& backward = std::get<PreparedBackward>(call_);
            last_ = backward.run(bench.arguments(), memory(backward.workspace_bytes()), stream_);
        }
    }

    [[nodiscard]] Report report() const
    {
        return std::visit([this](const auto& call) { return call.report(last_); }, call_);
    }

private:
    using Call = std::variant<PreparedForward, PreparedBackward>;

    [[nodiscard]] std::span<std::byte> memory(std::int64_t bytes) const
    {
        return {static_cast<std::byte*>(workspace_.data()), static_cast<std::size_t>(bytes)};
    }

    std::optional<void*> stream_;
    Call call_;
    Workspace workspace_;
    RunReport last_;
};

TimedCall::TimedCall(BenchCase& bench, bool backward, bool is_prepared, const Space& space)
    : bench_(bench), backward_(backward), is_prepared_(is_prepared), space_(space)
{
}

TimedCall::~TimedCall() = default;

void TimedCall::operator()()
{
    if (is_prepared_) {
        call_prepared();
    } else {
        report_ = backward_ ? bench_.backward() : bench_.forward();
    }
}

void TimedCall::call_prepared()
{
    if (!run_ || !run_->is_for(bench_.options())) {
        run_.reset();
        run_ = std::make_unique<Run>(bench_, backward_, space_);
    }
    (*run_)(bench_);
}

Report TimedCall::report() const
{
    return run_ ? run_->report() : report_;
}

} // namespace flashomp::bench
