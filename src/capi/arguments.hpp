// Arguments and reports of calls of the C interface.
#pragma once

#include "flashomp/cache.hpp"
#include "flashomp/flashomp.h"

namespace flashomp::capi {

/// A call as the C++ functions take it.
template <class Args>
struct Call {
    Args args;
    Options options;
};

/// Throws Error where an argument is not as flashomp.h has it. What the C++ functions judge is left to them.
[[nodiscard]] Call<ForwardArgs> call_of(const flashomp_forward_args* args, const flashomp_options* options);
[[nodiscard]] Call<BackwardArgs> call_of(const flashomp_backward_args* args, const flashomp_options* options);
[[nodiscard]] Call<AppendArgs> call_of(const flashomp_append_args* args, const flashomp_options* options);

/// The tensors of a call without options. Throws as call_of() does.
[[nodiscard]] ForwardArgs args_of(const flashomp_forward_args* args, bool managed_is_gpus);
[[nodiscard]] BackwardArgs args_of(const flashomp_backward_args* args, bool managed_is_gpus);

/// Throws Error where the report, which may be null, has a size that is none.
void check_report(const flashomp_report* report);

/// Fills a report that is checked and not null.
void write_report(flashomp_report* target, const Report& report);

} // namespace flashomp::capi
