// Launching a pass: on host cores, or as one target region whose teams loop over the work.
#pragma once

#include "algorithm/merge.hpp"
#include "algorithm/order.hpp"
#include "algorithm/params.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace flashomp::offload {

/// The schedules. The backward pass is backward_query (dQ, D and the LSE residual), then backward_key (dK and dV), or
/// backward_start (D; on Hopper LSE to base 2, too), backward_once (all three gradients) and on Hopper backward_end (dQ
/// from its sums), then, when asked for, backward_bias and backward_sink.
enum class Pass {
    forward,
    backward_query,
    backward_key,
    backward_bias,
    backward_sink,
    backward_start,
    backward_once,
    backward_end
};

/// Whether keys are what stays in a pass.
constexpr bool keys_stay(Pass pass)
{
    return pass == Pass::backward_key || pass == Pass::backward_once;
}

/// A resident block of one packed sequence.
struct Unit {
    int batch = 0, block = 0;
};

/// How to launch one pass: decided by plan(), obeyed here.
struct Launch {
    Pass pass = Pass::forward;
    int resident_rows = 0;        ///< rows of the block that stays (queries, or keys: keys_stay())
    int stream_rows = 0;          ///< rows of the blocks that stream past it
    int crews = 1;                ///< of crew_teams teams each on a device, threads on the host
    int crew_teams = 1;           ///< teams of a crew: 2 where they are a cluster
    int crew_threads = 1;         ///< OpenMP threads of a team (warps on an NVIDIA GPU); 1 on the host
    std::int64_t crew_floats = 0; ///< memory of one crew
    bool needs_memory = true;     ///< false: tiles go to a device's team-local memory
    int depth = 0;                ///< GPU machines: head_dim and head_dim_v, rounded up to what they are compiled for
    int device = -1;              ///< OpenMP device of a target region; -1 the host
    int heads_in_block = 1;       ///< few queries: resident_rows of each of so many heads are one block
    float* crew_memory = nullptr; ///< crews x crew_floats where needs_memory
    const Unit* units = nullptr;  ///< packed sequences: the blocks there are, costliest first
    int unit_count = 0;
    KeyOrder order = KeyOrder::ascending; ///< of backward_once
    bool is_awaited = true;               ///< false: the call's next launch, past libgomp, too, waits for both
    int heads_together = 1;               ///< so many heads' longest blocks come before their shorter ones
    unsigned* arrivals = nullptr; ///< where crews share blocks: for each block 0, crews that finished; else null. In
                                  ///< backward_once for each block of dQ, [batch, head, block], 0: whose turn it is; of
                                  ///< few queries for each key head 0, crews that finished
};

/// One pass of a call. A target region is given its address where the region runs, in `there`: GCC's runtime would
/// allocate and copy what is mapped in every launch, and every team copies what is firstprivate.
struct Call {
    Params params;
    Launch launch;
    unsigned drawn = 0; ///< tensor and Hopper machine: items that crews drew so far, beyond the first of each
};

/// What a pass says of its run.
struct Ran {
    bool on_device = false;    ///< the region was sent to a device and did not say that it fell back (region.hpp)
    bool all_is_finite = true; ///< false: the host machine found a result that is not (nonfinite.hpp)
    int failure = 0;           ///< of a launch past libgomp (direct.hpp): the driver's CUresult
};

/// A build of the host machine for one instruction set.
struct HostIsa {
    std::string_view name;
    int lanes;                                ///< floats in a vector register
    int most_rows;                            ///< resident rows of a block, where there are enough: a power of two
    bool only_bfloat16;                       ///< has nothing for the other element types
    bool has_one_pass;                        ///< whether it has backward_once, for float32
    bool (*is_supported)();                   ///< by this CPU and the kernel
    Ran (*run)(const Params&, const Launch&); ///< a pass on host threads, one crew each
    Ran (*merge)(const MergeParams&, int);    ///< a merge on so many host threads
    /// crew memory: element type, pass, resident rows, stream rows, head_dim, head_dim_v
    std::int64_t (*floats)(Element, Pass, int, int, int, int);
    /// so many rounds of nothing but products on this thread, whose FLOPs it returns; null: ordinary multiply-adds
    double (*products)(Element, std::int64_t);
    void (*exp2)(const float*, float*); ///< 2^x of 16 floats, as the softmax has it: for its test
};

/// What a program with a score of its own has compiled (flashomp/score_mod.hpp): all passes, with that score. The
/// object whose functions it has is in Params::score_mod.
struct ScoreKernels {
    std::string_view version;     ///< of the headers that it was compiled with
    std::size_t params_bytes = 0; ///< sizeof(Params) and sizeof(Launch) there
    std::size_t launch_bytes = 0;
    HostIsa host; ///< for the instruction set that the program is compiled for
    bool has_gpu_code = false;
    Ran (*run_plain)(const Call&, Call* there) = nullptr;   ///< as run_plain()
    Ran (*run_visible)(const Call&, Call* there) = nullptr; ///< as run_visible()
    void (*repair_forward)(const Params&, int threads) = nullptr;
    void (*repair_backward)(const Params&, int threads) = nullptr;
};

/// The target regions among them, compiled where FLASHOMP_SCORE_MOD_GPU_CODE(F) stands (score_mod_gpu.hpp).
struct ScoreRegions {
    Ran (*run_plain)(const Call&, Call* there);
    Ran (*run_visible)(const Call&, Call* there);
};

template <class F>
ScoreRegions regions_of();

/// All host builds in this library, best first; a CPU that has one has those after it, and the last one runs
/// everywhere.
const std::vector<HostIsa>& host_isas();

/// `best`, or where it has nothing for the element type the next after it.
const HostIsa& isa_for(const HostIsa& best, Element element);

/// The larger head dim of calls whose rows the plain machine takes into team memory; beyond it, it takes slices of them
/// (plain/sliced_machine.hpp).
inline constexpr int most_plain_depth = 256;

/// The larger head dim of calls with a mask that run on tensor cores.
inline constexpr int most_masked_tensor_depth = 128;

/// A pass on the plain machine, as a target region on launch.device (-1 or the initial device: on the host). In these
/// functions `there` is the same call in the memory of that device.
Ran run_plain(const Call& call, Call* there);

/// run_plain() for depths beyond most_plain_depth.
Ran run_sliced(const Call& call, Call* there);

/// Whether the plain machine is there for a depth (Launch). In builds with GPU code the sliced one is a library of its
/// own, opened when somebody first asks.
bool has_plain_machine(int depth);

/// Whether the plain machine whose sums leave out hidden pairs is there for a depth (plain/visible_machine.hpp). In
/// builds with GPU code it is a library of its own, opened when somebody first asks.
bool has_visible_machine(int depth);

/// A pass on it. run_visible_sliced() is for depths beyond most_plain_depth; run_visible() calls it.
Ran run_visible_sliced(const Call& call, Call* there);
Ran run_visible(const Call& call, Call* there);

/// Whether the plain machine that takes masks is there (plain/masked_machine.hpp): as the visible machine.
bool has_masked_machine();

/// A pass on it. On a device it fills the pass's table of tiles before.
Ran run_masked(const Call& call, Call* there);

/// The same of tensor cores (nvidia/masked_tensor_machine.hpp): 16 bits, depths up to most_masked_tensor_depth, and
/// scores that are scaled dot products.
bool has_masked_tensor_machine();
Ran run_masked_tensor(const Call& call, Call* there);

/// Whether the kernels of few queries are there (nvidia/few_queries_crew.hpp): as the visible machine. And a pass on
/// them.
bool has_few_queries();
Ran run_few_queries(const Call& call, Call* there);

/// A pass on the tensor-core machine: on a device from sm_80 (what this library is built for).
Ran run_tensor(const Call& call, Call* there);

/// Whether this build has GPU code.
bool has_gpu_code();

/// Whether the tensor-core machine is there for tensors of an element type and depth (Launch). float32 and depths
/// beyond 128 are libraries of their own, opened when somebody first asks.
bool has_tensor_machine(Element element, int depth);

/// A pass on the tensor-core machine with Hopper's warpgroup products. Only after load_hopper_machine() was true.
Ran run_hopper(const Call& call, Call* there);

/// Opens the library with the Hopper machine, whose GPU code every device of the process is then given: only on
/// devices of compute capability 9.0. False where the build has none, and where the library's kernels cannot be
/// launched past libgomp (direct.hpp) on this device: -1 is one that is planned for and not there.
bool load_hopper_machine(int device = -1);

/// After that: whether the Hopper machine is there for a depth (Launch). Depths beyond 128 are a library of their own,
/// opened when somebody first asks.
bool has_hopper_machine(int depth);

/// Whether a pass with blocks reads a table of tiles where the call has a mask (mask_tiles.hpp).
constexpr bool has_tiles(Pass pass)
{
    return pass != Pass::backward_sink && pass != Pass::backward_start;
}

/// Bytes of that table.
std::int64_t tile_bytes(const Params& params, const Launch& launch);

/// Makes params.mask.tiles that table, in such memory.
void set_tiles(Params& params, const Launch& launch, const std::uint8_t* memory);

/// Fills it, on so many host threads.
void fill_tiles(const Params& params, const Launch& launch, int threads);

/// A merge of so many units (merge_units()), as a target region on a device, in whose memory the parameters are.
Ran run_merge(const MergeParams* there, std::int64_t units, int device);

/// Crew memory of the plain machine. is_cache: keys and values are in one.
std::int64_t plain_floats(Pass pass, int resident_rows, int stream_rows, int head_dim, int head_dim_v, bool is_cache);

/// Floats of team-local shared memory that a team may use on a device.
std::int64_t team_memory_floats();

} // namespace flashomp::offload
