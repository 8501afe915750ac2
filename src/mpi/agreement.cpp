#include "agreement.hpp"

#include "layout.hpp"
#include "tensors.hpp"

#include "flashomp/prepared.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <fmt/format.h>
#include <new>
#include <numeric>

namespace flashomp::mpi {

namespace {

enum class Kind : std::uint8_t { number, real, dtype, flag, causal, layout, scheme, pass, memory };

/// One thing that ranks are given. Facts are numbers, so that they travel alike whatever they say.
struct Fact {
    std::string name;
    Kind kind = Kind::number;
    std::int64_t value = 0;
    bool is_common = true; ///< must be the same on all ranks
};

std::string_view word_of(Memory memory)
{
    return memory == Memory::device ? "device" : "host";
}

std::string text_of(const Fact& fact, std::int64_t value)
{
    switch (fact.kind) {
    case Kind::real:
        return fmt::format("{}", std::bit_cast<double>(value));
    case Kind::dtype:
        return std::string(flashomp::name_of(static_cast<DType>(value)));
    case Kind::flag:
        return value != 0 ? "given" : "not given";
    case Kind::causal:
        return value == 0 ? "none" : (value == 1 ? "top_left" : "bottom_right");
    case Kind::layout:
        return std::string(name_of(static_cast<Layout>(value)));
    case Kind::scheme:
        return std::string(name_of(static_cast<Scheme>(value)));
    case Kind::pass:
        return value != 0 ? "backward" : "forward";
    case Kind::memory:
        return std::string(word_of(static_cast<Memory>(value)));
    case Kind::number:
        break;
    }
    return fmt::format("{}", value);
}

std::int64_t hash_of(const void* data, std::int64_t bytes, std::int64_t seed = 0)
{
    // FNV-1a (Fowler, Noll, Vo): enough to tell apart what was given by mistake.
    auto hash = std::uint64_t{0xcbf29ce484222325} ^ static_cast<std::uint64_t>(seed);
    const auto* const byte = static_cast<const std::uint8_t*>(data);
    for (std::int64_t i = 0; i < bytes; ++i) {
        hash = (hash ^ byte[i]) * std::uint64_t{0x100000001b3};
    }
    return static_cast<std::int64_t>(hash);
}

/// The same list on every rank, whatever the arguments are: nothing here looks at elements.
class Facts {
public:
    Facts(const Call& call, const Sharding& sharding)
    {
        const Options& o = call.options;
        const BackwardArgs& a = call.args;
        add("pass", Kind::pass, call.is_backward ? 1 : 0);
        add("layout", Kind::layout, static_cast<std::int64_t>(sharding.layout));
        add("scheme", Kind::scheme, static_cast<std::int64_t>(sharding.scheme));
        add("heads_ranks", Kind::number, sharding.heads_ranks);
        add("the memory of q", Kind::memory, static_cast<std::int64_t>(call.memory()));
        // Rows come first among the numbers: where_rows() knows their place.
        rows_ = list_.size();
        const int axis_of_rows = call.is_packed() ? 0 : 1;
        add_own("rows of q", extent(a.q, axis_of_rows));
        add_own("rows of k", extent(a.k, axis_of_rows));
        own_rows_ = list_.size();
        add_own("rows of bias", o.bias ? extent(o.bias, 2) : -1);
        add_own("rows of mask", o.mask ? extent(o.mask, 2) : -1);
        for (const auto& [name, view] : {std::pair{"q", a.q}, std::pair{"k", a.k}, std::pair{"v", a.v}}) {
            add_form(name, view, axis_of_rows);
        }
        add_form("bias", o.bias, 2);
        add_form("mask", o.mask, 2);
        for (const auto& [name, view] :
             {std::pair{"o", a.o}, std::pair{"dout", a.dout}, std::pair{"dq", ConstTensorView(a.dq)},
              std::pair{"dk", ConstTensorView(a.dk)}, std::pair{"dv", ConstTensorView(a.dv)}}) {
            add(fmt::format("dtype of {}", name), Kind::dtype, static_cast<std::int64_t>(view.dtype));
        }
        for (const auto& [name, is_given] :
             {std::pair{"alibi_slopes", bool(o.alibi_slopes)}, std::pair{"key_padding_mask", bool(o.key_padding_mask)},
              std::pair{"cu_seqlens_q", bool(o.cu_seqlens_q)}, std::pair{"cu_seqlens_k", bool(o.cu_seqlens_k)},
              std::pair{"block_mask", bool(o.block_mask)}, std::pair{"sink", bool(o.sink)},
              std::pair{"score_mod", bool(o.score_mod)}, std::pair{"dbias", bool(a.dbias)},
              std::pair{"dsink", bool(a.dsink)}, std::pair{"scale", o.scale.has_value()}}) {
            add(name, Kind::flag, is_given ? 1 : 0);
        }
        add("scale", Kind::real, std::bit_cast<std::int64_t>(o.scale.value_or(0.0)));
        add("causal", Kind::causal, static_cast<std::int64_t>(o.causal));
        add("window left", Kind::number, o.window.left);
        add("window right", Kind::number, o.window.right);
        add("softcap", Kind::real, std::bit_cast<std::int64_t>(o.softcap));
        add("dropout", Kind::real, std::bit_cast<std::int64_t>(o.dropout.probability));
        add("the dropout's seed", Kind::number, static_cast<std::int64_t>(o.dropout.seed));
        add("the dropout's offset", Kind::number, static_cast<std::int64_t>(o.dropout.offset));
        add("first_sequence", Kind::number, o.first_sequence);
        add("first_head", Kind::number, o.first_head);
        if (o.score_mod) {
            list_.push_back({"the object of score_mod, hashed", Kind::number,
                             hash_of(o.score_mod.object.data(), std::int64_t{sizeof o.score_mod.object})});
        } else {
            list_.push_back({"the object of score_mod, hashed"});
        }
    }

    [[nodiscard]] const std::vector<Fact>& list() const { return list_; }
    [[nodiscard]] std::size_t rows() const { return rows_; }         ///< then those of k
    [[nodiscard]] std::size_t own_rows() const { return own_rows_; } ///< of bias, then of mask

private:
    void add(std::string name, Kind kind, std::int64_t value) { list_.push_back({std::move(name), kind, value}); }
    void add_own(const char* name, std::int64_t value) { list_.push_back({name, Kind::number, value, false}); }

    /// 0 where there is no such axis.
    static std::int64_t extent(const ConstTensorView& view, int axis)
    {
        return axis < view.rank && axis < ConstTensorView::max_rank ? view.shape.at(static_cast<std::size_t>(axis)) : 0;
    }

    /// Number of axes, dtype, and all extents but that of rows.
    void add_form(const char* name, const ConstTensorView& view, int axis_of_rows)
    {
        add(fmt::format("the number of axes of {}", name), Kind::number, view.rank);
        add(fmt::format("dtype of {}", name), Kind::dtype, static_cast<std::int64_t>(view.dtype));
        for (int axis = 0; axis < ConstTensorView::max_rank; ++axis) {
            if (axis != axis_of_rows) {
                add(fmt::format("extent {} of {}", axis, name), Kind::number, extent(view, axis));
            }
        }
    }

    std::vector<Fact> list_;
    std::size_t rows_ = 0, own_rows_ = 0;
};

/// Whether a tensor has each rank's own rows: not one row for all. Of ranks that have one row each nobody can tell, and
/// own rows are what they are then.
bool has_own_rows(const std::vector<std::int64_t>& extents, const std::vector<std::int64_t>& rows)
{
    const auto is_one = [](std::int64_t extent) { return extent == 1; };
    return std::all_of(rows.begin(), rows.end(), is_one) || !std::all_of(extents.begin(), extents.end(), is_one);
}

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
    refuse(bool(o.positions_q) || bool(o.positions_k), "positions", "a layout, which says them");
    refuse(o.cache_seqlens || o.cache_batch_index || o.block_table || o.kv_indptr || o.kv_indices || o.kv_last_page_len,
           "a key/value cache", "k and v in tensors");
    const auto is_narrow = [](const ConstTensorView& view) {
        return view.dtype == DType::float8_e4m3 || view.dtype == DType::int8;
    };
    refuse(is_narrow(call.args.q) || is_narrow(call.args.k), "a dtype of 8 bits", "float32, bfloat16 or float16");
}

/// What a rank threw; of several ranks the larger one counts.
enum class Thrown : std::int64_t { nothing, failure, not_built, error };

/// Throws on all ranks what the first rank has that has the largest kind.
void rethrow_everywhere(const Messages& messages, Thrown kind, const std::string& text)
{
    const std::vector<std::int64_t> kinds = messages.all_numbers({static_cast<std::int64_t>(kind)});
    const auto first = std::max_element(kinds.begin(), kinds.end());
    if (*first == 0) {
        return;
    }
    const auto rank = static_cast<std::size_t>(first - kinds.begin());
    const std::string sentence = fmt::format("rank {}: {}", rank, messages.all_texts(text)[rank]);
    switch (static_cast<Thrown>(*first)) {
    case Thrown::error:
        throw Error(sentence);
    case Thrown::not_built:
        throw NotBuilt(sentence);
    default:
        throw RunFailure(sentence);
    }
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

Call::Call(const ForwardArgs& forward, const Options& given) : o(forward.o), lse(forward.lse), options(given)
{
    args.q = forward.q;
    args.k = forward.k;
    args.v = forward.v;
    args.o = forward.o;
    args.lse = forward.lse;
}

Call::Call(const BackwardArgs& backward, const Options& given) : is_backward(true), args(backward), options(given) {}

Whole agree(const Messages& messages, const Call& call, const Sharding& sharding)
{
    const Facts facts(call, sharding);
    std::vector<std::int64_t> mine;
    for (const Fact& fact : facts.list()) {
        mine.push_back(fact.value);
    }
    const std::vector<std::int64_t> all = messages.all_numbers(mine);
    const auto ranks = static_cast<std::size_t>(messages.ranks());
    const auto value = [&](std::size_t rank, std::size_t fact) { return all[rank * mine.size() + fact]; };
    for (std::size_t i = 0; i < mine.size(); ++i) {
        const Fact& fact = facts.list()[i];
        for (std::size_t rank = 1; rank < ranks; ++rank) {
            if (fact.is_common && value(rank, i) != value(0, i)) {
                throw Error(fmt::format("{} is {} on rank {} but {} on rank 0; it must be the same on all ranks.",
                                        fact.name, text_of(fact, value(rank, i)), rank, text_of(fact, value(0, i))));
            }
        }
    }
    const auto of_each = [&](std::size_t fact) {
        std::vector<std::int64_t> values;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            values.push_back(value(rank, fact));
        }
        return values;
    };
    Whole whole;
    whole.rows_q = of_each(facts.rows());
    whole.rows_k = of_each(facts.rows() + 1);
    whole.length_q = std::accumulate(whole.rows_q.begin(), whole.rows_q.end(), std::int64_t{0});
    whole.length_k = std::accumulate(whole.rows_k.begin(), whole.rows_k.end(), std::int64_t{0});
    whole.bias_has_rows = has_own_rows(of_each(facts.own_rows()), whole.rows_q);
    whole.mask_has_rows = has_own_rows(of_each(facts.own_rows() + 1), whole.rows_q);
    return whole;
}

void expect_everywhere(const Messages& messages, const std::function<void()>& local)
{
    Thrown kind = Thrown::nothing;
    std::string text;
    const auto keep = [&](Thrown thrown, const char* what) {
        kind = thrown;
        text = what;
    };
    try {
        local();
    } catch (const NotBuilt& missing) {
        keep(Thrown::not_built, missing.what());
    } catch (const Error& refused) {
        keep(Thrown::error, refused.what());
    } catch (const std::bad_alloc&) {
        keep(Thrown::failure, "memory for the call's buffers ran out.");
    } catch (const std::exception& failed) {
        keep(Thrown::failure, failed.what());
    }
    rethrow_everywhere(messages, kind, text);
}

void expect_no_failure(const Messages& messages, const std::string& failure)
{
    rethrow_everywhere(messages, failure.empty() ? Thrown::nothing : Thrown::failure, failure);
}

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

namespace {

constexpr std::array<const char*, 4> common_names{"alibi_slopes", "sink", "cu_seqlens_q", "cu_seqlens_k"};

}

std::vector<std::int64_t> common_values(const Call& call, Site& site)
{
    const Options& o = call.options;
    std::vector<std::int64_t> values;
    for (const ConstTensorView& view : {o.alibi_slopes, o.sink, o.cu_seqlens_q, o.cu_seqlens_k}) {
        const std::vector<std::byte> elements = elements_of(view.memory == Memory::host ? host_site() : site, view);
        values.push_back(
            hash_of(elements.data(), static_cast<std::int64_t>(elements.size()), view ? view.shape[0] : 0));
    }
    return values;
}

void agree_on_values(const Messages& messages, const std::vector<std::int64_t>& mine)
{
    const std::vector<std::int64_t> all = messages.all_numbers(mine);
    for (std::size_t i = 0; i < mine.size(); ++i) {
        for (std::size_t rank = 1; rank < all.size() / mine.size(); ++rank) {
            if (all[rank * mine.size() + i] != all[i]) {
                throw Error(fmt::format("{} has other values on rank {} than on rank 0; they must be the same on all "
                                        "ranks.",
                                        common_names.at(i), rank));
            }
        }
    }
}

} // namespace flashomp::mpi
