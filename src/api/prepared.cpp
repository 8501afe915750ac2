#include "flashomp/prepared.hpp"

#include "overlap.hpp"
#include "prepared_call.hpp"
#include "problem_tensors.hpp"
#include "validate.hpp"
#include "validate_cache.hpp"
#include "validate_views.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flashomp {

namespace {

/// Vector loads and tensor maps of kernels ask for no more.
constexpr std::uintptr_t most_alignment = 16;

/// Where a tensor without an address is until it has one: no process has memory there, no two of them overlap (a tensor
/// spans less than 2^56 bytes), and any alignment is met.
constexpr std::uintptr_t nowhere = std::uintptr_t{1} << 56U;

std::uintptr_t address_of(const ConstTensorView& view)
{
    return reinterpret_cast<std::uintptr_t>(view.data);
}

bool has_address(const ConstTensorView& view)
{
    return view.data != nullptr && address_of(view) < nowhere;
}

Problem validated(Problem problem)
{
    if (problem.options.backend == Backend::reference) {
        throw Error("backend was reference, which cannot be prepared: allowed are auto, openmp and cuda.");
    }
    std::uintptr_t next = nowhere;
    each_tensor(problem, [&](const char* name, auto& view) {
        if (view && view.data == nullptr && !std::string_view(name).starts_with("cu_seqlens")) {
            view.data = reinterpret_cast<void*>(next); // NOLINT(performance-no-int-to-ptr)
            next += nowhere;
        }
    });
    validate(problem);
    return problem;
}

/// What tells a tensor from the prepared one besides its address, or an empty text. An axis of one element has any
/// stride.
std::string difference(const ConstTensorView& view, const ConstTensorView& prepared)
{
    const auto described = [](const ConstTensorView& of) {
        return of ? fmt::format("{} {}", name_of(of.dtype), shape_string(of)) : std::string("not given");
    };
    const auto rank = static_cast<std::size_t>(view.rank);
    if (view.rank != prepared.rank || view.dtype != prepared.dtype ||
        !std::equal(view.shape.begin(), view.shape.begin() + view.rank, prepared.shape.begin())) {
        return fmt::format("is {}, but the call was prepared for {}", described(view), described(prepared));
    }
    if (view.memory != prepared.memory) {
        return fmt::format("is in {0} memory, but the call was prepared for {1} memory",
                           view.memory == Memory::host ? "host" : "device",
                           prepared.memory == Memory::host ? "host" : "device");
    }
    for (std::size_t axis = 0; axis < rank; ++axis) {
        if (view.shape.at(axis) > 1 && view.strides.at(axis) != prepared.strides.at(axis)) {
            return fmt::format("has stride {} on axis {}, but the call was prepared for {}", view.strides.at(axis),
                               axis, prepared.strides.at(axis));
        }
    }
    return {};
}

/// Throws Error unless the tensor differs from the prepared one in its address alone, and has one.
void check_as_prepared(const char* name, const ConstTensorView& view, const ConstTensorView& prepared, bool is_on_gpu)
{
    check_view(name, view);
    if (const std::string differs = difference(view, prepared); !differs.empty()) {
        throw Error(fmt::format("{} {}; a run may change addresses alone.", name, differs));
    }
    if (!view || view.elements() == 0) {
        return;
    }
    if (!has_address(view)) {
        throw Error(fmt::format("{} has no data; a run needs its elements.", name));
    }
    const bool kernels_see_it = is_on_gpu && view.memory == Memory::device;
    const std::uintptr_t wanted = kernels_see_it
                                      ? std::min(most_alignment, address_of(prepared) & ~(address_of(prepared) - 1))
                                      : static_cast<std::uintptr_t>(size_of(view.dtype));
    if (address_of(view) % wanted != 0) {
        throw Error(fmt::format("{} begins at address {:#x}; the call was prepared for multiples of {}.", name,
                                address_of(view), wanted));
    }
}

/// Leaves out the tensors whose values prepare() has read: nobody looks at them again, so they may be gone.
Problem without_boundaries(Problem problem)
{
    problem.options.cu_seqlens_q = problem.options.cu_seqlens_k = {};
    return problem;
}

/// Whether the options differ in no more than what a run may change.
bool are_as_prepared(Options options, const Options& prepared)
{
    for (const TensorOption& option : tensor_options) {
        options.*option.member = prepared.*option.member; // looked at one by one
    }
    options.dropout.seed = prepared.dropout.seed;
    options.dropout.offset = prepared.dropout.offset;
    options.score_mod.object = prepared.score_mod.object;
    options.stream = prepared.stream;
    return options == prepared;
}

} // namespace

template <class Args>
class Prepared<Args>::State {
public:
    explicit State(const Problem& problem)
        : options_(problem.options), batch_(problem.batch), seqlen_k_(problem.seqlen_k), call_(problem, false)
    {
        const Problem prepared = without_boundaries(problem);
        each_tensor(prepared, [this](const char* /*name*/, const ConstTensorView& view) { views_.push_back(view); });
    }

    [[nodiscard]] const PreparedCall& call() const { return call_; }
    [[nodiscard]] const Options& options() const { return options_; }

    RunReport run(const Args& args, const Options& options, std::span<std::byte> workspace)
    {
        if (options.stream.has_value() != options_.stream.has_value()) {
            throw Error(options.stream
                            ? "stream was given, but the call was prepared without one; a run has a stream "
                              "where Options::stream was given to prepare()."
                            : "stream was not given, but the call was prepared with one; a run must name its "
                              "stream then.");
        }
        if (!are_as_prepared(options, options_)) {
            throw Error(
                "options differ from those that the call was prepared with; a run may change the addresses of "
                "their tensors, the seed and offset of dropout, the object of score_mod, and which stream it is.");
        }
        Problem problem = without_boundaries(problem_of(args, options));
        problem.batch = batch_;
        problem.seqlen_k = seqlen_k_;
        auto prepared = views_.begin();
        each_tensor(problem, [&](const char* name, const ConstTensorView& view) {
            check_as_prepared(name, view, *prepared++, !call_.space().is_host());
        });
        check_outputs(problem);
        check_workspace(problem, workspace);
        check_cache_values(problem);
        return call_.run(problem, workspace.data(), options.stream.value_or(nullptr));
    }

private:
    void check_workspace(const Problem& problem, std::span<std::byte> workspace) const
    {
        const std::int64_t bytes = call_.workspace_bytes();
        if (static_cast<std::int64_t>(workspace.size()) < bytes) {
            throw Error(fmt::format("workspace has {} bytes; it must have {} or more.", workspace.size(), bytes));
        }
        if (const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
            bytes > 0 && (address % workspace_alignment != 0 || address == 0)) {
            throw Error(fmt::format("workspace begins at address {:#x}; it must be a multiple of {} and not null.",
                                    address, workspace_alignment));
        }
        const auto memory = call_.space().is_host() ? Memory::host : Memory::device;
        const auto view = ConstTensorView::contiguous(workspace.data(), DType::boolean, {bytes}, memory);
        each_tensor(problem, [&](const char* name, const ConstTensorView& tensor) {
            if (tensor && overlap(view, tensor)) {
                throw Error(fmt::format("workspace overlaps {} in memory; it must not share memory with a tensor of "
                                        "the call.",
                                        name));
            }
        });
    }

    Options options_;
    std::int64_t batch_, seqlen_k_;
    PreparedCall call_;
    std::vector<ConstTensorView> views_; ///< in each_tensor()'s order
};

template <class Args>
Prepared<Args>::Prepared(std::unique_ptr<State> state) : state_(std::move(state))
{
}
template <class Args>
Prepared<Args>::Prepared(Prepared&& other) noexcept = default;
template <class Args>
Prepared<Args>& Prepared<Args>::operator=(Prepared&& other) noexcept = default;
template <class Args>
Prepared<Args>::~Prepared() = default;

template <class Args>
std::int64_t Prepared<Args>::workspace_bytes() const
{
    return state_->call().workspace_bytes();
}

template <class Args>
Memory Prepared<Args>::workspace_memory() const
{
    return state_->call().space().is_host() ? Memory::host : Memory::device;
}

template <class Args>
RunReport Prepared<Args>::run(const Args& args, std::span<std::byte> workspace, std::optional<void*> stream)
{
    Options options = state_->options();
    options.stream = stream;
    return state_->run(args, options, workspace);
}

template <class Args>
RunReport Prepared<Args>::run(const Args& args, const Options& options, std::span<std::byte> workspace)
{
    return state_->run(args, options, workspace);
}

template <class Args>
Report Prepared<Args>::report(const RunReport& run) const
{
    return state_->call().report(run);
}

template class Prepared<ForwardArgs>;
template class Prepared<BackwardArgs>;

PreparedForward prepare(const ForwardArgs& args, const Options& options)
{
    return PreparedForward(std::make_unique<PreparedForward::State>(validated(problem_of(args, options))));
}

PreparedBackward prepare(const BackwardArgs& args, const Options& options)
{
    return PreparedBackward(std::make_unique<PreparedBackward::State>(validated(problem_of(args, options))));
}

} // namespace flashomp
