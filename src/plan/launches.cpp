#include "launches.hpp"

#include "few_queries.hpp"
#include "machines.hpp"
#include "masks.hpp"
#include "option_list.hpp"

#include "cuda/block_shapes.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <iterator>
#include <numeric>
#include <queue>
#include <vector>

namespace flashomp {

namespace {

using offload::Launch;
using offload::Pass;

int round_up(std::int64_t value, int multiple)
{
    return static_cast<int>((value + multiple - 1) / multiple * multiple);
}

struct Blocks {
    int resident, stream;
};

/// The caller's block sizes where given.
Blocks chosen(const Tiling& tiling, const Blocks& automatic, int resident_multiple, int stream_multiple)
{
    const Blocks blocks{tiling.resident_rows > 0 ? tiling.resident_rows : automatic.resident,
                        tiling.stream_rows > 0 ? tiling.stream_rows : automatic.stream};
    if (blocks.resident % resident_multiple != 0 || blocks.stream % stream_multiple != 0) {
        throw Error(fmt::format("tiling was {} resident and {} stream rows; they must be multiples of {} and {}.",
                                blocks.resident, blocks.stream, resident_multiple, stream_multiple));
    }
    return blocks;
}

/// Teams of a launch, as many as reside on the GPU at one time at most. libgomp keeps the stacks of at most 1024 warps
/// between launches; with more, every launch allocates them anew. Launches past libgomp (offload/launch/direct.hpp) do
/// not.
int teams_of(const Tiling& tiling, int team_threads, const Hardware& hardware, bool past_libgomp = false)
{
    constexpr int most = 1024;                      // pieces of offload/launch/team_arena.cpp
    constexpr int lane_registers = 255, lanes = 32; // of our kernels' launches
    const DeviceFacts& gpu = hardware.gpu;
    const int together = gpu.registers / (lane_registers * lanes * team_threads) * gpu.multiprocessors;
    if (tiling.teams > most) {
        throw Error(fmt::format("tiling.teams was {}; allowed are 1 to {}.", tiling.teams, most));
    }
    const int wanted = tiling.teams > 0 ? tiling.teams : (past_libgomp ? most : most / team_threads);
    return together > 0 ? std::min(wanted, together) : wanted;
}

/// When `threads` are done that take items of these costs, longest first, each for so many heads.
double end_of_items(const std::vector<double>& costs, std::int64_t heads, int threads)
{
    constexpr std::int64_t few = 8; // a thread: of more, the last ones are a small part
    const auto items = static_cast<std::int64_t>(costs.size()) * heads;
    const double all = std::accumulate(costs.begin(), costs.end(), 0.0) * static_cast<double>(heads);
    if (items > few * threads) {
        return all / threads + costs.front() / 2;
    }
    std::priority_queue<double, std::vector<double>, std::greater<>> ends;
    for (int thread = 0; thread < threads; ++thread) {
        ends.push(0.0);
    }
    double last = 0.0;
    for (const double cost : costs) {
        for (std::int64_t head = 0; head < heads; ++head) {
            const double end = ends.top() + cost;
            ends.pop();
            ends.push(end);
            last = std::max(last, end);
        }
    }
    return last;
}

/// Query rows of a block: `most`, a half, a quarter and so on, so that `threads` end soonest. Each block streams, and
/// packs, all that it meets: that takes as long as the products of some rows.
int rows_for_threads(const Problem& problem, int most, int threads)
{
    constexpr int packing = 48; // rows: 28 to 64 were measured on AMX, at head_dim 64 and 128
    constexpr int fewest = 32;  // two strips of AMX tiles, which are loaded in pairs
    const auto rows = static_cast<int>(problem.seqlen_q);
    const auto columns = static_cast<int>(problem.seqlen_k);
    const offload::Band band = band_of(problem, rows, columns);
    // Of so many blocks the last one's time is nothing, and smaller ones take longer in all.
    constexpr std::int64_t many = 64; // for each thread
    if ((std::int64_t{rows} + most - 1) / most * problem.batch * problem.heads_q > many * threads) {
        return most;
    }
    const auto time = [&](int each) {
        std::vector<double> costs;
        for (int first = 0; first < rows; first += each) {
            const offload::Range keys = band.keys(first, std::min(rows, first + each));
            costs.push_back(static_cast<double>(std::max(0, keys.end - keys.begin)) * (each + packing));
        }
        std::sort(costs.begin(), costs.end(), std::greater<>());
        return end_of_items(costs, problem.batch * problem.heads_q, threads);
    };
    int best = most;
    double soonest = rows > 0 ? time(most) : 0.0;
    for (int each = most / 2; rows > 0 && each >= fewest; each /= 2) {
        const double end = time(each);
        best = end < soonest ? each : best;
        soonest = std::min(end, soonest);
    }
    return best;
}

/// Host blocks: as many resident rows as the machine likes, since each block streams, and packs, all that it meets; but
/// no more than make 16 blocks of work, nor than keep a crew's pieces in three quarters of a core's own cache. The
/// number of threads counts only where the number of resident rows does not change the bits: where every row begins
/// with key 0.
Blocks host_blocks(const offload::HostIsa& isa, Pass pass, const Problem& problem, const Hardware& hardware)
{
    constexpr std::int64_t fewest_items = 16, typical_cache_bytes = std::int64_t{1} << 20;
    constexpr int fewest_rows = 64;
    const std::int64_t cache_bytes = hardware.core_cache_bytes;
    const bool keys = offload::keys_stay(pass);
    const std::int64_t rows = std::max<std::int64_t>(1, keys ? problem.seqlen_k : problem.seqlen_q);
    const std::int64_t columns = std::max<std::int64_t>(1, keys ? problem.seqlen_q : problem.seqlen_k);
    const std::int64_t heads = problem.batch * (keys ? problem.heads_kv : problem.heads_q);
    if (pass == Pass::forward && rows <= isa.lanes / 2) { // not rounded up: for the machine of few rows
        return {static_cast<int>(rows), keys_in_block(problem, hardware)};
    }
    const auto fits = [&](const Blocks& b) {
        const std::int64_t floats =
            isa.floats(kernel_element(problem.dtype), pass, b.resident, b.stream, static_cast<int>(problem.head_dim),
                       static_cast<int>(problem.head_dim_v));
        return 4 * floats <= (cache_bytes > 0 ? cache_bytes : typical_cache_bytes) / 4 * 3;
    };
    Blocks blocks{isa.most_rows, 128};
    const bool by_threads = pass == Pass::forward && problem.options.window.left < 0;
    while (!by_threads && blocks.resident > fewest_rows &&
           (rows + blocks.resident - 1) / blocks.resident * heads < fewest_items) {
        blocks.resident /= 2;
    }
    if (has_pair_mask(problem.options)) { // larger tiles see more that others hide
        blocks.resident = std::min(blocks.resident, 128);
    }
    while (!fits(blocks) && (blocks.resident > fewest_rows || blocks.stream > 64)) {
        blocks.stream > 64 ? blocks.stream -= 32 : blocks.resident /= 2;
    }
    if (by_threads) { // last: the stream rows, which do change the bits, are those of any number of threads
        blocks.resident = rows_for_threads(problem, blocks.resident, hardware.threads);
    }
    return {static_cast<int>(std::min<std::int64_t>(blocks.resident, round_up(rows, isa.lanes))),
            static_cast<int>(std::min<std::int64_t>(blocks.stream, round_up(columns, 4)))};
}

} // namespace

Launch host_launch_of(Pass pass, const Problem& problem, const Hardware& hardware)
{
    const offload::HostIsa& isa = host_isa_of(problem, hardware);
    const Tiling& tiling = problem.options.tiling;
    const Blocks blocks =
        chosen(tiling, host_blocks(isa, pass, problem, hardware), tiling.resident_rows > 0 ? isa.lanes : 1, 1);
    Launch launch;
    launch.pass = pass;
    launch.resident_rows = blocks.resident;
    launch.stream_rows = blocks.stream;
    launch.crews = hardware.threads;
    launch.crew_floats = isa.floats(kernel_element(problem.dtype), pass, blocks.resident, blocks.stream,
                                    static_cast<int>(problem.head_dim), static_cast<int>(problem.head_dim_v));
    return launch;
}

namespace {

/// Shared memory of a CUDA block: what compute capability 8.6 has, the least of those that run this build.
constexpr std::int64_t cuda_block_floats = (std::int64_t{99} << 10) / 4;
constexpr int cuda_plain_warps = 4; ///< most of a block on the plain machine

static_assert([] {
    for (const Pass pass : {Pass::forward, Pass::backward_query, Pass::backward_key}) {
        for (const int depth : {64, 128, 256, 576}) {
            for (const offload::Operands operands : {offload::Operands::bits16, offload::Operands::tf32}) {
                if (cuda::tensor_shared_bytes(operands, pass, depth, false) > 4 * cuda_block_floats ||
                    cuda::tensor_shared_bytes(operands, pass, depth, true) > 4 * cuda_block_floats) {
                    return false;
                }
            }
        }
    }
    return true;
}());

} // namespace

Launch plain_launch_of(Pass pass, const Problem& problem, const Hardware& hardware)
{
    static constexpr Blocks all[] = {{64, 32}, {64, 16}, {48, 16}, {32, 16}, {16, 16}, {16, 8}, {8, 8}, {8, 4}, {4, 4}};
    // Where rows come in slices, accumulators alone take the memory; 16 micro tiles or more keep a warp or two busy.
    static constexpr Blocks in_slices[] = {{32, 64}, {32, 32}, {16, 64}, {16, 32}, {16, 16}, {8, 48}, {8, 32}, {4, 16}};
    const bool is_sliced = problem.kernel_depth() > offload::most_plain_depth;
    const bool is_cuda = hardware.backend == Backend::cuda;
    const Blocks* const candidates = is_sliced ? std::begin(in_slices) : std::begin(all) + (is_cuda ? 0 : 1);
    const Blocks* const last = (is_sliced ? std::end(in_slices) : std::end(all)) - 1;
    const std::int64_t most_floats = is_cuda ? cuda_block_floats : offload::team_memory_floats();
    const Tiling& tiling = problem.options.tiling;
    const auto d = static_cast<int>(problem.head_dim);
    const auto dv = static_cast<int>(problem.head_dim_v);
    const auto floats = [&](const Blocks& b) {
        return offload::plain_floats(pass, b.resident, b.stream, d, dv, is_cache(problem));
    };
    const auto fits = [&](const Blocks& b) { return floats(b) <= most_floats; };
    Blocks automatic = *std::find_if(candidates, last, fits);
    const std::int64_t resident = pass == Pass::backward_key ? problem.seqlen_k : problem.seqlen_q;
    if (resident < automatic.resident) { // few queries: no rows in vain, and longer steps along the keys
        automatic.resident = round_up(std::max<std::int64_t>(resident, 1), 4);
        while (automatic.stream < 64 && fits({automatic.resident, 2 * automatic.stream})) {
            automatic.stream *= 2;
        }
    }
    const Blocks blocks = chosen(tiling, automatic, 4, 4);
    Launch launch;
    launch.pass = pass;
    launch.resident_rows = blocks.resident;
    launch.stream_rows = blocks.stream;
    launch.crew_floats = floats(blocks);
    launch.depth = problem.kernel_depth();
    launch.needs_memory = !hardware.is_device || (tiling.global_memory && !is_cuda);
    if (!launch.needs_memory && !fits(blocks)) {
        throw Error(fmt::format("tiling was {} resident and {} stream rows, which need {} bytes of shared memory at "
                                "this head_dim; at most {} are there.",
                                blocks.resident, blocks.stream, 4 * launch.crew_floats, 4 * most_floats));
    }
    if (is_cuda) {
        if (tiling.team_threads > cuda_plain_warps) {
            throw Error(fmt::format("tiling.team_threads was {}; allowed on the cuda backend are 1 to {}.",
                                    tiling.team_threads, cuda_plain_warps));
        }
        launch.device = hardware.device;
        launch.crew_threads = tiling.team_threads > 0 ? tiling.team_threads : cuda_plain_warps;
    } else if (hardware.is_device) {
        // Two warps a team were fastest.
        launch.device = hardware.device;
        launch.crew_threads = tiling.team_threads > 0 ? tiling.team_threads : 2;
        launch.crews = teams_of(tiling, launch.crew_threads, hardware);
    } else {
        launch.crew_threads = hardware.threads;
        launch.crews = 1;
    }
    return launch;
}

namespace {

/// Heads that share out the crews by turns: under a causal mask as many as have what streams in the L2 cache, the
/// float32 sums of dQ among that.
int heads_together(Pass pass, const Problem& problem, const Hardware& hardware)
{
    constexpr std::int64_t most = std::int64_t{32} << 20; // more was not measured
    const std::int64_t l2_bytes = hardware.gpu.l2_bytes;
    const std::int64_t cache_bytes = l2_bytes > 0 ? std::min(most, l2_bytes / 50 * 32) : most; // of an H200's 50 MB
    if (problem.options.causal == Causal::none || !problem.starts_q.empty()) {
        return 1;
    }
    const bool keys = offload::keys_stay(pass);
    const std::int64_t group = problem.heads_q / problem.heads_kv;
    const std::int64_t sum_bytes = pass == Pass::backward_once ? std::int64_t{4} * problem.kernel_depth() : 0;
    const std::int64_t row_bytes =
        static_cast<std::int64_t>(size_of(problem.dtype)) * (problem.head_dim + problem.head_dim_v) + sum_bytes;
    const std::int64_t streamed = row_bytes * (keys ? problem.seqlen_q * group : problem.seqlen_k);
    const std::int64_t heads = cache_bytes / std::max<std::int64_t>(1, streamed) * (keys ? 1 : group);
    return static_cast<int>(std::clamp<std::int64_t>(heads, 1, problem.batch * problem.heads_q));
}

/// Under a mask key blocks begin with other query blocks: under a causal one with that of their own rows, so that the
/// last one gets everywhere first. Without one all would begin with the first query block, and wait for one another;
/// where all of a head are at work at once, each begins at another place.
offload::KeyOrder key_order(const Problem& problem, const Launch& launch)
{
    const offload::Band band = band_of(problem, static_cast<int>(problem.seqlen_q), static_cast<int>(problem.seqlen_k));
    if (band.low > 1 - band.q_len || band.high < band.k_len - 1) {
        return offload::KeyOrder::descending;
    }
    const std::int64_t blocks = (problem.seqlen_k + launch.resident_rows - 1) / launch.resident_rows;
    return 2 * blocks <= launch.crews ? offload::KeyOrder::rotating : offload::KeyOrder::ascending;
}

} // namespace

Launch tensor_launch_of(Machine machine, Pass pass, const Problem& problem, const Hardware& hardware)
{
    Launch launch;
    launch.pass = pass;
    launch.depth = problem.kernel_depth();
    const offload::TensorShape shape = shape_of(machine, pass, problem, hardware);
    launch.resident_rows = shape.resident_rows();
    launch.stream_rows = shape.stream_rows;
    launch.needs_memory = false;
    launch.device = hardware.device;
    launch.crew_threads = shape.warps;
    if (hardware.backend == Backend::openmp) {
        launch.crew_teams = shape.teams;
        launch.crews =
            std::max(1, teams_of(problem.options.tiling, launch.crew_threads, hardware, machine == Machine::hopper) /
                            shape.teams);
    }
    launch.heads_together = heads_together(pass, problem, hardware);
    if (pass == Pass::backward_start || pass == Pass::backward_end) {
        launch.crews *= 4; // nobody waits for their teams, which wait for memory
    }
    if (pass == Pass::backward_once) {
        launch.order = key_order(problem, launch);
        if (launch.order == offload::KeyOrder::rotating) {
            launch.heads_together = 1; // crews at work on one head wait for each other in a circle, so all must be
        }
    }
    return launch;
}

} // namespace flashomp
