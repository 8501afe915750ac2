#include "agreement.hpp"

#include "facts.hpp"
#include "tensors.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <numeric>

namespace flashomp::mpi {

namespace {

/// Whether a tensor has each rank's own rows: not one row for all. Of ranks that have one row each nobody can tell, and
/// own rows are what they are then.
bool has_own_rows(const std::vector<std::int64_t>& extents, const std::vector<std::int64_t>& rows)
{
    const auto is_one = [](std::int64_t extent) { return extent == 1; };
    return std::all_of(rows.begin(), rows.end(), is_one) || !std::all_of(extents.begin(), extents.end(), is_one);
}

constexpr std::array common_names{"alibi_slopes",     "sink", "cu_seqlens_q", "cu_seqlens_k",
                                  "key_padding_mask", "bias", "mask"};

} // namespace

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

std::vector<std::int64_t> common_values(const Call& call, const Whole& whole, Site& site)
{
    const Options& o = call.options;
    // Of packed sequences bias and mask have all pairs: to read them here would cost as much as their call.
    const auto if_one_row = [&](const ConstTensorView& view, bool has_rows) {
        return has_rows || call.is_packed() ? ConstTensorView{} : view;
    };
    const std::array<ConstTensorView, common_names.size()> views{o.alibi_slopes,
                                                                 o.sink,
                                                                 o.cu_seqlens_q,
                                                                 o.cu_seqlens_k,
                                                                 o.key_padding_mask,
                                                                 if_one_row(o.bias, whole.bias_has_rows),
                                                                 if_one_row(o.mask, whole.mask_has_rows)};
    std::vector<std::int64_t> values;
    for (const ConstTensorView& view : views) {
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
