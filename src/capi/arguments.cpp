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

ForwardArgs views_of(const flashomp_forward_args* args, Views& views)
{
    const flashomp_forward_args given =
        read_struct("args", args, forward_versions, default_of<flashomp_forward_args>());
    ForwardArgs viewed;
    viewed.q = views("q", given.q);
    viewed.k = views("k", given.k);
    viewed.v = views("v", given.v);
    viewed.o = views("o", given.o);
    viewed.lse = views("lse", given.lse);
    return viewed;
}

BackwardArgs views_of(const flashomp_backward_args* args, Views& views)
{
    const flashomp_backward_args given =
        read_struct("args", args, backward_versions, default_of<flashomp_backward_args>());
    BackwardArgs viewed;
    viewed.q = views("q", given.q);
    viewed.k = views("k", given.k);
    viewed.v = views("v", given.v);
    viewed.o = views("o", given.o);
    viewed.lse = views("lse", given.lse);
    viewed.dout = views("dout", given.dout);
    viewed.dq = views("dq", given.dq);
    viewed.dk = views("dk", given.dk);
    viewed.dv = views("dv", given.dv);
    viewed.dbias = views("dbias", given.dbias);
    viewed.dsink = views("dsink", given.dsink);
    return viewed;
}

AppendArgs views_of(const flashomp_append_args* args, Views& views)
{
    const flashomp_append_args given = read_struct("args", args, append_versions, default_of<flashomp_append_args>());
    AppendArgs viewed;
    viewed.k = views("k", given.k);
    viewed.v = views("v", given.v);
    viewed.k_cache = views("k_cache", given.k_cache);
    viewed.v_cache = views("v_cache", given.v_cache);
    viewed.rotary.cos = views("rotary.cos", given.rotary_cos);
    viewed.rotary.sin = views("rotary.sin", given.rotary_sin);
    viewed.rotary.interleaved = !boolean("rotary_halves", given.rotary_halves);
    viewed.q = views("q", given.q);
    viewed.q_out = views("q_out", given.q_out);
    return viewed;
}

template <class Args, class CArgs>
Call<Args> viewed_call(const CArgs* args, const flashomp_options* options)
{
    const flashomp_options given = read_options(options);
    Views views(managed_is_gpus(given));
    Call<Args> call;
    call.args = views_of(args, views);
    call.options = options_of(given, views);
    return call;
}

} // namespace

Call<ForwardArgs> call_of(const flashomp_forward_args* args, const flashomp_options* options)
{
    return viewed_call<ForwardArgs>(args, options);
}

Call<BackwardArgs> call_of(const flashomp_backward_args* args, const flashomp_options* options)
{
    return viewed_call<BackwardArgs>(args, options);
}

Call<AppendArgs> call_of(const flashomp_append_args* args, const flashomp_options* options)
{
    return viewed_call<AppendArgs>(args, options);
}

ForwardArgs args_of(const flashomp_forward_args* args, bool managed_is_gpus)
{
    Views views(managed_is_gpus);
    return views_of(args, views);
}

BackwardArgs args_of(const flashomp_backward_args* args, bool managed_is_gpus)
{
    Views views(managed_is_gpus);
    return views_of(args, views);
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
