// Arguments and reports of calls of the C interface.
#pragma once

#include "flashomp/cache.hpp"
#include "flashomp/flashomp.h"

#include <optional>

namespace flashomp::capi {

[[nodiscard]] flashomp_forward_args default_forward_args();
[[nodiscard]] flashomp_backward_args default_backward_args();
[[nodiscard]] flashomp_append_args default_append_args();
[[nodiscard]] flashomp_report default_report();

/// A call as the C++ functions take it.
template <class Args>
struct Call {
    Args args;
    Options options;
    std::optional<flashomp_allocator> allocator;
};

/// Throws Error where an argument is not as flashomp.h has it. What the C++ functions judge is left to them.
[[nodiscard]] Call<ForwardArgs> call_of(const flashomp_forward_args* args, const flashomp_options* options);
[[nodiscard]] Call<BackwardArgs> call_of(const flashomp_backward_args* args, const flashomp_options* options);
[[nodiscard]] Call<AppendArgs> call_of(const flashomp_append_args* args, const flashomp_options* options);

/// Throws Error where the report, which may be null, has a size that is none.
void check_report(const flashomp_report* report);

/// Fills a report that is checked and not null.
void write_report(flashomp_report* target, const Report& report);

} // namespace flashomp::capi
