#include "validation.hpp"

#include "layout.hpp"
#include "tensors.hpp"

#include <algorithm>
#include <exception>
#include <fmt/format.h>
#include <span>
#include <tuple>

namespace flashomp::mpi {

namespace {

TensorView as_output(const ConstTensorView& view)
{
    TensorView output;
    output.dtype = view.dtype;
    output.memory = view.memory;
    output.rank = view.rank;
    output.shape = view.shape;
    output.strides = view.strides;
    return output;
}

/// A tensor of so many rows that has no memory yet, contiguous.
ConstTensorView of_the_whole(const ConstTensorView& view, int axis, std::int64_t rows)
{
    ConstTensorView whole = view;
    whole.shape.at(static_cast<std::size_t>(axis)) = rows;
    return ConstTensorView::contiguous(
        nullptr, whole.dtype, std::span(whole.shape).first(static_cast<std::size_t>(whole.rank)), whole.memory);
}

void refuse(bool is_given, const char* name, const char* allowed)
{
    if (is_given) {
        throw NotBuilt(fmt::format("{} was given with more than one rank; allowed is {}.", name, allowed));
    }
}

void refuse_what_parts_do_not_have(const Call& call)
{
    const Options& o = call.options;
    refuse(o.stream.has_value() && call.memory() == Memory::host, "stream for tensors in host memory",
           "one with tensors in device memory");
    refuse(bool(o.positions_q), "positions_q", "a layout, which says where rows are");
    refuse(bool(o.positions_k), "positions_k", "a layout, which says where rows are");
    refuse(o.cache_seqlens || o.cache_batch_index || o.block_table || o.kv_indptr || o.kv_indices || o.kv_last_page_len,
           "a key/value cache", "k and v in tensors");
    const auto is_narrow = [](const ConstTensorView& view) {
        return view.dtype == DType::float8_e4m3 || view.dtype == DType::int8;
    };
    refuse(is_narrow(call.args.q) || is_narrow(call.args.k), "a dtype of 8 bits", "float32, bfloat16 or float16");
}

template <class F>
void each_tensor(const Call& call, F f)
{
    const BackwardArgs& a = call.args;
    const Options& o = call.options;
    for (const auto& [name, view] :
         {std::pair{"q", a.q}, std::pair{"k", a.k}, std::pair{"v", a.v}, std::pair{"o", a.o}, std::pair{"lse", a.lse},
          std::pair{"dout", a.dout}, std::pair{"dq", ConstTensorView(a.dq)}, std::pair{"dk", ConstTensorView(a.dk)},
          std::pair{"dv", ConstTensorView(a.dv)}, std::pair{"dbias", ConstTensorView(a.dbias)},
          std::pair{"dsink", ConstTensorView(a.dsink)}, std::pair{"bias", o.bias}, std::pair{"mask", o.mask},
          std::pair{"alibi_slopes", o.alibi_slopes}, std::pair{"key_padding_mask", o.key_padding_mask},
          std::pair{"sink", o.sink}}) {
        if (view) {
            f(name, view);
        }
    }
}

/// prepare() validates and runs nothing. It takes no reference.
Options to_be_prepared(Options options)
{
    if (options.backend == Backend::reference) {
        options.backend = Backend::openmp;
        options.machine = Machine::automatic;
        options.device.kind = Device::Kind::host;
    }
    return options;
}

void prepare_only(const Call& call, const BackwardArgs& args, const TensorView& o, const TensorView& lse,
                  const Options& options, Site& site)
{
    if (call.is_backward) {
        site.prepare(args, options);
    } else {
        site.prepare(ForwardArgs{args.q, args.k, args.v, o, lse}, options);
    }
}

/// One row is one for all where all ranks have one. Where others have their own rows, a call would take a single row
/// here for one that its rows share, and ranks would not agree on what travels.
void expect_own_rows(const char* name, const ConstTensorView& view, bool has_rows, int rank, std::int64_t rows)
{
    if (view && has_rows && view.shape[2] != rows) {
        throw Error(fmt::format(
            "{} has {} rows on rank {}, which has {} of q, while other ranks give it their own rows; it must "
            "have the rank's rows on every rank, or one row on every rank.",
            name, view.shape[2], rank, rows));
    }
}

/// q, k, v and results, at their addresses: what is said of single sequences' keys is not of this rank's.
void validate_part(const Call& call, Site& site)
{
    Options options = to_be_prepared(call.options);
    options.bias = options.mask = options.key_padding_mask = options.cu_seqlens_q = options.cu_seqlens_k = {};
    options.block_mask = {};
    BackwardArgs args = call.args;
    args.dbias = {};
    TensorView o = call.o, lse = call.lse;
    if (call.is_packed()) {
        for (ConstTensorView* const view : {&args.q, &args.k, &args.v, &args.o, &args.lse, &args.dout}) {
            *view = view->rank == 3 || (view == &args.lse && view->rank == 2) ? with_batch(*view) : *view;
        }
        for (TensorView* const view : {&o, &lse, &args.dq, &args.dk, &args.dv}) {
            *view = view->rank == 3 || (view == &lse && view->rank == 2) ? with_batch(*view) : *view;
        }
        if (options.alibi_slopes.rank == 2) { // of a batch that the part has not; the whole is looked at below
            options.alibi_slopes = {};
        }
    }
    prepare_only(call, args, o, lse, options, site);
}

/// The options as those of the whole: with all keys, and the rank's rows, or all rows where sequences are packed.
void validate_options(const Call& call, const Whole& whole, Site& site)
{
    const Options options = to_be_prepared(call.options);
    const bool is_packed = call.is_packed();
    const int axis = is_packed ? 0 : 1;
    const std::int64_t rows = is_packed ? whole.length_q : call.args.q.shape[1];
    BackwardArgs args = call.args;
    for (ConstTensorView* const view : {&args.k, &args.v}) {
        *view = of_the_whole(*view, axis, whole.length_k);
    }
    for (TensorView* const view : {&args.dk, &args.dv}) {
        *view = *view ? as_output(of_the_whole(*view, axis, whole.length_k)) : *view;
    }
    for (ConstTensorView* const view : {&args.q, &args.o, &args.dout}) {
        *view = *view ? of_the_whole(*view, axis, rows) : *view;
    }
    args.dq = args.dq ? as_output(of_the_whole(args.dq, axis, rows)) : args.dq;
    args.lse = of_the_whole(args.lse, is_packed ? 1 : 2, rows);
    prepare_only(call, args, as_output(args.o), as_output(args.lse), options, site);
}

} // namespace

void validate(const Call& call, const Whole& whole, const Sharding& sharding, int rank, int ranks, Site& site)
{
    refuse_what_parts_do_not_have(call);
    each_tensor(call, [&](const char* name, const ConstTensorView& view) {
        if (view.memory != call.memory()) {
            throw Error(fmt::format("{} is in {} memory, but q is in {} memory; all tensors must be in one memory.",
                                    name, word_of(view.memory), word_of(call.memory())));
        }
        if (view.rank > 0 && view.rank <= ConstTensorView::max_rank && view.elements() > 0 && view.data == nullptr) {
            throw Error(fmt::format("{} has no data; its elements are needed.", name));
        }
    });
    for (const auto& [name, view] :
         {std::pair{"cu_seqlens_q", call.options.cu_seqlens_q}, std::pair{"cu_seqlens_k", call.options.cu_seqlens_k}}) {
        if (view && view.memory != Memory::host) {
            throw Error(
                fmt::format("{} is in device memory; with more than one rank it must be in host memory.", name));
        }
    }
    validate_part(call, site);
    const auto own = static_cast<std::size_t>(rank);
    for (const auto& [name, rows, length] :
         {std::tuple{"q", whole.rows_q[own], whole.length_q}, std::tuple{"k", whole.rows_k[own], whole.length_k}}) {
        const std::int64_t wanted =
            length <= std::int64_t{1} << 30 ? rows_wanted(sharding.layout, rank, ranks, length) : -1;
        if (wanted >= 0 && rows != wanted) {
            throw Error(fmt::format("{} has {} rows; zigzag shards of {} rows over {} ranks have {} here.", name, rows,
                                    length, ranks, wanted));
        }
    }
    validate_options(call, whole, site);
    if (!call.is_packed()) { // whose bias and mask are those of the whole
        expect_own_rows("bias", call.options.bias, whole.bias_has_rows, rank, whole.rows_q[own]);
        expect_own_rows("mask", call.options.mask, whole.mask_has_rows, rank, whole.rows_q[own]);
    }
}

bool is_taken_everywhere(const Messages& messages, const Call& call, const Whole& whole, const Sharding& sharding)
{
    std::int64_t is_refused = 0;
    try {
        validate(call, whole, sharding, messages.rank(), messages.ranks(), messages.site());
    } catch (const std::exception&) {
        is_refused = 1;
    }
    const std::vector<std::int64_t> all = messages.all_numbers({is_refused});
    return std::all_of(all.begin(), all.end(), [](std::int64_t refused) { return refused == 0; });
}

} // namespace flashomp::mpi
