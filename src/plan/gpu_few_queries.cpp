#include "gpu_few_queries.hpp"

#include "machines.hpp"
#include "masks.hpp"
#include "option_list.hpp"

#include "algorithm/rounded_delta.hpp"
#include "launch/few_queries_shapes.hpp"
#include "launch/parts.hpp"

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

/// Query heads that share a key head.
std::int64_t group_of(const Problem& problem)
{
    return problem.heads_q / std::max<std::int64_t>(1, problem.heads_kv);
}

FewQueriesShape backward_shape(const Problem& problem, const Hardware& hardware)
{
    return offload::few_queries_shape(true, hardware.backend == Backend::cuda, problem.kernel_depth(),
                                      group_of(problem) * problem.seqlen_q);
}

/// Queries of each head of a block, and heads: as many of a group as there is room for, and as divide it.
struct FewBlock {
    std::int64_t queries = 1, heads = 1;
};

FewBlock forward_block(const Problem& problem, const Hardware& hardware)
{
    const std::int64_t most =
        offload::most_few_queries(false, hardware.backend == Backend::cuda, problem.kernel_depth());
    FewBlock block{std::clamp<std::int64_t>(problem.seqlen_q, 1, most), group_of(problem)};
    while (block.heads > 1 && (group_of(problem) % block.heads != 0 || block.heads * block.queries > most)) {
        --block.heads;
    }
    return block;
}

FewQueriesShape forward_shape(const Problem& problem, const Hardware& hardware)
{
    const FewBlock block = forward_block(problem, hardware);
    return offload::few_queries_shape(false, hardware.backend == Backend::cuda, problem.kernel_depth(),
                                      block.queries * block.heads);
}

std::int64_t crews_at_once(const FewQueriesShape& shape, const Hardware& hardware)
{
    constexpr std::int64_t of_system = 1024;  // bytes of shared memory, for each block
    constexpr std::int64_t most_teams = 1024; // pieces of offload/launch/team_arena.cpp
    const bool is_cuda = hardware.backend == Backend::cuda;
    const std::int64_t memory = is_cuda ? shape.memory_bytes() : offload::team_memory_bytes;
    std::int64_t crews = shape.crews;
    if (hardware.gpu.shared_bytes > 0) {
        crews = std::clamp<std::int64_t>(hardware.gpu.shared_bytes / (memory + of_system), 1, crews);
    }
    crews *= hardware.gpu.multiprocessors > 0 ? hardware.gpu.multiprocessors : most_teams; // unknown: not too few
    return is_cuda ? crews : std::min(crews, most_teams);
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

/// Of both passes.
bool is_usual(const Problem& problem)
{
    const bool is_16_bit = problem.dtype == DType::bfloat16 || problem.dtype == DType::float16;
    return is_16_bit && !has_pair_mask(problem.options) && !has_seam(problem.options) &&
           problem.options.tiling == Tiling{} && !modifies_scores(problem.options);
}

Launch launch_of(const FewQueriesShape& shape, const Hardware& hardware)
{
    Launch launch;
    launch.depth = shape.depth;
    launch.crew_threads = shape.warps;
    launch.needs_memory = false;
    launch.device = hardware.device;
    if (hardware.backend == Backend::openmp) {
        launch.crews = static_cast<int>(crews_at_once(shape, hardware));
    }
    return launch;
}

} // namespace

std::string few_forward_obstacle(Pass pass, const Problem& problem, const Hardware& hardware)
{
    constexpr std::int64_t most_queries = 32;  // of each head: what more of them are faster with was not measured
    constexpr std::int64_t most_heads = 65535; // along an axis of CUDA's grids
    const bool is_there = pass == Pass::forward && is_usual(problem) && problem.seqlen_q >= 1 &&
                          problem.seqlen_q <= most_queries && problem.heads_q <= most_heads &&
                          forward_shape(problem, hardware).depth > 0;
    return is_there ? "" : "forward has few queries of 16 bits, and scores that are scaled dot products";
}

std::string few_backward_obstacle(Pass pass, const Problem& problem, const Hardware& hardware)
{
    const bool is_there = pass == Pass::backward_query && is_usual(problem) && !problem.keys_are_part() &&
                          has_results_like_q(problem) && backward_shape(problem, hardware).depth > 0 &&
                          may_keep_delta(problem);
    return is_there ? "" : "backward has few queries of 16 bits, 256 keys, and scores that are scaled dot products";
}

Launch few_forward_launch(Pass pass, const Problem& problem, const Hardware& hardware)
{
    const FewBlock block = forward_block(problem, hardware);
    const FewQueriesShape shape = forward_shape(problem, hardware);
    Launch launch = launch_of(shape, hardware);
    launch.pass = pass;
    launch.resident_rows = static_cast<int>(block.queries);
    launch.heads_in_block = static_cast<int>(block.heads);
    launch.stream_rows = 16; // of each warp
    return launch;
}

/// Four warps of each multiprocessor have 64 KB of keys and values on their way, which memory takes to be busy. On an
/// H200 twice and three times as many with shorter parts were 1 to 6 % slower, with 32 heads on 8 of 128 and 1024 to
/// 65536 keys (docs/log/cuda-history.md, "Attention of few queries"). g++'s code takes longer for 16 keys: six warps
/// were up to 6 % faster than four, and than eight up to 2 %. What the last crew reads of all parts grows with them and
/// with the rows: √(keys / rows) parts are the best of both.
int few_forward_parts(std::int64_t blocks, const Problem& problem, const Hardware& hardware)
{
    constexpr std::int64_t fewest_keys = 64;
    const std::int64_t warps = hardware.backend == Backend::cuda ? 4 : 6;
    const FewQueriesShape shape = forward_shape(problem, hardware);
    const FewBlock block = forward_block(problem, hardware);
    const std::int64_t rows = std::max<std::int64_t>(4, block.queries * block.heads);
    const std::int64_t keys = problem.seen_keys();
    const std::int64_t crews = hardware.gpu.multiprocessors * warps / shape.warps;
    std::int64_t parts =
        std::clamp<std::int64_t>(crews / std::max<std::int64_t>(1, blocks), 1, offload::most_merged_parts);
    while (parts > 1 && (parts * parts * rows > keys || parts * fewest_keys > keys)) {
        --parts;
    }
    return static_cast<int>(parts);
}

Launch few_backward_launch(Pass /*pass*/, const Problem& problem, const Hardware& hardware)
{
    const FewQueriesShape shape = backward_shape(problem, hardware);
    const std::int64_t parts = parts_of_few(shape, problem, hardware);
    const std::int64_t rounds = (problem.seqlen_k + shape.round() - 1) / shape.round();
    Launch launch = launch_of(shape, hardware);
    launch.pass = Pass::backward_once;
    launch.resident_rows = static_cast<int>(std::max<std::int64_t>(1, (rounds + parts - 1) / parts)) * shape.round();
    launch.stream_rows = 8 * shape.tiles;
    return launch;
}

std::int64_t few_backward_bytes(Pass /*pass*/, const Problem& problem, const Hardware& hardware)
{
    const FewQueriesShape shape = backward_shape(problem, hardware);
    const std::int64_t parts = parts_of_few(shape, problem, hardware);
    return parts > 1 ? 4 * key_heads(problem) * parts * shape.sum_floats() : 0;
}

} // namespace flashomp
