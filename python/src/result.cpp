#include "result.hpp"

#include <flashomp/error.hpp>

#include <array>
#include <nanobind/stl/string.h>
#include <new>
#include <string>
#include <utility>

namespace flashomp::python {

namespace {

nb::object numpy_dtype(DType dtype, nb::handle like)
{
    switch (dtype) {
    case DType::bfloat16:
        if (nb::getattr(nb::getattr(like, "dtype"), "name").equal(nb::str("bfloat16"))) {
            return nb::getattr(like, "dtype");
        }
        return nb::module_::import_("ml_dtypes").attr("bfloat16");
    case DType::float16:
        return nb::str("float16");
    case DType::bits:
    case DType::boolean:
        return nb::str("bool");
    default:
        return nb::str("float32");
    }
}

nb::tuple tuple_of(std::span<const std::int64_t> shape)
{
    nb::list list;
    for (const std::int64_t extent : shape) {
        list.append(extent);
    }
    return nb::tuple(list);
}

/// What makes a tensor of a framework from an object with __dlpack__(), or nothing for a framework that is not known.
nb::object importer_of(const std::string& package, nb::handle like)
{
    if (package == "jax" || package == "jaxlib") {
        return nb::module_::import_("jax.dlpack").attr("from_dlpack");
    }
    if (package == "torch") { // before 2.10, whose tensors have no table
        return nb::module_::import_("torch").attr("from_dlpack");
    }
    if (package == "tensorflow") {
        return nb::module_::import_("tensorflow.experimental.dlpack").attr("from_dlpack");
    }
    if (nb::hasattr(like, "__array_namespace__")) {
        return like.attr("__array_namespace__")().attr("from_dlpack");
    }
    return {};
}

} // namespace

Result::Result(const char* name, nb::handle given, const TensorArgument& like, DType dtype,
               std::span<const std::int64_t> shape)
{
    if (given.is_none()) {
        allocate(name, like, dtype, shape);
        return;
    }
    object_ = nb::borrow(given);
    is_given_ = true;
    tensor_ = TensorArgument(name, given, Use::output);
}

void Result::allocate(const char* name, const TensorArgument& like, DType dtype, std::span<const std::int64_t> shape)
{
    if (like.table() != nullptr) {
        allocate_in_table(like, dtype, shape);
        tensor_ = TensorArgument(name, object_, Use::input);
        return;
    }
    const std::string package = package_of(like.object());
    if (like.is_cuda()) {
        throw Error(std::string(name) + " must be given where q is in device memory of the package " + package +
                    "; flashomp makes device tensors of PyTorch only.");
    }
    const nb::object importer = package == "numpy" ? nb::object() : importer_of(package, like.object());
    if (!importer.is_valid()) {
        object_ = nb::module_::import_("numpy").attr("empty")(tuple_of(shape), numpy_dtype(dtype, like.object()));
        tensor_ = TensorArgument(name, object_, Use::output);
        return;
    }
    // JAX shares memory that is aligned to 64 bytes and copies other memory.
    constexpr std::align_val_t alignment{64};
    std::size_t bytes = static_cast<std::size_t>(size_of(dtype));
    std::array<std::size_t, TensorView::max_rank> extents{};
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
        extents[axis] = static_cast<std::size_t>(shape[axis]);
        bytes *= extents[axis];
    }
    void* memory = ::operator new(bytes, alignment);
    nb::capsule owner(memory, [](void* held) noexcept { ::operator delete (held, std::align_val_t{64}); });
    nb::ndarray<nb::array_api> array(memory, shape.size(), extents.data(), owner, nullptr, dlpack_dtype(dtype), dl_cpu,
                                     0);
    object_ = nb::cast(array, nb::rv_policy::reference);
    framework_ = importer;
    tensor_ = TensorArgument(name, object_, Use::output);
}

void Result::allocate_in_table(const TensorArgument& like, DType dtype, std::span<const std::int64_t> shape)
{
    nb::dlpack::dltensor prototype;
    prototype.device = like.device().device_type == dl_cuda_host ? nb::dlpack::device{dl_cpu, 0} : like.device();
    prototype.ndim = static_cast<std::int32_t>(shape.size());
    prototype.dtype = dlpack_dtype(dtype);
    prototype.shape = const_cast<std::int64_t*>(shape.data());
    ManagedTensorVersioned* managed = nullptr;
    std::string reason;
    const auto set_error = [](void* context, const char*, const char* message) {
        *static_cast<std::string*>(context) = message;
    };
    if (like.table()->allocate(&prototype, &managed, &reason, set_error) != 0) {
        PyErr_Clear();
        throw RunFailure("a tensor for the result could not be made (" + reason + ").");
    }
    void* object = nullptr;
    if (like.table()->to_object(managed, &object) != 0) {
        throw nb::python_error();
    }
    object_ = nb::steal(static_cast<PyObject*>(object));
}

void tell_written(const TensorArgument& tensor)
{
    if (tensor.table() == nullptr) {
        return;
    }
    try {
        nb::module_::import_("torch").attr("autograd").attr("graph").attr("increment_version")(tensor.object());
    } catch (const nb::python_error&) {
        // Tensors of inference mode have no version.
    }
}

nb::object Result::finish()
{
    if (framework_.is_valid()) {
        return framework_(object_);
    }
    if (is_given_) {
        tell_written(tensor_);
    }
    return is_sequence_major_ ? object_.attr("transpose")(1, 2) : object_;
}

Result Result::in_order_of(const char* name, const TensorArgument& like, DType dtype,
                           std::array<std::int64_t, TensorView::max_rank> shape)
{
    const TensorView& view = like.view();
    const bool is_sequence_major = view.shape[1] > 1 && view.shape[2] > 1 && view.strides[1] < view.strides[2];
    if (is_sequence_major) {
        std::swap(shape[1], shape[2]);
    }
    Result result(name, nb::none(), like, dtype, shape);
    result.is_sequence_major_ = is_sequence_major;
    return result;
}

Scratch::Scratch(const TensorArgument& like, std::span<const std::int64_t> shape)
{
    if (like.is_cuda()) {
        device_ = Result("lse", nb::none(), like, DType::float32, shape);
        view_ = device_.view();
        return;
    }
    view_ = TensorView::contiguous(nullptr, DType::float32, shape);
    host_.reset(new float[static_cast<std::size_t>(view_.elements())]);
    view_.data = host_.get();
}

} // namespace flashomp::python
