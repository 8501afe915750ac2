#include "table.hpp"

#include "option_list.hpp"
#include "words.hpp"

#include "flashomp/version.hpp"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

namespace flashomp::tuning {

namespace {

std::int64_t bucket(std::int64_t size)
{
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1))));
}

Mask mask_of(const Problem& problem)
{
    if (problem.options.window.left >= 0 || problem.options.window.right >= 0) {
        return Mask::window;
    }
    return problem.options.causal == Causal::none ? Mask::none : Mask::causal;
}

} // namespace

ShapeClass class_of(const Problem& problem, Backend backend)
{
    ShapeClass shape;
    shape.backend = backend;
    shape.is_backward = problem.is_backward;
    shape.dtype = problem.dtype;
    shape.depth = problem.kernel_depth();
    shape.mask = mask_of(problem);
    shape.is_modified = modifies_scores(problem.options);
    shape.is_packed = !problem.starts_q.empty();
    shape.seqlen_q = bucket(problem.seqlen_q);
    shape.seqlen_k = bucket(problem.seqlen_k);
    shape.query_heads = bucket(problem.batch * problem.heads_q);
    shape.key_heads = bucket(problem.batch * problem.heads_kv);
    return shape;
}

std::string text_of(const ShapeClass& shape)
{
    return fmt::format("{} {} {} d{}{}{}{} n{}x{} heads {}x{}", word_of(shape.backend),
                       shape.is_backward ? "backward" : "forward", name_of(shape.dtype), shape.depth,
                       shape.mask == Mask::none ? "" : fmt::format(" {}", word_of(shape.mask)),
                       shape.is_modified ? " modified" : "", shape.is_packed ? " packed" : "", shape.seqlen_q,
                       shape.seqlen_k, shape.query_heads, shape.key_heads);
}

std::string text_of(const Choice& choice)
{
    const Tiling& tiling = choice.tiling;
    std::string text{word_of(choice.machine)};
    const auto add = [&](int value, const char* what) { text += value > 0 ? fmt::format(", {} {}", value, what) : ""; };
    add(tiling.resident_rows, "resident rows");
    add(tiling.stream_rows, "stream rows");
    add(tiling.teams, "teams");
    add(tiling.team_threads, "threads a team");
    return text + (tiling.global_memory ? ", global memory" : "");
}

const std::string& this_build()
{
    // Never destroyed: a call in an atexit handler asks for it, too.
    static const std::string& build = *[] {
        const BuildInfo& info = build_info();
        return new std::string(fmt::format("{}, {}, {}, {}", info.version, info.commit, info.compiler, info.flags));
    }();
    return build;
}

const Entry* Tables::find(const ShapeClass& shape) const
{
    for (const Table* table : {user, shipped}) {
        if (table == nullptr) {
            continue;
        }
        if (const auto found = table->entries.find(shape); found != table->entries.end()) {
            return &found->second;
        }
    }
    return nullptr;
}

} // namespace flashomp::tuning
