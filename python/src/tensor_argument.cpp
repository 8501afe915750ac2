#include "tensor_argument.hpp"

#include <flashomp/error.hpp>

#include <array>
#include <cstring>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <string_view>
#include <utility>
#include <vector>

namespace flashomp::python {

namespace {

using Code = nb::dlpack::dtype_code;

/// DLPack's type as flashomp's, or nothing.
std::optional<DType> dtype_of(const nb::dlpack::dtype& dtype)
{
    if (dtype.lanes != 1) {
        return {};
    }
    switch (static_cast<Code>(dtype.code)) {
    case Code::Float:
        return dtype.bits == 16   ? std::optional(DType::float16)
               : dtype.bits == 32 ? std::optional(DType::float32)
               : dtype.bits == 64 ? std::optional(DType::float64)
                                  : std::nullopt;
    case Code::Bfloat:
        return dtype.bits == 16 ? std::optional(DType::bfloat16) : std::nullopt;
    case Code::Int:
        return dtype.bits == 8    ? std::optional(DType::int8)
               : dtype.bits == 32 ? std::optional(DType::int32)
               : dtype.bits == 64 ? std::optional(DType::int64)
                                  : std::nullopt;
    case Code::Bool:
        return dtype.bits == 8 ? std::optional(DType::boolean) : std::nullopt;
    case Code::Float8_E4M3FN:
        return DType::float8_e4m3;
    default:
        return {};
    }
}

/// Types that NumPy has through the package ml_dtypes only, and that it does not hand out through DLPack.
std::optional<DType> ml_dtype_of(nb::handle object)
{
    const nb::object dtype = nb::getattr(object, "dtype", nb::none());
    const nb::object name = nb::getattr(dtype, "name", nb::none());
    if (!nb::isinstance<nb::str>(name)) {
        return {};
    }
    const auto text = nb::cast<std::string>(name);
    return text == "bfloat16"        ? std::optional(DType::bfloat16)
           : text == "float8_e4m3fn" ? std::optional(DType::float8_e4m3)
                                     : std::nullopt;
}

/// The object's type or one of its bases has this name, in this module or one below it. Nothing is imported.
bool is_a(nb::handle object, const char* type, std::string_view module)
{
    PyObject* const bases = Py_TYPE(object.ptr())->tp_mro;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bases); ++i) {
        const nb::handle base(PyTuple_GET_ITEM(bases, i));
        if (std::strcmp(reinterpret_cast<PyTypeObject*>(base.ptr())->tp_name, type) == 0 &&
            nb::cast<std::string>(nb::str(nb::getattr(base, "__module__"))).starts_with(module)) {
            return true;
        }
    }
    return false;
}

/// Takes the Python error that is set.
std::string python_message()
{
    if (PyErr_Occurred() == nullptr) {
        return "no reason was given";
    }
    nb::python_error error;
    const auto text = nb::cast<std::string>(nb::str(error.value()));
    return text.substr(0, text.find('\n')); // PyTorch adds the place in its sources
}

} // namespace

const ExchangeTable* exchange_table(nb::handle object)
{
    // The draft of the standard had the second name; PyTorch 2.10 has it.
    static PyObject* const names[] = {PyUnicode_InternFromString("__dlpack_c_exchange_api__"),
                                      PyUnicode_InternFromString("__c_dlpack_exchange_api__")};
    for (PyObject* name : names) {
        PyObject* capsule = _PyType_Lookup(Py_TYPE(object.ptr()), name); // borrowed, and no error where there is none
        if (capsule == nullptr || !PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
            continue;
        }
        const auto* table = static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
        while (table != nullptr && table->version.major != 1) {
            table = table->older;
        }
        if (table != nullptr && table->borrow != nullptr) {
            return table;
        }
    }
    return nullptr;
}

nb::dlpack::dtype dlpack_dtype(DType dtype)
{
    const auto of = [&](Code code) {
        return nb::dlpack::dtype{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * size_of(dtype)), 1};
    };
    switch (dtype) {
    case DType::float16:
    case DType::float32:
    case DType::float64:
        return of(Code::Float);
    case DType::bfloat16:
        return of(Code::Bfloat);
    case DType::int8:
    case DType::int32:
    case DType::int64:
        return of(Code::Int);
    case DType::boolean:
    case DType::bits:
        return of(Code::Bool);
    case DType::float8_e4m3:
        break;
    }
    return of(Code::Float8_E4M3FN);
}

std::string package_of(nb::handle object)
{
    const nb::object module = nb::getattr(object.type(), "__module__", nb::str(""));
    const std::string name = nb::isinstance<nb::str>(module) ? nb::cast<std::string>(module) : std::string{};
    return name.substr(0, name.find('.'));
}

std::string described(nb::handle object)
{
    std::string text = nb::cast<std::string>(nb::repr(object));
    for (char& c : text) {
        c = c == '\n' ? ' ' : c;
    }
    std::size_t longest = 60;
    if (text.size() <= longest) {
        return text;
    }
    while ((static_cast<unsigned char>(text[longest]) & 0xC0U) == 0x80U) { // within a character of UTF-8
        --longest;
    }
    return text.substr(0, longest) + "…";
}

TensorArgument::TensorArgument(const char* name, nb::handle object, Use use) : name_(name), object_(object)
{
    if (object.is_none()) {
        return;
    }
    table_ = exchange_table(object);
    if (table_ == nullptr) {
        import_through_protocol(use);
        return;
    }
    static PyObject* const requires_grad = PyUnicode_InternFromString("requires_grad");
    if (use != Use::input) {
        const nb::object needs = nb::steal(PyObject_GetAttr(object.ptr(), requires_grad));
        if (!needs.is_valid()) {
            PyErr_Clear();
        } else if (needs.ptr() == Py_True && nb::cast<bool>(nb::module_::import_("torch").attr("is_grad_enabled")())) {
            throw Error(std::string(name) + " requires a gradient, which this function does not record; it needs " +
                        "flashomp.torch.attention, torch.no_grad() or " + name + ".detach().");
        }
    }
    // PyTorch's numbers with the other sign: its table does not tell.
    static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
    const nb::object negative = nb::steal(PyObject_CallMethodNoArgs(object.ptr(), is_neg));
    if (!negative.is_valid()) {
        PyErr_Clear();
    } else if (negative.ptr() == Py_True) {
        throw Error(std::string(name) + " has PyTorch's negative bit; it must be without, such as " + name +
                    ".resolve_neg().");
    }
    nb::dlpack::dltensor tensor;
    if (table_->borrow(object.ptr(), &tensor) != 0) {
        throw Error(std::string(name) + " cannot be read through DLPack (" + python_message() +
                    "); it must be a dense tensor in memory of the CPU or of a CUDA device.");
    }
    take(tensor);
}

TensorArgument TensorArgument::without_memory(const char* name, nb::handle object)
{
    constexpr std::pair<std::string_view, DType> dtypes[] = {{"float32", DType::float32},
                                                             {"bfloat16", DType::bfloat16},
                                                             {"float16", DType::float16},
                                                             {"float64", DType::float64},
                                                             {"float8_e4m3fn", DType::float8_e4m3},
                                                             {"int8", DType::int8},
                                                             {"int32", DType::int32},
                                                             {"int64", DType::int64},
                                                             {"bool", DType::boolean}};
    const auto shape = nb::cast<std::vector<std::int64_t>>(object.attr("shape"));
    const auto dtype = nb::cast<std::string>(object.attr("dtype").attr("name"));
    nb::dlpack::dltensor tensor;
    tensor.device = {dl_cpu, 0};
    tensor.ndim = static_cast<std::int32_t>(shape.size());
    tensor.dtype = {}; // none, for a name that is not here
    for (const auto& [text, known] : dtypes) {
        if (text == dtype) {
            tensor.dtype = dlpack_dtype(known);
        }
    }
    tensor.shape = const_cast<std::int64_t*>(shape.data());
    TensorArgument argument;
    argument.name_ = name;
    argument.object_ = object;
    argument.take(tensor);
    return argument;
}

void TensorArgument::take(const nb::dlpack::dltensor& tensor)
{
    auto dtype = dtype_of(tensor.dtype);
    const std::string name(name_);
    const auto code = static_cast<Code>(tensor.dtype.code);
    if (name == "mask" && code == Code::UInt && tensor.dtype.bits == 8 && tensor.dtype.lanes == 1) {
        dtype = DType::bits; // what numpy.packbits() makes
    }
    if (!dtype) {
        const nb::object given = nb::getattr(object_, "dtype", nb::str("another type"));
        throw Error(name + " has dtype " + nb::cast<std::string>(nb::str(given)) +
                    "; allowed are float32, bfloat16, float16 and float8_e4m3 for q, k and v, int8 for a cache, bool "
                    "for masks " +
                    "and int32 for cu_seqlens and the tables of a cache.");
    }
    if (tensor.ndim < 1 || tensor.ndim > TensorView::max_rank) {
        throw Error(name + " has " + std::to_string(tensor.ndim) +
                    " axes; it must have 1 to 4, as its shape is documented.");
    }
    device_ = tensor.device;
    const bool host = device_.device_type == dl_cpu || device_.device_type == dl_cuda_host;
    if (!host && device_.device_type != dl_cuda && device_.device_type != dl_cuda_managed) {
        throw Error(name + " is on a device of DLPack's type " + std::to_string(device_.device_type) +
                    "; it must be on the CPU or on a CUDA device.");
    }
    view_.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
    view_.dtype = *dtype;
    view_.memory = host ? Memory::host : Memory::device;
    view_.rank = tensor.ndim;
    bool is_empty = false;
    for (int axis = 0; axis < tensor.ndim; ++axis) {
        is_empty = is_empty || tensor.shape[axis] == 0;
    }
    // Frameworks leave the stride of an axis that nobody walks along as it happens to be.
    std::int64_t stride = 1;
    for (auto axis = static_cast<std::size_t>(tensor.ndim); axis-- > 0;) {
        const std::int64_t extent = tensor.shape[axis];
        const bool any = tensor.strides == nullptr || is_empty || extent == 1;
        view_.shape[axis] = extent;
        view_.strides[axis] = any ? stride : tensor.strides[axis];
        stride *= extent;
    }
}

template <class Array>
bool TensorArgument::import(nb::handle object, std::optional<Array>& keep, std::optional<DType> bits_of)
{
    Array array;
    if (!nb::try_cast(object, array, false)) {
        return false;
    }
    nb::dlpack::dltensor tensor;
    tensor.data = const_cast<void*>(static_cast<const void*>(array.data()));
    tensor.device = {array.device_type(), array.device_id()};
    tensor.ndim = static_cast<std::int32_t>(array.ndim());
    tensor.dtype = bits_of ? dlpack_dtype(*bits_of) : array.dtype();
    tensor.shape = const_cast<std::int64_t*>(array.shape_ptr());
    tensor.strides = const_cast<std::int64_t*>(array.stride_ptr());
    take(tensor);
    keep.emplace(std::move(array));
    return true;
}

void TensorArgument::import_through_protocol(Use use)
{
    const std::string package = package_of(object_);
    const std::string name(name_);
    const bool writes = use == Use::output;
    // DLPack and the buffer protocol hand out such an array without its mask.
    if (is_a(object_, "MaskedArray", "numpy.ma")) {
        throw Error(name +
                    " is a masked array of NumPy, whose mask flashomp does not read; it must be a plain array, " +
                    "such as " + name + ".filled(0), and key_padding_mask or bias hides keys.");
    }
    if (writes && (package == "jax" || package == "jaxlib")) {
        throw Error(name + " is a JAX array, which cannot be written; leave " + name + " out.");
    }
    if (is_a(object_, "Tracer", "jax.")) {
        throw Error(name + " is traced by JAX and has no values yet; inside jax.jit, jax.grad and jax.vmap use " +
                    "flashomp.jax.attention.");
    }
    if (writes && package == "numpy" && nb::hasattr(object_, "flags") &&
        !nb::cast<bool>(object_.attr("flags").attr("writeable"))) {
        throw Error(name + " is a read-only array; it must be writable.");
    }
    const auto import_as = [&](nb::handle object, std::optional<DType> bits_of = {}) {
        return writes ? import(object, writable_, bits_of) : import(object, readable_, bits_of);
    };
    if (import_as(object_)) {
        return;
    }
    if (package == "numpy") {
        const auto dtype = ml_dtype_of(object_);
        // The bits of a type that is none of NumPy's own, under one that is.
        if (dtype && import_as(object_.attr("view")(*dtype == DType::bfloat16 ? "int16" : "int8"), dtype)) {
            return;
        }
    }
    if (nb::hasattr(object_, "__dlpack__")) {
        const nb::object given = nb::getattr(object_, "dtype", nb::none());
        throw Error(name + " cannot be read through DLPack" + (writes ? " for writing" : "") + "; its dtype is " +
                    nb::cast<std::string>(nb::str(given)) +
                    ", and a dense tensor of float32, bfloat16, float16, float8_e4m3, bool or int32 is needed.");
    }
    throw nb::type_error((name + " was " + described(object_) + ", of type " +
                          nb::cast<std::string>(nb::getattr(object_.type(), "__name__")) +
                          "; it must be a tensor of NumPy, PyTorch, JAX or another package with __dlpack__().")
                             .c_str());
}

} // namespace flashomp::python
