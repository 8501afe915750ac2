#include "splits.hpp"

#include "few_queries.hpp"
#include "launch/parts.hpp"
#include "machines.hpp"
#include "masks.hpp"
#include "registry.hpp"

#include <algorithm>
#include <utility>

namespace flashomp {

using offload::Launch;
using offload::Pass;

std::int64_t statistic_rows(const Problem& problem)
{
    return problem.lse.elements();
}

std::int64_t key_rows(const Problem& problem)
{
    return problem.k.elements() / std::max<std::int64_t>(1, problem.head_dim);
}

std::int64_t block_count(const Problem& problem, const PassPlan& pass)
{
    const bool keys = offload::keys_stay(pass.launch.pass);
    const std::int64_t rows = keys ? problem.seqlen_k : problem.seqlen_q;
    const std::int64_t blocks = problem.starts_q.empty()
                                    ? (rows + pass.launch.resident_rows - 1) / pass.launch.resident_rows * problem.batch
                                    : static_cast<std::int64_t>(pass.units.size());
    return blocks * (keys ? problem.heads_kv : problem.heads_q / pass.launch.heads_in_block);
}

std::vector<offload::Unit> packed_units(const Problem& problem, const Launch& launch)
{
    const bool keys = offload::keys_stay(launch.pass);
    std::vector<std::pair<std::int64_t, offload::Unit>> costs;
    for (std::size_t b = 0; b + 1 < problem.starts_q.size(); ++b) {
        const int q_len = problem.starts_q[b + 1] - problem.starts_q[b];
        const int k_len = problem.starts_k.empty() // a cache, whose lengths change from run to run
                              ? static_cast<int>(problem.seqlen_k)
                              : problem.starts_k[b + 1] - problem.starts_k[b];
        const offload::Band band = band_of(problem, q_len, k_len);
        const int length = keys ? k_len : q_len;
        for (int first = 0; first < length; first += launch.resident_rows) {
            const int last = std::min(length, first + launch.resident_rows);
            const offload::Range range = keys ? band.queries(first, last) : band.keys(first, last);
            costs.push_back({range.end - range.begin, {static_cast<int>(b), first / launch.resident_rows}});
        }
    }
    // Crews wait for the blocks of a sequence that come before theirs: none of those may be drawn later.
    for (std::size_t i = costs.size(); launch.pass == Pass::backward_once && i-- > 1;) {
        if (costs[i - 1].second.batch == costs[i].second.batch) {
            costs[i - 1].first = std::max(costs[i - 1].first, costs[i].first);
        }
    }
    std::stable_sort(costs.begin(), costs.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<offload::Unit> units;
    units.reserve(costs.size());
    for (const auto& [cost, unit] : costs) {
        units.push_back(unit);
    }
    return units;
}

bool merges_in_pass(const Problem& problem, const PassPlan& pass, const Hardware& hardware)
{
    constexpr std::int64_t floats_at_once = 4;
    // Crews of OpenMP's tensor machine have one item each only if all of them are there at one time (teams_of()).
    return pass.kernel->merges_parts && hardware.gpu.multiprocessors > 0 && problem.head_dim_v % floats_at_once == 0;
}

std::int64_t most_queries_of_parts(const Problem& problem)
{
    return problem.kernel_depth() <= 256 ? 64 : 128;
}

namespace {

/// Where the pass itself merges. The last crew of an item reads all its parts, and a crew takes 0.02 us a key: with 4
/// rows √(keys / 4) parts are the best of both, and more rows are more to read. A second crew on a multiprocessor, and
/// more, share what it reads and pay for longer parts only. Measured on an H200 with 32 heads on 8 of 128
/// (docs/log/masks.md, "Parts, once more").
std::int64_t parts_merged_in_pass(std::int64_t items, std::int64_t rows, std::int64_t keys, std::int64_t crews,
                                  int multiprocessors)
{
    const std::int64_t keys_of_one_part = std::max<std::int64_t>(4, rows);
    const auto pays = [&](std::int64_t parts) {
        const std::int64_t all = parts * items;
        const std::int64_t fewest_keys = all <= multiprocessors ? 64 : (all <= 2L * multiprocessors ? 128 : 256);
        return parts * parts * keys_of_one_part <= keys && parts * fewest_keys <= keys;
    };
    std::int64_t parts = std::clamp<std::int64_t>(crews / items, 1, offload::most_merged_parts);
    while (parts > 1 && !pays(parts)) {
        --parts;
    }
    return parts;
}

} // namespace

int split_count(const Problem& problem, const PassPlan& pass, const Hardware& hardware)
{
    const bool in_pass = merges_in_pass(problem, pass, hardware);
    const int heads = most_heads_in_block(problem, hardware);
    const std::int64_t fewest_keys = !hardware.is_device && heads == 1 ? 1024 : 512; // of keys of a part
    // On a GPU a merge that is a launch of its own takes as long as one crew some 4096 keys.
    const std::int64_t fewest_for_launch = hardware.is_device ? 4096 : 2 * fewest_keys;
    const std::int64_t fewest_in_all = in_pass ? 512 : fewest_for_launch;
    const std::int64_t items = block_count(problem, pass) / heads;
    const std::int64_t keys = problem.seen_keys();
    if (!pass.kernel->takes_parts_of_keys || items == 0 || problem.seqlen_q > most_queries_of_parts(problem) ||
        keys < fewest_in_all) {
        return 1;
    }
    if (in_pass && pass.kernel->parts != nullptr) {
        return pass.kernel->parts(items, problem, hardware);
    }
    constexpr std::int64_t for_cuda = 512, for_host = 64;
    const bool is_cuda = hardware.backend == Backend::cuda;
    const std::int64_t wanted = !hardware.is_device ? for_host : (is_cuda ? for_cuda : pass.launch.crews);
    const std::int64_t splits =
        in_pass ? parts_merged_in_pass(items, std::min<std::int64_t>(problem.seqlen_q, pass.launch.resident_rows), keys,
                                       wanted, hardware.gpu.multiprocessors)
                : std::min(wanted / items, keys / fewest_keys);
    return static_cast<int>(std::clamp<std::int64_t>(splits, 1, 512));
}

int head_split_count(const Problem& problem, const PassPlan& pass)
{
    const std::int64_t wanted = pass.launch.crews * (problem.options.causal == Causal::none ? 1 : 4);
    constexpr std::int64_t floats_at_once = 4;
    if (pass.launch.pass != Pass::backward_key || !pass.kernel->merges_parts ||
        problem.head_dim % floats_at_once != 0 || problem.head_dim_v % floats_at_once != 0) {
        return 1;
    }
    const std::int64_t items = std::max<std::int64_t>(1, block_count(problem, pass));
    const std::int64_t most = statistic_rows(problem) * problem.head_dim /
                              std::max<std::int64_t>(1, key_rows(problem) * (problem.head_dim + problem.head_dim_v));
    const std::int64_t group = problem.heads_q / problem.heads_kv;
    std::int64_t splits = std::min({group, most, (wanted + items - 1) / items});
    while (splits > 1 && group % splits != 0) {
        --splits;
    }
    return static_cast<int>(std::max<std::int64_t>(1, splits));
}

} // namespace flashomp
