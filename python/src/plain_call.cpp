// The call of sdpa() that most programs make, without a mask, dropout and a gradient: looked at here, since in Python
// the looking takes longer than attention does when a token is decoded.
#include "calls.hpp"

#include <flashomp/attention.hpp>
#include <flashomp/error.hpp>

#include <array>
#include <cmath>

#include <nanobind/stl/optional.h>

namespace flashomp::python {

namespace {

/// torch.Tensor and torch.nn.Parameter, which flashomp.torch names when it is imported. Importing them here would let
/// another thread of Python in while this one makes a variable of a function.
std::array<PyObject*, 2> plain_types{};

bool is_plain_tensor(nb::handle object)
{
    const auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));
    return type == plain_types[0] || type == plain_types[1];
}

bool requires_gradient(nb::handle tensor)
{
    static PyObject* const name = PyUnicode_InternFromString("requires_grad");
    return nb::steal(PyObject_GetAttr(tensor.ptr(), name)).ptr() != Py_False;
}

/// A dense tensor of four axes in host memory, the last one of at most `most`, or nothing.
std::optional<TensorArgument> read_plain(const char* name, nb::handle object, std::int64_t most, bool grad_enabled)
{
    if (!is_plain_tensor(object) || (grad_enabled && requires_gradient(object))) {
        return {};
    }
    try {
        TensorArgument tensor(name, object, Use::input);
        const TensorView& view = tensor.view();
        const bool fits =
            view.rank == 4 && view.memory == Memory::host && view.strides[3] == 1 && view.shape[3] >= 1 &&
            view.shape[3] <= most &&
            (view.dtype == DType::float32 || view.dtype == DType::bfloat16 || view.dtype == DType::float16);
        return fits ? std::optional(std::move(tensor)) : std::nullopt;
    } catch (const Error&) {
        return {};
    }
}

constexpr std::int64_t most_heads = std::int64_t{1} << 20; // the library's limit

bool fit_together(const TensorView& q, const TensorView& k, const TensorView& v, bool enable_gqa)
{
    const std::int64_t heads = k.shape[1];
    return q.dtype == k.dtype && q.dtype == v.dtype && q.shape[0] == k.shape[0] && q.shape[0] == v.shape[0] &&
           v.shape[1] == heads && k.shape[2] == v.shape[2] && q.shape[3] == k.shape[3] &&
           (q.shape[1] == heads || (enable_gqa && heads > 0 && q.shape[1] % heads == 0)) && q.shape[1] >= 1 &&
           q.shape[1] <= most_heads;
}

nb::object plain_attention(nb::handle q_, nb::handle k_, nb::handle v_, std::optional<double> scale, bool is_causal,
                           bool enable_gqa, bool grad_enabled, int threads)
{
    const auto q = read_plain("query", q_, most_head_dim, grad_enabled);
    const auto k = q ? read_plain("key", k_, most_head_dim, grad_enabled) : std::nullopt;
    const auto v = k ? read_plain("value", v_, most_head_dim_v, grad_enabled) : std::nullopt;
    const double size = scale ? std::abs(*scale) : 1.0;
    if (!v || !fit_together(q->view(), k->view(), v->view(), enable_gqa) ||
        !(size == 0.0 || (size >= 1.2e-38 && size <= 2.35e38))) {
        return nb::none();
    }
    const auto& [batch, heads, rows, depth] = q->view().shape;
    Result o = Result::in_order_of("out", *q, q->view().dtype, std::array{batch, heads, rows, v->view().shape[3]});
    const Scratch lse(*q, std::array<std::int64_t, 3>{batch, heads, rows});
    Options options;
    options.scale = scale;
    options.causal = is_causal ? Causal::top_left : Causal::none;
    options.threads = threads;
    const ForwardArgs args{q->view(Layout::bhsd), k->view(Layout::bhsd), v->view(Layout::bhsd), o.view(Layout::bhsd),
                           lse.view()};
    {
        const nb::gil_scoped_release released;
        forward(args, options);
    }
    return o.finish();
}

} // namespace

void bind_plain_call(nb::module_& module)
{
    using namespace nb::literals;
    module.def(
        "set_plain_types",
        [](const nb::object& tensor, const nb::object& parameter) {
            plain_types = {tensor.inc_ref().ptr(), parameter.inc_ref().ptr()};
        },
        "tensor"_a, "parameter"_a, "The types of tensors that plain_attention() takes.");
    module.def("plain_attention", &plain_attention, "query"_a.none(), "key"_a.none(), "value"_a.none(),
               "scale"_a.none(), "is_causal"_a, "enable_gqa"_a, "grad_enabled"_a, "threads"_a,
               "The result of flashomp.torch.sdpa for a plain call, or None for one that must be looked at closely.");
}

} // namespace flashomp::python
