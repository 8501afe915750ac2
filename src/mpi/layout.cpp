#include "layout.hpp"

#include "even_part.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <numeric>

namespace flashomp::mpi {

namespace {

/// Calls f(piece) for each pair of runs that see each other until it returns false.
template <class F>
void each_piece(const Options& options, const std::vector<Run>& q, const std::vector<Run>& k, F f)
{
    const auto is_before = [](const Run& a, const Run& b) { return a.sequence < b.sequence; };
    for (const Run& queries : q) {
        const auto [begin, end] = std::equal_range(k.begin(), k.end(), queries, is_before);
        for (auto keys = begin; keys != end; ++keys) {
            if (sees(options, queries, *keys) && !f(Piece{queries, *keys})) {
                return;
            }
        }
    }
}

} // namespace

std::string_view name_of(Layout layout)
{
    return layout == Layout::zigzag ? "zigzag" : "contiguous";
}

std::string_view name_of(Scheme scheme)
{
    switch (scheme) {
    case Scheme::automatic:
        return "automatic";
    case Scheme::ring:
        return "ring";
    case Scheme::all_gather:
        return "all_gather";
    case Scheme::ulysses:
        return "ulysses";
    case Scheme::grid:
        return "grid";
    }
    return "";
}

Positions positions(Layout layout, int rank, int ranks, std::int64_t length)
{
    constexpr std::int64_t most_rows = std::int64_t{1} << 30;
    if (ranks < 1 || rank < 0 || rank >= ranks || length < 0 || length > most_rows) {
        throw Error(fmt::format("positions() was given rank {} of {} and {} rows; rank must be 0 or more and less than "
                                "ranks, and rows 0 to {}.",
                                rank, ranks, length, most_rows));
    }
    Positions positions;
    positions.whole = length;
    if (layout == Layout::contiguous) {
        positions.stretches[0] = even_part(rank, ranks, length);
    } else {
        const std::int64_t chunks = 2 * std::int64_t{ranks};
        positions.stretches = {even_part(rank, chunks, length), even_part(chunks - 1 - rank, chunks, length)};
    }
    return positions;
}

std::int64_t rows_of(const Stretches& stretches)
{
    return std::accumulate(stretches.begin(), stretches.end(), std::int64_t{0},
                           [](std::int64_t sum, const Stretch& stretch) { return sum + stretch.count; });
}

std::int64_t rows_wanted(Layout layout, int rank, int ranks, std::int64_t length)
{
    return layout == Layout::contiguous ? -1 : positions(layout, rank, ranks, length).rows();
}

Stretches rows_of_ranks(Layout layout, const std::vector<std::int64_t>& rows, int first, int count)
{
    const auto sum_before = [&](int rank) {
        return std::accumulate(rows.begin(), rows.begin() + rank, std::int64_t{0});
    };
    Stretches all;
    if (layout == Layout::contiguous) {
        all.push_back({sum_before(first), sum_before(first + count) - sum_before(first)});
    } else {
        const auto ranks = static_cast<int>(rows.size());
        const std::int64_t length = sum_before(ranks);
        for (int rank = first; rank < first + count; ++rank) {
            const auto& two = positions(layout, rank, ranks, length).stretches;
            all.insert(all.end(), two.begin(), two.end());
        }
    }
    std::sort(all.begin(), all.end(), [](const Stretch& a, const Stretch& b) { return a.first < b.first; });
    Stretches joined;
    for (const Stretch& stretch : all) {
        if (stretch.count == 0) {
            continue;
        }
        if (!joined.empty() && joined.back().first + joined.back().count == stretch.first) {
            joined.back().count += stretch.count;
        } else {
            joined.push_back(stretch);
        }
    }
    return joined;
}

std::int64_t place_of(std::int64_t position, const Stretches& stretches)
{
    std::int64_t before = 0;
    for (const auto& [first, count] : stretches) {
        if (position < first + count) {
            return before + position - first;
        }
        before += count;
    }
    return before;
}

std::vector<Run> runs_of(const Stretches& stretches, const std::vector<std::int32_t>& starts, std::int64_t length)
{
    std::vector<Run> runs;
    std::int64_t row = 0;
    for (const auto& [first, count] : stretches) {
        if (starts.empty()) {
            runs.push_back({0, row, {first, count}, length});
        } else {
            // From the last sequence that begins at or before `first`: those before it have no rows from there on.
            auto start = std::upper_bound(starts.begin(), starts.end(), first) - 1;
            for (; start + 1 < starts.end() && *start < first + count; ++start) {
                const std::int64_t begin = std::max<std::int64_t>(*start, first);
                const std::int64_t end = std::min<std::int64_t>(start[1], first + count);
                if (begin < end) {
                    runs.push_back({start - starts.begin(),
                                    row + begin - first,
                                    {begin - *start, end - begin},
                                    start[1] - *start});
                }
            }
        }
        row += count;
    }
    return runs;
}

bool sees(const Options& options, const Run& q, const Run& k)
{
    // Query i sees the keys j with i + low <= j <= i + high: the limits move with i, so that what a run of queries sees
    // together is one interval, unless each of them sees nothing.
    constexpr std::int64_t far = std::numeric_limits<std::int64_t>::max() / 4;
    const std::int64_t delta = k.whole - q.whole;
    std::int64_t low = -far, high = far;
    if (options.causal != Causal::none) {
        high = options.causal == Causal::bottom_right ? delta : 0;
    }
    if (options.window.left >= 0) {
        low = delta - std::min(options.window.left, far);
    }
    if (options.window.right >= 0) {
        high = std::min(high, delta + std::min(options.window.right, far));
    }
    const std::int64_t last_q = q.at.first + q.at.count - 1, last_k = k.at.first + k.at.count - 1;
    return q.at.count > 0 && k.at.count > 0 && low <= high && q.at.first + low <= last_k && k.at.first <= last_q + high;
}

std::vector<Piece> pieces_of(const Options& options, const std::vector<Run>& q, const std::vector<Run>& k)
{
    std::vector<Piece> pieces;
    each_piece(options, q, k, [&](const Piece& piece) {
        pieces.push_back(piece);
        return true;
    });
    return pieces;
}

bool any_piece(const Options& options, const std::vector<Run>& q, const std::vector<Run>& k)
{
    bool any = false;
    each_piece(options, q, k, [&](const Piece& /*piece*/) {
        any = true;
        return false;
    });
    return any;
}

} // namespace flashomp::mpi
