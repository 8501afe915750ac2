// The calls of Python's module: arguments become views, the library runs without the GIL, results become objects.
#pragma once

#include "call_options.hpp"
#include "result.hpp"

#include <flashomp/attention.hpp>
#include <flashomp/prepared.hpp>

#include <atomic>
#include <cstddef>

namespace flashomp::python {

/// Tensors of a forward call: those of the caller, and the results.
struct ForwardTensors {
    TensorArgument q;
    TensorArgument k;
    TensorArgument v;
    Result o;
    Result lse;
    std::optional<Scratch> lse_scratch; ///< where nobody asked for lse

    ForwardTensors(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, bool return_lse,
                   CallOptions& call, Use use, bool in_order_of_q = false);
    [[nodiscard]] ForwardArgs args(Layout layout) const;
    /// o, or (o, lse); with a report (..., its dictionary).
    [[nodiscard]] nb::object finish(bool return_lse, const Report* report);
};

/// Tensors of a backward call.
struct BackwardTensors {
    TensorArgument q;
    TensorArgument k;
    TensorArgument v;
    TensorArgument o;
    TensorArgument lse;
    TensorArgument dout;
    Result dq;
    Result dk;
    Result dv;
    Result dbias; ///< not given: no gradient of the bias
    Result dsink;

    /// `gradients` are (dq, dk, dv, dbias, dsink): a tensor to be written, None, or for the last two False.
    /// `in_order_of_inputs`: new dq, dk and dv are of PyTorch and lie in memory as q, k and v do.
    BackwardTensors(const nb::tuple& inputs, const nb::tuple& gradients, CallOptions& call, Use use,
                    bool in_order_of_inputs = false);
    [[nodiscard]] BackwardArgs args(Layout layout) const;
    /// (dq, dk, dv, dbias, dsink); with a report ((...), its dictionary).
    [[nodiscard]] nb::object finish(const Report* report);
};

[[nodiscard]] nb::dict dictionary_of(const Report& report);

void bind_calls(nb::module_& module);
void bind_jax_calls(nb::module_& module);
void bind_plain_call(nb::module_& module);
void bind_prepared(nb::module_& module);
void bind_for_tests(nb::module_& module);

} // namespace flashomp::python
