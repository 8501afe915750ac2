// Everything a caller can choose about one attention call.
#pragma once

#include "flashomp/block_mask.hpp"
#include "flashomp/score_pair.hpp"
#include "flashomp/tensor.hpp"

#include <array>
#include <cstdint>
#include <optional>

namespace flashomp {

namespace offload {
struct ScoreKernels;
}

/// Which keys a causal row may see when seqlen_q and seqlen_k differ. top_left keeps key j <= query i;
/// bottom_right keeps j <= i + seqlen_k - seqlen_q, so that the last query sees every key (the convention of
/// FlashAttention >= 2.1). There is deliberately no bare "causal".
enum class Causal : std::uint8_t { none, top_left, bottom_right };

/// Sliding window around the diagonal that ends bottom right: with delta = seqlen_k - seqlen_q, row i keeps
/// i + delta - left <= j <= i + delta + right. -1 is unbounded.
struct Window {
    std::int64_t left = -1;
    std::int64_t right = -1;

    friend bool operator==(const Window&, const Window&) = default;
};

/// Rows that follow one another: `count` of them, from position `first` of the whole sequence on.
struct Stretch {
    std::int64_t first = 0;
    std::int64_t count = 0;

    friend bool operator==(const Stretch&, const Stretch&) = default;
};

/// Where the rows of a shard stand in the whole sequence: those of stretches[0], then those of stretches[1], which
/// begins where stretches[0] ends or later. Contiguous sharding has one stretch (the other has count 0), zigzag
/// sharding two.
struct Positions {
    std::int64_t whole = 0; ///< rows of the whole sequence, at most 2^30; 0: not given, the rows are the whole sequence
    std::array<Stretch, 2> stretches = {};

    [[nodiscard]] std::int64_t rows() const { return stretches[0].count + stretches[1].count; }
    /// Of row `row` of the shard.
    [[nodiscard]] std::int64_t operator[](std::int64_t row) const
    {
        const std::int64_t beyond = row - stretches[0].count;
        return beyond < 0 ? stretches[0].first + row : stretches[1].first + beyond;
    }

    explicit operator bool() const { return whole != 0; }
    friend bool operator==(const Positions&, const Positions&) = default;
};

/// Counter-based dropout on the probabilities (Philox4x32-10, Salmon et al. 2011). The draw for an element
/// depends only on (seed, offset, batch, query head, i, j); with Options::first_sequence and first_head on the numbers
/// that batch and head have in the whole.
struct Dropout {
    double probability = 0.0; ///< chance that a probability is dropped, in [0, 1)
    std::uint64_t seed = 0;
    std::uint64_t offset = 0;

    friend bool operator==(const Dropout&, const Dropout&) = default;
};

/// Which implementation runs. `automatic` is cuda where it is built (FLASHOMP_BACKEND=cuda), finds a GPU and neither
/// device nor machine is host; else openmp.
enum class Backend : std::uint8_t { automatic, openmp, reference, cuda };

/// Which tile machine a backend uses. `automatic` picks `host` on the CPU and on a GPU, for each pass,
/// `hopper` (tensor cores, products of four warps; compute capability 9.0, 16 bits) or `tensor` (tensor cores, products
/// of a warp; float32 as three TF32 products) where they have a kernel, else `plain`; few queries are for `tensor`.
/// `plain` on the CPU (openmp only) runs the GPU's directives through the host fallback: slow, for tests.
enum class Machine : std::uint8_t { automatic, host, plain, tensor, hopper };

/// Overrides what plan() decides, for tuning and tests; 0 leaves the choice to it, or to what `flashomp tune` found.
/// Resident rows are those of the block that a crew keeps in place (queries; keys for dK and dV), stream rows those of
/// the blocks that stream past it.
struct Tiling {
    int resident_rows = 0; ///< multiple of 4 (plain) or of the vector length (host), at most 1024
    int stream_rows = 0;   ///< multiple of 4, at most 1024
    int teams = 0; ///< at most 1024 (small launches may have four times as many); openmp on a GPU only: cuda launches a
                   ///< block for each block of rows
    int team_threads = 0;       ///< OpenMP threads a team (warps on an NVIDIA GPU), at most 32
    bool global_memory = false; ///< openmp, plain machine: tiles in ordinary device memory instead of shared memory

    friend bool operator==(const Tiling&, const Tiling&) = default;
};

/// Where to run: the first GPU if there is one (automatic), the CPU (host), or the backend's device 0, 1, ... (gpu).
struct Device {
    enum class Kind : std::uint8_t { automatic, host, gpu };
    Kind kind = Kind::automatic;
    int index = 0; ///< the backend's number of the device, used when kind is gpu

    friend bool operator==(const Device&, const Device&) = default;
};

/// A program's own score and mask, and the passes that were compiled with them: what score_mod() makes of an object
/// (score_mod.hpp). It holds a copy of the object.
struct ScoreMod {
    alignas(16) std::array<unsigned char, 64> object = {};
    const offload::ScoreKernels* kernels = nullptr; ///< null: none
    const ScoreFunctions* functions = nullptr;      ///< there where kernels are

    explicit operator bool() const { return kernels != nullptr; }
    friend bool operator==(const ScoreMod&, const ScoreMod&) = default;
};

/// Options of one forward or backward call; backward must be given the options of its forward.
///
/// Shapes: B batch, Hq query heads, Nq = seqlen_q, Nk = seqlen_k. Tensors that are left out (rank 0) are off.
/// All members are initialised, so that `Options{.scale = 1.0}` names one without a warning about the others.
struct Options {
    /// Multiplies q·k; default 1/sqrt(head_dim). 0, or 1.2e-38 to 2.35e+38 in size: log2(e) times it is a float32, too.
    std::optional<double> scale = {};
    Causal causal = Causal::none;          ///< intersects with window and all masks
    Window window = {};                    ///< see Window
    double softcap = 0.0;                  ///< c > 0: s = c·tanh(s/c); 0 is off
    ConstTensorView alibi_slopes = {};     ///< float32 [Hq] or [B, Hq]: s -= slope·|i + Nk - Nq - j|
    ConstTensorView bias = {};             ///< float32 or the input dtype, [1|B, 1|Hq, 1|Nq, 1|Nk]: s += bias
    ConstTensorView key_padding_mask = {}; ///< boolean [B, Nk]: false hides the key
    ConstTensorView cu_seqlens_q = {};     ///< int32 [B+1]: q is packed [total_q, Hq, head_dim]
    ConstTensorView cu_seqlens_k = {};     ///< int32 [B+1]: k and v are packed [total_k, Hkv, ...]
    /// Boolean [1|B, 1|Hq, 1|Nq, 1|Nk] of any strides, or bits [1|B, 1|Hq, 1|Nq, ceil(Nk / 8)] (DType::bits): true
    /// keeps the pair. With packed sequences Nq and Nk are the longest, and positions count from the start of a
    /// sequence.
    ConstTensorView mask = {};
    /// Blocks of pairs that are whole, partial or hidden, of [1|B, 1|Hq, Nq, Nk]. Intersects with mask. Prepared calls
    /// keep the one that they were prepared with.
    BlockMask block_mask = {};
    /// Of a shard: where the rows of q, and those of k and v, stand in the whole sequence. See attention.hpp, "Shards".
    Positions positions_q = {}, positions_k = {};
    /// Of some sequences and query heads of a larger call: the numbers of their first ones there. Dropout and score_mod
    /// go by them, and nothing else does.
    std::int64_t first_sequence = 0, first_head = 0;
    ConstTensorView sink = {}; ///< float32 [Hq]: an extra logit in the denominator and the LSE only
    Dropout dropout = {};
    /// Only where q, k and v are float8_e4m3, each float32 [heads] or [B, heads] of its tensor: elements are to be
    /// multiplied with them. Default 1. k_scale and v_scale also where k and v are a key/value cache of float8_e4m3 or
    /// int8 and q is not: float32 [Hkv], or with k's first axis before the heads, which is [B, Hkv], [caches, Hkv] with
    /// cache_batch_index, and [pages, Hkv] with pages: every page has scales of its own. Finite and above 0.
    ConstTensorView q_scale = {}, k_scale = {}, v_scale = {};
    /// s = score(s), before softcap, ALiBi and bias, and one more mask: functions of the program, compiled with the
    /// passes (score_mod.hpp). On the host and on the plain machine of the openmp backend's GPUs, and in the reference.
    ScoreMod score_mod = {};

    // k and v are a key/value cache where any of these is given: see attention.hpp, "Caches". They are in host memory,
    // like cu_seqlens, whose q may be given with a cache.
    ConstTensorView cache_seqlens = {}; ///< int32 [B]: keys that sequence b has; the rest of its cache is never read
    /// int32 [B]: k and v are [caches, Nk, Hkv, ...], and sequence b has the keys of cache_batch_index[b].
    ConstTensorView cache_batch_index = {};
    /// int32 [B, max_pages]: k and v are pages [pages, page_size, Hkv, ...], and the keys of sequence b are those of
    /// page block_table[b][0], then of block_table[b][1] and so on. Nk = max_pages·page_size.
    ConstTensorView block_table = {};
    /// The same in the compressed form, all three together: int32 [B+1], [indices] and [B]. Sequence b has the pages
    /// kv_indices[kv_indptr[b]] to kv_indices[kv_indptr[b + 1] - 1], of the last of which kv_last_page_len[b] rows.
    ConstTensorView kv_indptr = {}, kv_indices = {}, kv_last_page_len = {};

    Backend backend = Backend::automatic;
    Machine machine = Machine::automatic;
    Device device = {};
    /// Host threads of this call; 0 takes OMP_NUM_THREADS. No more run than there is work for, than 64 or twice the
    /// processors of the process (the larger), nor than the system lets the process start. A forked child has its own.
    int threads = 0;
    /// A cudaStream_t (null is CUDA's default stream), for calls on GPUs. On the openmp backend the call waits for what
    /// was sent to the stream and returns when its results are there; a stream that is being captured is refused, and
    /// so is one of a GPU whose DeviceInfo does not say shares_cuda_memory. On the cuda backend the call returns as
    /// soon as its kernels are queued, and its outputs are there when the stream is done with them. All tensors must be
    /// in device memory then, but for cu_seqlens_q, cu_seqlens_k and the tables of a cache, which are read on the host.
    /// The stream may be captured into a CUDA graph, which then allocates its own scratch memory; of calls on packed
    /// sequences, runs of a prepared call (prepared.hpp); of calls with a cache, none. The library keeps memory of a
    /// device that it was used on: nobody may call cudaDeviceReset() there.
    std::optional<void*> stream = {};
    Tiling tiling = {};

    /// All members are the same; nobody looks into the tensors.
    friend bool operator==(const Options&, const Options&) = default;
};

} // namespace flashomp
