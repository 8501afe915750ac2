#include "stream_scope.hpp"

#include <cstdint>

namespace flashomp::python {

namespace {

/// PyTorch knows the stream that CUDA calls cudaStreamLegacy as 0.
std::uintptr_t handle_of(void* stream)
{
    const auto handle = reinterpret_cast<std::uintptr_t>(stream);
    return handle == 1 ? 0 : handle;
}

} // namespace

StreamScope::StreamScope(const TensorArgument& like, std::optional<void*> stream)
{
    if (!stream || !like.is_cuda() || like.table() == nullptr) {
        return;
    }
    const int device = like.device().device_id;
    void* current = nullptr;
    if (like.table()->current_stream(dl_cuda, device, &current) != 0) {
        throw nb::python_error();
    }
    if (handle_of(current) == handle_of(*stream)) {
        return;
    }
    const nb::object cuda = nb::module_::import_("torch").attr("cuda");
    nb::object context = cuda.attr("stream")(cuda.attr("ExternalStream")(handle_of(*stream), device));
    context.attr("__enter__")();
    context_ = std::move(context);
}

StreamScope::~StreamScope()
{
    if (!context_.is_valid()) {
        return;
    }
    try {
        context_.attr("__exit__")(nb::none(), nb::none(), nb::none());
    } catch (const nb::python_error&) { // NOLINT(bugprone-empty-catch): a destructor tells nobody
    }
}

} // namespace flashomp::python
