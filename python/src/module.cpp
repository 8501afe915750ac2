// flashomp._core: the library's calls for the Python package, which gives them their names, defaults and documentation.
#include "block_mask.hpp"
#include "calls.hpp"

#include <flashomp/attention.hpp>
#include <flashomp/error.hpp>
#include <flashomp/version.hpp>

namespace nb = nanobind;

NB_MODULE(_core, module)
{
    module.doc() = "The C++ library's calls; use the package flashomp.";
    // The last one that was registered is asked first, so that NotBuilt comes after Error.
    const auto error = nb::exception<flashomp::Error>(module, "Error", PyExc_ValueError);
    const auto not_built = nb::exception<flashomp::NotBuilt>(module, "NotBuilt", error);
    const auto failure = nb::exception<flashomp::RunFailure>(module, "RunFailure", PyExc_RuntimeError);
    error.attr("__module__") = "flashomp";
    not_built.attr("__module__") = "flashomp";
    failure.attr("__module__") = "flashomp";
    error.attr("__doc__") = "An argument is not as documented: one sentence says which, what was given and what is "
                            "allowed. No output has been written.";
    not_built.attr("__doc__") = "The input is meaningful, but this build does not do it yet.";
    failure.attr("__doc__") = "The input was good, but the machine failed; outputs hold anything.";
    module.attr("__version__") = flashomp::build_info().version;
    nb::dict build;
    build["version"] = flashomp::build_info().version;
    build["commit"] = flashomp::build_info().commit;
    build["compiler"] = flashomp::build_info().compiler;
    build["flags"] = flashomp::build_info().flags;
    build["offload"] = flashomp::build_info().offload;
    build["backends"] = flashomp::build_info().backends;
    module.attr("build_info") = build;
    module.attr("most_head_dim") = flashomp::most_head_dim;
    module.attr("most_head_dim_v") = flashomp::most_head_dim_v;
    flashomp::python::bind_block_mask(module);
    flashomp::python::bind_calls(module);
    flashomp::python::bind_jax_calls(module);
    flashomp::python::bind_plain_call(module);
    flashomp::python::bind_prepared(module);
    flashomp::python::bind_for_tests(module);
}
