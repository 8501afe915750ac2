#include "facts.hpp"

#include <bit>
#include <fmt/format.h>
#include <initializer_list>
#include <string_view>
#include <utility>

namespace flashomp::mpi {

namespace {

/// Of an enumeration; a value that it has not in digits.
std::string named(std::int64_t value, std::initializer_list<std::string_view> names)
{
    const bool is_known = value >= 0 && value < static_cast<std::int64_t>(names.size());
    return is_known ? std::string(names.begin()[value]) : fmt::format("{}", value);
}

} // namespace

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
        return named(value, {"none", "top_left", "bottom_right"});
    case Kind::layout:
        return named(value, {name_of(Layout::contiguous), name_of(Layout::zigzag)});
    case Kind::scheme:
        return named(value, {name_of(Scheme::automatic), name_of(Scheme::ring), name_of(Scheme::all_gather),
                             name_of(Scheme::ulysses), name_of(Scheme::grid)});
    case Kind::pass:
        return value != 0 ? "backward" : "forward";
    case Kind::memory:
        return std::string(word_of(static_cast<Memory>(value)));
    case Kind::bits:
        return fmt::format("{}", static_cast<std::uint64_t>(value));
    case Kind::number:
        break;
    }
    return fmt::format("{}", value);
}

std::int64_t hash_of(const void* data, std::int64_t bytes, std::int64_t seed)
{
    auto hash = std::uint64_t{0xcbf29ce484222325} ^ static_cast<std::uint64_t>(seed);
    const auto* const byte = static_cast<const std::uint8_t*>(data);
    for (std::int64_t i = 0; i < bytes; ++i) {
        hash = (hash ^ byte[i]) * std::uint64_t{0x100000001b3};
    }
    return static_cast<std::int64_t>(hash);
}

namespace {

/// 0 where there is no such axis.
std::int64_t extent(const ConstTensorView& view, int axis)
{
    return axis < view.rank && axis < ConstTensorView::max_rank ? view.shape.at(static_cast<std::size_t>(axis)) : 0;
}

} // namespace

Facts::Facts(const Call& call, const Sharding& sharding)
{
    const Options& o = call.options;
    const BackwardArgs& a = call.args;
    add("pass", Kind::pass, call.is_backward ? 1 : 0);
    add("layout", Kind::layout, static_cast<std::int64_t>(sharding.layout));
    add("scheme", Kind::scheme, static_cast<std::int64_t>(sharding.scheme));
    add("heads_ranks", Kind::number, sharding.heads_ranks);
    add("the memory of q", Kind::memory, static_cast<std::int64_t>(call.memory()));
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
    add("the dropout's seed", Kind::bits, static_cast<std::int64_t>(o.dropout.seed));
    add("the dropout's offset", Kind::bits, static_cast<std::int64_t>(o.dropout.offset));
    add("first_sequence", Kind::number, o.first_sequence);
    add("first_head", Kind::number, o.first_head);
    if (o.score_mod) {
        list_.push_back({"the object of score_mod, hashed", Kind::number,
                         hash_of(o.score_mod.object.data(), std::int64_t{sizeof o.score_mod.object})});
    } else {
        list_.push_back({"the object of score_mod, hashed"});
    }
}

void Facts::add(std::string name, Kind kind, std::int64_t value)
{
    list_.push_back({std::move(name), kind, value});
}

void Facts::add_own(const char* name, std::int64_t value)
{
    list_.push_back({name, Kind::number, value, false});
}

/// Number of axes, dtype, and all extents but that of rows.
void Facts::add_form(const char* name, const ConstTensorView& view, int axis_of_rows)
{
    add(fmt::format("the number of axes of {}", name), Kind::number, view.rank);
    add(fmt::format("dtype of {}", name), Kind::dtype, static_cast<std::int64_t>(view.dtype));
    for (int axis = 0; axis < ConstTensorView::max_rank; ++axis) {
        if (axis != axis_of_rows) {
            add(fmt::format("extent {} of {}", axis, name), Kind::number, extent(view, axis));
        }
    }
}

} // namespace flashomp::mpi
