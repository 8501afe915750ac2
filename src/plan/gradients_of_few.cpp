#include "gradients_of_few.hpp"

#include "machines.hpp"
#include "masks.hpp"
#include "option_list.hpp"

#include "algorithm/rounded_delta.hpp"
#include "launch/few_queries_shapes.hpp"

#include <algorithm>

namespace flashomp {

using offload::FewQueriesShape;
using offload::Launch;
using offload::Pass;

namespace {

std::int64_t key_heads(const Problem& problem)
{
    return std::max<std::int64_t>(1, problem.batch * problem.heads_kv);
}

FewQueriesShape shape_of_few(const Problem& problem, const Hardware& hardware)
{
    const std::int64_t group = problem.heads_q / std::max<std::int64_t>(1, problem.heads_kv);
    return offload::few_queries_shape(hardware.backend == Backend::cuda, problem.kernel_depth(),
                                      group * problem.seqlen_q);
}

std::int64_t crews_at_once(const FewQueriesShape& shape, const Hardware& hardware)
{
    constexpr std::int64_t of_system = 1024;  // bytes of shared memory, for each block
    constexpr std::int64_t most_teams = 1024; // pieces of offload/launch/team_arena.cpp
    std::int64_t crews = shape.crews;
    if (hardware.gpu.shared_bytes > 0) {
        crews = std::clamp<std::int64_t>(hardware.gpu.shared_bytes / (shape.memory_bytes() + of_system), 1, crews);
    }
    crews *= std::max(1, hardware.gpu.multiprocessors);
    return hardware.backend == Backend::openmp ? std::min(crews, most_teams) : crews;
}

/// Parts of the keys of each key head: so many that all crews are at work at one time, or so many more that the last
/// ones are short.
std::int64_t parts_of_few(const FewQueriesShape& shape, const Problem& problem, const Hardware& hardware)
{
    constexpr std::int64_t rounds_of_crews = 4, most = 128;
    const std::int64_t at_once = crews_at_once(shape, hardware);
    const std::int64_t heads = key_heads(problem);
    const std::int64_t wanted =
        2 * heads <= at_once ? at_once / heads : (rounds_of_crews * at_once + heads - 1) / heads;
    const std::int64_t rounds = (problem.seqlen_k + shape.round() - 1) / shape.round();
    return std::clamp<std::int64_t>(std::min(wanted, rounds), 1, most);
}

/// Whether D from an O that was rounded will do, in each sequence. dsink is a sum of D, which the pass keeps to itself.
bool may_keep_delta(const Problem& problem)
{
    if (problem.dsink) {
        return false;
    }
    const auto in = [&](std::int64_t q_len, std::int64_t k_len) {
        return offload::may_keep_delta(band_of(problem, static_cast<int>(q_len), static_cast<int>(k_len)), false);
    };
    if (problem.starts_q.empty()) {
        return in(problem.seqlen_q, problem.seqlen_k);
    }
    for (std::size_t b = 0; b + 1 < problem.starts_q.size(); ++b) {
        const std::int64_t q_len = problem.starts_q[b + 1] - problem.starts_q[b];
        const std::int64_t k_len = problem.starts_k[b + 1] - problem.starts_k[b];
        if (q_len > 0 && k_len > 0 && !in(q_len, k_len)) {
            return false;
        }
    }
    return true;
}

} // namespace

std::string obstacle_of_few(Pass pass, const Problem& problem, const Hardware& hardware)
{
    const bool is_16_bit = problem.dtype == DType::bfloat16 || problem.dtype == DType::float16;
    const bool is_usual = !has_pair_mask(problem.options) && !has_seam(problem.options) && !problem.keys_are_part() &&
                          problem.options.tiling == Tiling{} && has_results_like_q(problem) &&
                          !modifies_scores(problem.options);
    const bool is_there = pass == Pass::backward_query && is_16_bit && is_usual &&
                          shape_of_few(problem, hardware).depth > 0 && may_keep_delta(problem);
    return is_there ? "" : "backward has few queries of 16 bits, 256 keys, and scores that are scaled dot products";
}

Launch launch_of_few(Pass /*pass*/, const Problem& problem, const Hardware& hardware)
{
    const FewQueriesShape shape = shape_of_few(problem, hardware);
    const std::int64_t parts = parts_of_few(shape, problem, hardware);
    const std::int64_t rounds = (problem.seqlen_k + shape.round() - 1) / shape.round();
    Launch launch;
    launch.pass = Pass::backward_once;
    launch.depth = shape.depth;
    launch.resident_rows = static_cast<int>(std::max<std::int64_t>(1, (rounds + parts - 1) / parts)) * shape.round();
    launch.stream_rows = 8 * shape.tiles;
    launch.crew_threads = shape.warps;
    launch.needs_memory = false;
    launch.device = hardware.device;
    if (hardware.backend == Backend::openmp) {
        launch.crews = static_cast<int>(crews_at_once(shape, hardware));
    }
    return launch;
}

std::int64_t bytes_of_few(Pass /*pass*/, const Problem& problem, const Hardware& hardware)
{
    const FewQueriesShape shape = shape_of_few(problem, hardware);
    const std::int64_t parts = parts_of_few(shape, problem, hardware);
    return parts > 1 ? 4 * key_heads(problem) * parts * shape.sum_floats() : 0;
}

} // namespace flashomp
