// What tests look at on machines without a GPU, where no call on CUDA tensors comes as far: the memory of such calls.
#include "calls.hpp"
#include "workspaces.hpp"

namespace flashomp::python {

namespace {

void make_forward_tensors(nb::handle q, nb::handle k, nb::handle v, bool return_lse, const nb::dict& keywords)
{
    CallOptions call(keywords, Use::input);
    call.has_cuda_backend = true;
    const ForwardTensors tensors(q, k, v, nb::none(), nb::none(), return_lse, call, Use::input);
}

void make_backward_tensors(const nb::tuple& inputs, const nb::tuple& gradients, const nb::dict& keywords)
{
    CallOptions call(keywords, Use::input);
    call.has_cuda_backend = true;
    const BackwardTensors tensors(inputs, gradients, call, Use::input);
}

std::uintptr_t workspace_address(Workspaces& workspaces, nb::handle like, std::uintptr_t stream)
{
    const TensorArgument tensor("q", like, Use::input);
    return reinterpret_cast<std::uintptr_t>(workspaces.of(tensor, reinterpret_cast<void*>(stream)).data());
}

} // namespace

void bind_for_tests(nb::module_& module)
{
    using namespace nb::literals;
    nb::module_ tests = module.def_submodule("for_tests", "The memory of calls on CUDA tensors, for tests.");
    tests.def("make_forward_tensors", &make_forward_tensors, "q"_a, "k"_a, "v"_a, "return_lse"_a, "options"_a,
              "Makes what a forward call makes before it runs, and gives it back.");
    tests.def("make_backward_tensors", &make_backward_tensors, "inputs"_a, "gradients"_a, "options"_a,
              "Makes what a backward call makes before it runs, and gives it back.");
    nb::class_<Workspaces>(tests, "DeviceWorkspaces", "The workspaces of a prepared call on device tensors.")
        .def(
            "__init__", [](Workspaces* self, std::int64_t bytes) { new (self) Workspaces(bytes, Memory::device); },
            "bytes"_a)
        .def("address", &workspace_address, "like"_a, "stream"_a, "That of the workspace for runs on a stream.");
}

} // namespace flashomp::python
