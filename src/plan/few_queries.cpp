#include "few_queries.hpp"

#include "machines.hpp"
#include "option_list.hpp"

#include <algorithm>

namespace flashomp {

namespace {

/// The largest divisor of n that is at most `most`, or 1.
std::int64_t largest_divisor(std::int64_t n, std::int64_t most)
{
    std::int64_t divisor = std::clamp<std::int64_t>(most, 1, std::max<std::int64_t>(1, n));
    while (n % divisor != 0) {
        --divisor;
    }
    return divisor;
}

/// Bytes that keys and values of all blocks under way may take.
std::int64_t block_bytes(const Hardware& hardware)
{
    constexpr std::int64_t typical_cache_bytes = std::int64_t{1} << 20;
    return (hardware.core_cache_bytes > 0 ? hardware.core_cache_bytes : typical_cache_bytes) / 4;
}

/// Of q's type: so the blocks, and with them the bits, of a cache of 8 bits are those of a cache of its products.
std::int64_t key_bytes(const Problem& problem)
{
    return static_cast<std::int64_t>(size_of(problem.dtype)) * (problem.head_dim + problem.head_dim_v);
}

constexpr int fewest_keys = 16, most_keys = 128;

} // namespace

int most_heads_in_block(const Problem& problem, const Hardware& hardware)
{
    const Options& options = problem.options;
    const std::int64_t rows = problem.seqlen_q;
    const bool sees_all = options.window.left < 0 && options.window.right < 0 &&
                          (options.causal == Causal::none ||
                           (rows == 1 && options.causal == Causal::bottom_right && !has_positions(options)));
    const auto is_one_stride = [rows](const auto& view) {
        return rows == 1 || view.strides[2] == rows * view.strides[1];
    };
    const bool has_rows_sinks = options.sink && !problem.rows_are_heads;        // several rows with one
    const bool tells_queries_apart = options.mask && options.mask.shape[2] > 1; // rows of all heads are those of one
    const bool is_on_host = !hardware.is_device && hardware.backend == Backend::openmp &&
                            (options.machine == Machine::automatic || options.machine == Machine::host);
    if (!is_on_host || options.tiling.resident_rows > 0 || problem.is_backward || !problem.starts_q.empty() ||
        problem.heads_q != problem.heads_kv || !sees_all || tells_heads_apart(options) || has_rows_sinks ||
        tells_queries_apart || rows > host_isa_of(problem, hardware).lanes / 2 || !is_one_stride(problem.q) ||
        !is_one_stride(problem.o) || problem.lse.strides[1] != rows) {
        return 1;
    }
    const std::int64_t most = block_bytes(hardware) / (fewest_keys * key_bytes(problem));
    return static_cast<int>(largest_divisor(problem.heads_kv, most));
}

int keys_in_block(const Problem& problem, const Hardware& hardware)
{
    const std::int64_t keys = block_bytes(hardware) / 2 / (most_heads_in_block(problem, hardware) * key_bytes(problem));
    return static_cast<int>(std::clamp<std::int64_t>(keys / fewest_keys * fewest_keys, fewest_keys, most_keys));
}

int heads_in_block(const Problem& problem, const Hardware& hardware, std::int64_t items)
{
    constexpr int items_of_thread = 2;
    const std::int64_t most = std::min<std::int64_t>(most_heads_in_block(problem, hardware),
                                                     items / (std::int64_t{items_of_thread} * hardware.threads));
    return static_cast<int>(largest_divisor(problem.heads_kv, most));
}

} // namespace flashomp
