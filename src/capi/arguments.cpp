#include "arguments.hpp"

#include "options.hpp"
#include "sized.hpp"
#include "text.hpp"

#include <array>

namespace flashomp::capi {

namespace {

// Sizes do not change any more once a version with them is released: a grown struct adds one.
constexpr std::array<std::size_t, 1> sizes_of_forward{48};
static_assert(sizes_of_forward.back() == sizeof(flashomp_forward_args));
constexpr Versions<flashomp_forward_args> forward_versions{"flashomp_forward_args", sizes_of_forward};

constexpr std::array<std::size_t, 1> sizes_of_backward{96};
static_assert(sizes_of_backward.back() == sizeof(flashomp_backward_args));
constexpr Versions<flashomp_backward_args> backward_versions{"flashomp_backward_args", sizes_of_backward};

constexpr std::array<std::size_t, 1> sizes_of_append{80};
static_assert(sizes_of_append.back() == sizeof(flashomp_append_args));
constexpr Versions<flashomp_append_args> append_versions{"flashomp_append_args", sizes_of_append};

constexpr std::array<std::size_t, 1> sizes_of_report{504};
static_assert(sizes_of_report.back() == sizeof(flashomp_report));
constexpr Versions<flashomp_report> report_versions{"flashomp_report", sizes_of_report};

} // namespace

flashomp_forward_args default_forward_args()
{
    flashomp_forward_args defaults{};
    defaults.size = sizeof defaults;
    return defaults;
}

flashomp_backward_args default_backward_args()
{
    flashomp_backward_args defaults{};
    defaults.size = sizeof defaults;
    return defaults;
}

flashomp_append_args default_append_args()
{
    flashomp_append_args defaults{};
    defaults.size = sizeof defaults;
    return defaults;
}

flashomp_report default_report()
{
    flashomp_report defaults{};
    defaults.size = sizeof defaults;
    return defaults;
}

Call<ForwardArgs> call_of(const flashomp_forward_args* args, const flashomp_options* options)
{
    const flashomp_options given_options = read_options(options);
    const flashomp_forward_args given = read_struct("args", args, forward_versions, default_forward_args());
    Views views(managed_is_gpus(given_options));
    Call<ForwardArgs> call;
    call.args.q = views("q", given.q);
    call.args.k = views("k", given.k);
    call.args.v = views("v", given.v);
    call.args.o = views("o", given.o);
    call.args.lse = views("lse", given.lse);
    call.options = options_of(given_options, views);
    call.allocator = allocator_of(given_options);
    return call;
}

Call<BackwardArgs> call_of(const flashomp_backward_args* args, const flashomp_options* options)
{
    const flashomp_options given_options = read_options(options);
    const flashomp_backward_args given = read_struct("args", args, backward_versions, default_backward_args());
    Views views(managed_is_gpus(given_options));
    Call<BackwardArgs> call;
    call.args.q = views("q", given.q);
    call.args.k = views("k", given.k);
    call.args.v = views("v", given.v);
    call.args.o = views("o", given.o);
    call.args.lse = views("lse", given.lse);
    call.args.dout = views("dout", given.dout);
    call.args.dq = views("dq", given.dq);
    call.args.dk = views("dk", given.dk);
    call.args.dv = views("dv", given.dv);
    call.args.dbias = views("dbias", given.dbias);
    call.args.dsink = views("dsink", given.dsink);
    call.options = options_of(given_options, views);
    call.allocator = allocator_of(given_options);
    return call;
}

Call<AppendArgs> call_of(const flashomp_append_args* args, const flashomp_options* options)
{
    const flashomp_options given_options = read_options(options);
    const flashomp_append_args given = read_struct("args", args, append_versions, default_append_args());
    Views views(managed_is_gpus(given_options));
    Call<AppendArgs> call;
    call.args.k = views("k", given.k);
    call.args.v = views("v", given.v);
    call.args.k_cache = views("k_cache", given.k_cache);
    call.args.v_cache = views("v_cache", given.v_cache);
    call.args.rotary.cos = views("rotary.cos", given.rotary_cos);
    call.args.rotary.sin = views("rotary.sin", given.rotary_sin);
    call.args.q = views("q", given.q);
    call.args.q_out = views("q_out", given.q_out);
    call.args.rotary.interleaved = !boolean("rotary_halves", given.rotary_halves);
    call.options = options_of(given_options, views);
    if (given_options.allocator != nullptr) {
        throw Error("allocator was given to append, which takes no memory of a caller's; it must be null.");
    }
    return call;
}

void check_report(const flashomp_report* report)
{
    if (report != nullptr) {
        check_size("report", report->size, report_versions);
    }
}

void write_report(flashomp_report* target, const Report& report)
{
    flashomp_report values{};
    copy_text(values.backend, report.backend);
    copy_text(values.machine, report.machine);
    copy_text(values.ran_on, report.ran_on);
    copy_text(values.note, report.note);
    values.on_device = report.on_device ? 1 : 0;
    values.tuned = report.tuned ? 1 : 0;
    values.computed_twice = report.computed_twice ? 1 : 0;
    values.seconds = report.seconds;
    values.extra_bytes = report.extra_bytes;
    values.staged_bytes = report.staged_bytes;
    values.standard_bytes = report.standard_bytes;
    write_struct(target, values);
}

} // namespace flashomp::capi
