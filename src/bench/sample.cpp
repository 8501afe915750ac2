#include "sample.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace flashomp::bench {

namespace {

using reference::Chosen;
using reference::Span;

constexpr std::int64_t block = 64;

std::size_t index(std::int64_t value)
{
    return static_cast<std::size_t>(value);
}

/// Blocks of `rows` at the beginning, in the middle and at the end of `length`; one block where they would meet.
std::vector<Span> blocks_of(std::int64_t length, std::int64_t rows, bool all)
{
    if (length == 0) {
        return {};
    }
    if (all || length <= 3 * rows) {
        return {{0, length}};
    }
    return {{0, rows}, {(length - rows) / 2, rows}, {length - rows, rows}};
}

std::string span_text(const std::vector<Span>& spans, std::int64_t length)
{
    if (spans.size() == 1 && spans.front().count == length) {
        return fmt::format("all {}", length);
    }
    std::string text;
    for (const Span& span : spans) {
        text += fmt::format("{}{}-{}", text.empty() ? "" : ", ", span.first, span.first + span.count - 1);
    }
    return fmt::format("{} of {}", text, length);
}

} // namespace

Sample::Sample(const cost::Shape& of) : shape(of)
{
    const std::vector<std::int64_t> lengths_q = shape.lengths_q();
    const std::vector<std::int64_t> lengths_k = shape.lengths_k();
    const std::int64_t group = shape.heads_q / shape.heads_kv;
    std::vector<std::pair<std::int64_t, std::int64_t>> places; // the last first
    for (const auto& place :
         {std::pair{shape.batch - 1, shape.heads_kv - 1}, std::pair{shape.batch / 2, shape.heads_kv / 2},
          std::pair{std::int64_t{0}, std::int64_t{0}}}) {
        if (std::find(places.begin(), places.end(), place) == places.end()) {
            places.push_back(place);
        }
    }
    constexpr double most_work = 0x1p38, most_work_of_one = 0x1p40;
    constexpr std::int64_t most_scores = std::int64_t{1} << 22, most_rows = 512, fewest_rows = 8;
    double work = 0;
    for (const auto& [sequence, head] : places) {
        const std::int64_t rows = lengths_q[index(sequence)];
        const std::int64_t keys = lengths_k[index(sequence)];
        const bool all = group * rows * keys <= most_scores;
        Chosen part{
            sequence, head, blocks_of(rows, std::clamp(most_rows / group, fewest_rows, block), all), {}, shape.dbias};
        const double own = static_cast<double>(group * rows) * static_cast<double>(keys) *
                           static_cast<double>(shape.head_dim + shape.head_dim_v);
        if (work + own <= (parts.empty() ? most_work_of_one : most_work)) {
            part.keys = blocks_of(keys, block, all);
            work += own;
        }
        parts.push_back(std::move(part));
    }
    std::reverse(parts.begin(), parts.end());
}

std::string Sample::text(bool backward) const
{
    const std::int64_t group = shape.heads_q / shape.heads_kv;
    const std::vector<std::int64_t> lengths_q = shape.lengths_q();
    const std::vector<std::int64_t> lengths_k = shape.lengths_k();
    // The same spans of several parts are named once.
    std::vector<std::pair<std::string, std::string>> places; // of spans: where
    const auto add = [&places](const std::string& spans, const std::string& place) {
        const auto same = [&spans](const auto& one) { return one.first == spans; };
        const auto found = std::find_if(places.begin(), places.end(), same);
        if (found == places.end()) {
            places.emplace_back(spans, place);
        } else {
            found->second += ", " + place;
        }
    };
    for (const Chosen& part : parts) {
        const std::int64_t first = part.head_kv * group;
        const char* const tensors = !backward ? "o, LSE" : part.has_dbias ? "o, LSE, dQ, dbias" : "o, LSE, dQ";
        add(fmt::format("{} of rows {}", tensors, span_text(part.rows, lengths_q[index(part.sequence)])),
            group == 1 ? fmt::format("sequence {} head {}", part.sequence, first)
                       : fmt::format("sequence {} heads {}-{}", part.sequence, first, first + group - 1));
    }
    for (const Chosen& part : parts) {
        if (backward && !part.keys.empty()) {
            add(fmt::format("dK, dV of keys {}", span_text(part.keys, lengths_k[index(part.sequence)])),
                fmt::format("sequence {} key head {}", part.sequence, part.head_kv));
        }
    }
    std::string text;
    for (const auto& [spans, where] : places) {
        text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", spans, where);
    }
    const auto count = [](std::int64_t number, const char* what) {
        return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
    };
    text += fmt::format(" (of {}, {}", count(shape.batch, "sequence"), count(shape.heads_q, "head"));
    return text + (group == 1 ? ")" : fmt::format(", {})", count(shape.heads_kv, "key head")));
}

} // namespace flashomp::bench
