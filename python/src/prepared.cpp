#include "calls.hpp"
#include "workspaces.hpp"

#include <flashomp/error.hpp>

#include <nanobind/stl/unique_ptr.h>

#include <utility>

namespace flashomp::python {

namespace {

/// Only one thread may be in a run. The others get a sentence instead of a damaged workspace.
class Turn {
public:
    explicit Turn(std::atomic<bool>& busy) : busy_(busy)
    {
        if (busy_.exchange(true, std::memory_order_acquire)) {
            throw Error(
                "this prepared call is running in another thread; each thread needs a prepared call of its own.");
        }
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    Turn(Turn&&) = delete;
    Turn& operator=(Turn&&) = delete;
    ~Turn() { busy_.store(false, std::memory_order_release); }

private:
    std::atomic<bool>& busy_;
};

/// What prepared forward and backward calls have in common.
template <class Args>
class PreparedCall {
public:
    /// Makes the call from tensors that were read with `call`. The dictionary keeps the options' tensors alive.
    PreparedCall(const Args& args, CallOptions& call, nb::dict keywords, const TensorArgument& like)
        : layout_(call.layout), keywords_(std::move(keywords)), prepared_(prepare(args, call.options)),
          workspaces_(prepared_.workspace_bytes(), prepared_.workspace_memory())
    {
        workspaces_.of(like, call.options.stream); // so that runs on this stream allocate none
    }

    [[nodiscard]] Layout layout() const { return layout_; }
    [[nodiscard]] std::int64_t workspace_bytes() const { return prepared_.workspace_bytes(); }

    /// The prepared options with those that this run has instead.
    [[nodiscard]] nb::dict with(const nb::dict& changes) const
    {
        nb::dict all;
        all.update(keywords_);
        all.update(changes);
        return all;
    }

    /// Throws Error unless a run's tensors have the order of axes that the call was prepared for.
    void expect_layout(Layout layout) const
    {
        if (layout != layout_) {
            throw Error(
                "layout differs from that of the prepared call; a run has the layout that prepare() was given.");
        }
    }

    /// `like`: a tensor of the run.
    Report run(const Args& args, const CallOptions& call, bool changed, const TensorArgument& like)
    {
        const Turn turn(busy_);
        const std::span<std::byte> workspace = workspaces_.of(like, call.options.stream);
        const nb::gil_scoped_release released;
        // A tensor of the options may have got other memory since, which only its framework knows.
        const RunReport done = changed || !call.tensors.empty() ? prepared_.run(args, call.options, workspace)
                                                                : prepared_.run(args, workspace, call.options.stream);
        return prepared_.report(done);
    }

private:
    Layout layout_;
    nb::dict keywords_;
    Prepared<Args> prepared_;
    Workspaces workspaces_;
    std::atomic<bool> busy_{false};
};

nb::dict copy_of(const nb::dict& dictionary)
{
    nb::dict copy;
    copy.update(dictionary);
    return copy;
}

using ForwardCall = PreparedCall<ForwardArgs>;
using BackwardCall = PreparedCall<BackwardArgs>;

std::unique_ptr<ForwardCall> prepare_forward(nb::handle q, nb::handle k, nb::handle v, const nb::dict& keywords)
{
    CallOptions call(keywords, Use::input);
    ForwardTensors tensors(q, k, v, nb::none(), nb::none(), true, call, Use::input);
    return std::make_unique<ForwardCall>(tensors.args(call.layout), call, copy_of(keywords), tensors.q);
}

nb::object run_forward(ForwardCall& prepared, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
                       bool return_lse, bool return_report, const nb::dict& changes)
{
    const nb::dict keywords = prepared.with(changes);
    CallOptions call(keywords, Use::input_without_gradient);
    prepared.expect_layout(call.layout);
    ForwardTensors tensors(q, k, v, out, lse, return_lse, call, Use::input_without_gradient);
    const Report report = prepared.run(tensors.args(prepared.layout()), call, changes.size() != 0, tensors.q);
    return tensors.finish(return_lse, return_report ? &report : nullptr);
}

std::unique_ptr<BackwardCall> prepare_backward(const nb::tuple& inputs, const nb::tuple& gradients,
                                               const nb::dict& keywords)
{
    CallOptions call(keywords, Use::input);
    BackwardTensors tensors(inputs, gradients, call, Use::input);
    return std::make_unique<BackwardCall>(tensors.args(call.layout), call, copy_of(keywords), tensors.q);
}

nb::object run_backward(BackwardCall& prepared, const nb::tuple& inputs, const nb::tuple& gradients, bool return_report,
                        const nb::dict& changes)
{
    const nb::dict keywords = prepared.with(changes);
    CallOptions call(keywords, Use::input_without_gradient);
    prepared.expect_layout(call.layout);
    BackwardTensors tensors(inputs, gradients, call, Use::input_without_gradient);
    const Report report = prepared.run(tensors.args(prepared.layout()), call, changes.size() != 0, tensors.q);
    return tensors.finish(return_report ? &report : nullptr);
}

} // namespace

void bind_prepared(nb::module_& module)
{
    using namespace nb::literals;
    nb::class_<ForwardCall>(module, "PreparedForward", "A prepared forward call; flashomp.PreparedForward holds one.")
        .def("run", &run_forward, "q"_a.none(), "k"_a.none(), "v"_a.none(), "out"_a.none(), "lse"_a.none(),
             "return_lse"_a, "return_report"_a, "options"_a)
        .def_prop_ro("workspace_bytes", &ForwardCall::workspace_bytes);
    nb::class_<BackwardCall>(module, "PreparedBackward",
                             "A prepared backward call; flashomp.PreparedBackward holds one.")
        .def("run", &run_backward, "inputs"_a, "gradients"_a, "return_report"_a, "options"_a)
        .def_prop_ro("workspace_bytes", &BackwardCall::workspace_bytes);
    module.def("prepare", &prepare_forward, "q"_a.none(), "k"_a.none(), "v"_a.none(), "options"_a,
               "prepare() of a forward call.");
    module.def("prepare_backward", &prepare_backward, "inputs"_a, "gradients"_a, "options"_a,
               "prepare() of a backward call.");
}

} // namespace flashomp::python
