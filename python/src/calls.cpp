#include "calls.hpp"
#include "stream_scope.hpp"

#include <flashomp/cache.hpp>
#include <flashomp/device.hpp>
#include <flashomp/error.hpp>

#include <nanobind/stl/string.h>

#include <array>
#include <utility>

namespace flashomp::python {

namespace {

/// Extents of a new tensor. A tensor has as many as the library's views.
class Shape {
public:
    Shape(std::initializer_list<std::int64_t> extents) : rank_(extents.size())
    {
        std::copy(extents.begin(), extents.end(), extents_.begin());
    }
    explicit Shape(const TensorView& view) : extents_(view.shape), rank_(static_cast<std::size_t>(view.rank)) {}

    [[nodiscard]] std::int64_t& last() { return extents_[rank_ - 1]; }
    [[nodiscard]] std::span<const std::int64_t> extents() const { return std::span(extents_).first(rank_); }
    [[nodiscard]] const std::array<std::int64_t, TensorView::max_rank>& four_extents() const { return extents_; }

private:
    std::array<std::int64_t, TensorView::max_rank> extents_{};
    std::size_t rank_;
};

void expect_given(const TensorArgument& tensor)
{
    if (!tensor) {
        throw Error(std::string(tensor.name()) + " was None; it must be a tensor.");
    }
}

/// The rank decides the shapes of results that are made before the library looks.
void expect_rank(const TensorArgument& tensor)
{
    expect_given(tensor);
    const int rank = tensor.view().rank;
    if (rank != 3 && rank != 4) {
        throw Error(std::string(tensor.name()) + " has " + std::to_string(rank) + (rank == 1 ? " axis" : " axes") +
                    "; it must have 4, or 3 where sequences are packed.");
    }
}

Shape shape_of_lse(const TensorArgument& q, Layout layout)
{
    const TensorView view = q.view(layout);
    return view.rank == 4 ? Shape{view.shape[0], view.shape[2], view.shape[1]} : Shape{view.shape[1], view.shape[0]};
}

nb::object attention(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, bool return_lse,
                     bool return_report, bool refuse_gradients, const nb::dict& keywords, bool in_order_of_q)
{
    const Use use = refuse_gradients ? Use::input_without_gradient : Use::input;
    CallOptions call(keywords, use);
    ForwardTensors tensors(q, k, v, out, lse, return_lse, call, use, in_order_of_q);
    const ForwardArgs args = tensors.args(call.layout);
    Report report;
    {
        const nb::gil_scoped_release released;
        report = forward(args, call.options);
    }
    return tensors.finish(return_lse, return_report ? &report : nullptr);
}

nb::object attention_backward(const nb::tuple& inputs, const nb::tuple& gradients, bool return_report,
                              bool refuse_gradients, const nb::dict& keywords, bool in_order_of_inputs)
{
    const Use use = refuse_gradients ? Use::input_without_gradient : Use::input;
    CallOptions call(keywords, use);
    BackwardTensors tensors(inputs, gradients, call, use, in_order_of_inputs);
    const BackwardArgs args = tensors.args(call.layout);
    Report report;
    {
        const nb::gil_scoped_release released;
        report = backward(args, call.options);
    }
    return tensors.finish(return_report ? &report : nullptr);
}

nb::object merge_parts(nb::handle o_a, nb::handle lse_a, nb::handle o_b, nb::handle lse_b, nb::handle out,
                       nb::handle lse_out, const nb::dict& keywords)
{
    const Use use = Use::input_without_gradient;
    CallOptions call(keywords, use);
    const std::array<TensorArgument, 4> parts{TensorArgument("o_a", o_a, use), TensorArgument("lse_a", lse_a, use),
                                              TensorArgument("o_b", o_b, use), TensorArgument("lse_b", lse_b, use)};
    for (const TensorArgument& part : parts) {
        expect_given(part);
    }
    const std::array<const TensorArgument*, 4> given{&parts[0], &parts[1], &parts[2], &parts[3]};
    place(call, given);
    const StreamScope scope(parts[0], call.options.stream);
    Result o("out", out, parts[0], parts[0].view().dtype, Shape(parts[0].view()).extents());
    Result lse("lse_out", lse_out, parts[1], DType::float32, Shape(parts[1].view()).extents());
    const std::array<const TensorArgument*, 6> all{&parts[0], &parts[1],   &parts[2],
                                                   &parts[3], &o.tensor(), &lse.tensor()};
    place(call, all);
    {
        const nb::gil_scoped_release released;
        merge({parts[0].view(call.layout), parts[1].view()}, {parts[2].view(call.layout), parts[3].view()},
              o.view(call.layout), lse.view(), call.options);
    }
    return nb::make_tuple(o.finish(), lse.finish());
}

/// tensors: k, v, k_cache, v_cache, rotary_cos, rotary_sin, q, q_out. Returns the turned q, or None.
nb::object append_rows(const nb::tuple& tensors, bool interleaved, const nb::dict& keywords)
{
    const Use use = Use::input_without_gradient;
    CallOptions call(keywords, use);
    const TensorArgument k("k", tensors[0], use), v("v", tensors[1], use);
    const TensorArgument k_cache("k_cache", tensors[2], Use::output), v_cache("v_cache", tensors[3], Use::output);
    const TensorArgument cos("rotary_cos", tensors[4], use), sin("rotary_sin", tensors[5], use);
    const TensorArgument q("q", tensors[6], use);
    expect_rank(k);
    expect_rank(k_cache);
    for (const TensorArgument* const tensor : {&v, &v_cache, &q}) {
        if (*tensor) {
            expect_rank(*tensor);
        }
    }
    const std::array<const TensorArgument*, 7> given{&k, &v, &k_cache, &v_cache, &cos, &sin, &q};
    place(call, given);
    const StreamScope scope(k, call.options.stream);
    Result q_out;
    if (q) {
        q_out = Result("q_out", tensors[7], q, q.view().dtype, Shape(q.view()).extents());
    }
    const std::array<const TensorArgument*, 2> results{&k, &q_out.tensor()};
    place(call, results);
    AppendArgs args;
    args.k = k.view(call.layout);
    args.v = v.view(call.layout);
    args.k_cache = k_cache.view(call.layout);
    args.v_cache = v_cache.view(call.layout);
    args.rotary = {cos.view(), sin.view(), interleaved};
    if (q) {
        args.q = q.view(call.layout);
        args.q_out = q_out.view(call.layout);
    }
    {
        const nb::gil_scoped_release released;
        append(args, call.options);
    }
    tell_written(k_cache);
    tell_written(v_cache);
    return q ? q_out.finish() : nb::none();
}

void write_dropout_mask(nb::handle out, const nb::dict& keywords)
{
    const CallOptions call(keywords, Use::input);
    const TensorArgument mask("out", out, Use::output);
    if (mask.is_cuda()) {
        throw Error("out is in device memory; it must be on the CPU.");
    }
    const TensorView view = mask.view(call.layout);
    {
        const nb::gil_scoped_release released;
        dropout_mask(call.options.dropout, view);
    }
    tell_written(mask);
}

nb::list devices_of(nb::handle backend)
{
    nb::list list;
    for (const DeviceInfo& device : devices(read_backend(backend))) {
        nb::dict entry;
        entry["index"] = device.index;
        entry["name"] = device.name;
        entry["capability"] = device.capability;
        entry["multiprocessors"] = device.multiprocessors;
        entry["driver"] = device.driver;
        entry["l2_bytes"] = device.l2_bytes;
        entry["shared_bytes"] = device.shared_bytes;
        entry["shares_cuda_memory"] = device.shares_cuda_memory;
        list.append(entry);
    }
    return list;
}

} // namespace

ForwardTensors::ForwardTensors(nb::handle q_, nb::handle k_, nb::handle v_, nb::handle out, nb::handle lse_,
                               bool return_lse, CallOptions& call, Use use, bool in_order_of_q)
    : q("q", q_, use), k("k", k_, use), v("v", v_, use)
{
    expect_rank(q);
    expect_rank(k);
    expect_rank(v);
    const std::array<const TensorArgument*, 3> inputs{&q, &k, &v};
    place(call, inputs);
    const StreamScope scope(q, call.options.stream);
    Shape shape(q.view());
    shape.last() = v.view().shape[static_cast<std::size_t>(v.view().rank - 1)];
    const DType dtype = output_type_of(q.view().dtype);
    o = in_order_of_q && call.layout == Layout::bhsd && q.view().rank == 4
            ? Result::in_order_of("out", q, dtype, shape.four_extents())
            : Result("out", out, q, dtype, shape.extents());
    const Shape lse_shape = shape_of_lse(q, call.layout);
    if (return_lse || !lse_.is_none()) {
        lse = Result("lse", lse_, q, DType::float32, lse_shape.extents());
        const std::array<const TensorArgument*, 3> outputs{&q, &o.tensor(), &lse.tensor()};
        place(call, outputs);
    } else {
        lse_scratch.emplace(q, lse_shape.extents());
        const std::array<const TensorArgument*, 2> outputs{&q, &o.tensor()};
        place(call, outputs);
    }
}

ForwardArgs ForwardTensors::args(Layout layout) const
{
    return {q.view(layout), k.view(layout), v.view(layout), o.view(layout),
            lse_scratch ? lse_scratch->view() : lse.view()};
}

nb::object ForwardTensors::finish(bool return_lse, const Report* report)
{
    const nb::object out = o.finish();
    const nb::object stored = return_lse ? lse.finish() : nb::object();
    if (report == nullptr) {
        return return_lse ? nb::object(nb::make_tuple(out, stored)) : out;
    }
    return return_lse ? nb::make_tuple(out, stored, dictionary_of(*report))
                      : nb::make_tuple(out, dictionary_of(*report));
}

BackwardTensors::BackwardTensors(const nb::tuple& inputs, const nb::tuple& gradients, CallOptions& call, Use use,
                                 bool in_order_of_inputs)
    : q("q", inputs[0], use), k("k", inputs[1], use), v("v", inputs[2], use), o("o", inputs[3], use),
      lse("lse", inputs[4], use), dout("dout", inputs[5], use)
{
    for (const TensorArgument* tensor : {&q, &k, &v, &o, &dout}) {
        expect_rank(*tensor);
    }
    expect_given(lse);
    const std::array<const TensorArgument*, 6> given{&q, &k, &v, &o, &lse, &dout};
    place(call, given);
    const StreamScope scope(q, call.options.stream);
    const auto like = [](const TensorArgument& input, const char* name, nb::handle gradient) {
        return Result(name, gradient, input, input.view().dtype, Shape(input.view()).extents());
    };
    const auto in_order = [&](const TensorArgument& input, const char* name, nb::handle gradient) {
        const bool is_permutable = call.layout == Layout::bhsd && input.view().rank == 4;
        return in_order_of_inputs && gradient.is_none() && is_permutable
                   ? Result::in_order_of(name, input, input.view().dtype, Shape(input.view()).four_extents())
                   : like(input, name, gradient);
    };
    dq = in_order(q, "dq", gradients[0]);
    dk = in_order(k, "dk", gradients[1]);
    dv = in_order(v, "dv", gradients[2]);
    const auto optional = [&](const char* option, const char* name, nb::handle gradient) {
        if (gradient.ptr() == Py_False) {
            return Result();
        }
        for (const TensorArgument& tensor : call.tensors) {
            if (std::string_view(tensor.name()) == option) {
                return like(tensor, name, gradient);
            }
        }
        throw Error(std::string(name) + " is the gradient of " + option + ", which was not given; leave " + name +
                    " out.");
    };
    dbias = optional("bias", "dbias", gradients[3]);
    dsink = optional("sink", "dsink", gradients[4]);
    const std::array<const TensorArgument*, 6> outputs{&q,           &dq.tensor(),    &dk.tensor(),
                                                       &dv.tensor(), &dbias.tensor(), &dsink.tensor()};
    place(call, outputs);
}

BackwardArgs BackwardTensors::args(Layout layout) const
{
    return {q.view(layout),  k.view(layout),  v.view(layout),  o.view(layout), lse.view(),  dout.view(layout),
            dq.view(layout), dk.view(layout), dv.view(layout), dbias.view(),   dsink.view()};
}

nb::object BackwardTensors::finish(const Report* report)
{
    const auto object = [](Result& result) { return result.tensor() ? result.finish() : nb::none(); };
    nb::tuple gradients = nb::make_tuple(dq.finish(), dk.finish(), dv.finish(), object(dbias), object(dsink));
    return report == nullptr ? nb::object(gradients) : nb::object(nb::make_tuple(gradients, dictionary_of(*report)));
}

nb::dict dictionary_of(const Report& report)
{
    nb::dict dictionary;
    dictionary["backend"] = report.backend;
    dictionary["machine"] = report.machine;
    dictionary["ran_on"] = report.ran_on;
    dictionary["on_device"] = report.on_device;
    dictionary["tuned"] = report.tuned;
    dictionary["computed_twice"] = report.computed_twice;
    dictionary["note"] = report.note;
    dictionary["seconds"] = report.seconds;
    dictionary["extra_bytes"] = report.extra_bytes;
    dictionary["staged_bytes"] = report.staged_bytes;
    dictionary["standard_bytes"] = report.standard_bytes;
    return dictionary;
}

void bind_calls(nb::module_& module)
{
    using namespace nb::literals;
    module.def("attention", &attention, "q"_a.none(), "k"_a.none(), "v"_a.none(), "out"_a.none(), "lse"_a.none(),
               "return_lse"_a, "return_report"_a, "refuse_gradients"_a, "options"_a, "in_order_of_q"_a = false,
               "forward(), as flashomp.attention calls it.");
    module.def("attention_backward", &attention_backward, "inputs"_a, "gradients"_a, "return_report"_a,
               "refuse_gradients"_a, "options"_a, "in_order_of_inputs"_a = false,
               "backward(), as flashomp.attention_backward calls it.");
    module.def("merge", &merge_parts, "o_a"_a.none(), "lse_a"_a.none(), "o_b"_a.none(), "lse_b"_a.none(),
               "out"_a.none(), "lse_out"_a.none(), "options"_a, "merge(), as flashomp.merge calls it.");
    module.def("append", &append_rows, "tensors"_a, "interleaved"_a, "options"_a,
               "append(), as flashomp.append calls it.");
    module.def("dropout_mask", &write_dropout_mask, "out"_a, "options"_a,
               "dropout_mask(), as flashomp.dropout_mask calls it.");
    module.def("devices", &devices_of, "backend"_a, "devices(), a dictionary for each GPU.");
    module.def(
        "host_isa", [](nb::handle dtype) { return dtype.is_none() ? host_isa() : host_isa(read_dtype(dtype)); },
        "dtype"_a.none(), "host_isa().");
}

} // namespace flashomp::python
