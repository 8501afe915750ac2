// What crosses into the kernels: plain pointers, strides and numbers, for the host and the device alike.
#pragma once

#include "flashomp/dropout.hpp"

#include <cstdint>

// A kernel in one function, with all that sanitizers add, takes clang minutes. Instruction sets then share copies: such
// a build is for those that the machine has.
#ifdef FLASHOMP_IS_SANITIZED
#define FLASHOMP_ALWAYS_INLINE
#else
#define FLASHOMP_ALWAYS_INLINE __attribute__((always_inline))
#endif
#ifdef __CUDACC__
#pragma nv_diag_suppress 1675, 161, 128 // pragmas that are not for nvcc; loops behind what if constexpr returns
#define FLASHOMP_INLINE __host__ __device__ __forceinline__
#define FLASHOMP_DO_PRAGMA(text) _Pragma(#text)
#define FLASHOMP_UNROLL(most) FLASHOMP_DO_PRAGMA(unroll most)
#else
#define FLASHOMP_INLINE inline FLASHOMP_ALWAYS_INLINE
#define FLASHOMP_DO_PRAGMA(text) _Pragma(#text)
#define FLASHOMP_UNROLL(most) FLASHOMP_DO_PRAGMA(GCC unroll most)
#endif
// Constraints of asm operands. g++ checks them for the host first, where "r" takes everything; nvcc knows the types.
#ifdef __CUDA_ARCH__
#define FLASHOMP_ASM_FLOAT "f"
#define FLASHOMP_ASM_ADDRESS "l"
#else
#define FLASHOMP_ASM_FLOAT "r"
#define FLASHOMP_ASM_ADDRESS "r"
#endif
// For every lambda that runs per element or row. Called instead of inlined, it would keep what it passes by reference
// on the stack, and inside `simd` g++ gives each GPU lane 128 bytes of one: wrong results, no diagnostic.
#define FLASHOMP_LAMBDA FLASHOMP_ALWAYS_INLINE

#pragma omp declare target

namespace flashomp::offload {

enum class Element : int { float32, bfloat16, float16 };
/// Elements of k and v: those of q, or 8 bits, which a scale multiplies.
enum class CacheElement : int { as_q, float8_e4m3, int8 };
enum class Alignment : int { none, top_left, bottom_right };

/// A [batch, row, head, depth] tensor; strides count elements and the depth stride is 1. Packed sequences have
/// batch = 0 and start rows in Params::cu_seqlens_*.
struct Tensor {
    void* data = nullptr;
    std::int64_t batch = 0, row = 0, head = 0;
    bool is_packed = false;    ///< sequences follow one another, and batch is 0
    std::int64_t rows = 0;     ///< of one sequence, or when packed of all of them
    const void* map = nullptr; ///< for Hopper's copy engine, of blocks of as many rows as the pass streams; or null
    Element element = Element::float32; ///< of o and its like, which may be float32 whatever Params::element is
};

/// Float statistics per row, [batch, head, row] with row stride 1: LSE and D.
struct RowTensor {
    float* data = nullptr;
    std::int64_t batch = 0, head = 0;
};

/// An additive bias or its gradient, [batch, head, query, key]; a broadcast axis has stride 0.
struct BiasTensor {
    void* data = nullptr;
    std::int64_t batch = 0, head = 0, query = 0, key = 0;
    Element element = Element::float32;
};

/// Logits that are in a row's denominator alone: element (head, row). Strides of their own: kernels have no registers
/// for what they would share with others.
struct SinkTensor {
    const float* data = nullptr; ///< null: none
    int head = 1, row = 0;       ///< 0: one for all rows of a head
};

/// A key/value cache: how many keys each sequence has, and where they are (page_source.hpp). k and v of a cache of
/// pages are [page, row, head, depth]; the nth page of a sequence is pages[starts[batch] + n], or without starts,
/// pages[batch * stride + n].
struct CacheTables {
    const std::int32_t* lengths = nullptr; ///< null: seqlen_k
    int newest = 0;                        ///< only so many keys of each sequence count, the last ones; 0: all
    const std::int32_t* pages = nullptr;   ///< null: a sequence's keys are where its batch is
    const std::int32_t* starts = nullptr;
    std::int64_t stride = 0;
    int page_rows = 0;

    CacheElement element = CacheElement::as_q;
    // What the elements of 8 bits are multiplied with: [page, head], or of a cache without pages [batch, head]. A
    // stride of 0: one for all; null: 1.
    const float *k_scale = nullptr, *v_scale = nullptr;
    std::int64_t k_scale_stride = 0, v_scale_stride = 0;
    std::int64_t scale_head = 1; ///< from a key head to the next one

    [[nodiscard]] FLASHOMP_INLINE bool is_there() const { return lengths != nullptr || pages != nullptr; }
    [[nodiscard]] FLASHOMP_INLINE bool is_quantised() const { return element != CacheElement::as_q; }
};

/// Masks of any shape (pair_mask.hpp): bytes or bits for all pairs, and blocks of pairs. Strides along axes that are
/// broadcast are 0.
struct PairMask {
    const std::uint8_t* dense = nullptr;                                          ///< null: none
    std::int64_t dense_batch = 0, dense_head = 0, dense_query = 0, dense_key = 0; ///< bytes
    bool is_bits = false; ///< a bit a key, packed into bytes from the lowest on

    const std::int32_t* blocks = nullptr; ///< [1|batch, 1|head, block of queries, block of keys]; null: none
    std::int64_t blocks_batch = 0, blocks_head = 0;
    int blocks_k = 0;                         ///< blocks of keys
    int block_q = 1, block_k = 1;             ///< queries and keys of a block
    int shift_q = 0, shift_k = 0;             ///< where these are powers of 2, else -1
    const std::uint8_t* block_bits = nullptr; ///< of partial blocks, [number, query, byte of keys]
    int bit_bytes = 0;                        ///< of a query of a partial block

    const std::uint8_t* tiles = nullptr; ///< a pass's TileTable; null: all tiles may be partial
    std::int64_t tiles_batch = 0, tiles_head = 0;
    int tile_columns = 0;
};

/// Where the rows of a shard stand in the whole sequence: row r at first + r, and from row `seam` on `gap` further.
struct Placement {
    int first = 0, seam = 0, gap = 0;
};

/// One attention call.
struct Params {
    int batch = 0, heads_q = 0, heads_kv = 0;
    int seqlen_q = 0, seqlen_k = 0; ///< with packed sequences: the longest
    int head_dim = 0, head_dim_v = 0;
    Element element = Element::float32; ///< of q, k, v and dout; o, dq, dk and dv have one of their own

    Tensor q, k, v, o;
    RowTensor lse;
    Tensor dout, dq, dk, dv;
    RowTensor delta;    ///< D = rowsum(dO∘O), written by the dQ pass or backward_start, read by what follows
    RowTensor residual; ///< what float32 LSE lost, base 2; on Hopper in one pass LSE itself, base 2; written and read
                        ///< like delta

    float scale = 1.0F;

    Alignment causal = Alignment::none;
    std::int64_t window_left = -1, window_right = -1; ///< -1 is unbounded

    // Of shards.
    bool has_positions = false;
    bool keys_are_part = false;   ///< rows have keys that are not here: backward repairs neither LSE nor D
    int whole_q = 0, whole_k = 0; ///< lengths of the whole sequence, where there are positions
    Placement place_q, place_k;

    // Score modifications; a null pointer or zero is off.
    float softcap = 0.0F;
    bool is_modified = false; ///< there are some that a mask and a positive scale are not: chooses the kernel
    const float* alibi_slopes = nullptr;
    std::int64_t alibi_batch_stride = 0;
    BiasTensor bias;
    const std::uint8_t* key_padding_mask = nullptr;
    std::int64_t key_padding_batch_stride = 0;
    PairMask mask;
    SinkTensor sink;
    const std::int32_t* cu_seqlens_q = nullptr;
    const std::int32_t* cu_seqlens_k = nullptr;
    CacheTables cache;

    PhiloxKey dropout_key{};
    std::uint32_t dropout_threshold = 0;    ///< 0 is off
    float dropout_scale = 1.0F;             ///< 1 / (1 - p)
    int first_sequence = 0, first_head = 0; ///< numbers in the whole, for dropout and a program's own score

    BiasTensor dbias;       ///< gradient of bias, strides as BiasTensor; null is off
    float* dsink = nullptr; ///< gradient of sink

    // Forward over few queries: the keys are split into parts whose results merge.hpp puts together. Partial results
    // are float32, [split, batch, head, row] with strides of `delta` (and head_dim_v floats a row for o).
    int splits = 1;
    float* partial_o = nullptr;
    RowTensor partial_lse;
    std::int64_t partial_stride = 0; ///< rows of one split

    // dK and dV of few key blocks (head_splits.hpp): parts of a group's query heads, and their float32 sums,
    // [split, batch, head, row, depth].
    int head_splits = 1;
    float *partial_dk = nullptr, *partial_dv = nullptr;
    RowTensor key_rows;            ///< strides of their rows; no data
    std::int64_t partial_keys = 0; ///< rows of one split

    float* sums = nullptr; ///< a GPU's pass that computes S and dP once: dQ, float32, in tiles [batch, head, block];
                           ///< of few queries [batch, key head, part of the keys] (nvidia/few_queries_backward.hpp)
    unsigned* turns = nullptr; ///< and for each tile whose turn it is (Turns); 0 before the first and after the last
    unsigned* nonfinite =
        nullptr; ///< set where a kernel writes a result that is not finite (algorithm/finite_check.hpp)

    unsigned char score_mod[64] = {}; ///< a program's own score, as Options::score_mod has it (modification.hpp)
};

/// Whether rows stand in two stretches with a gap between them.
FLASHOMP_INLINE bool has_seam(const Params& p)
{
    return p.place_q.gap != 0 || p.place_k.gap != 0;
}

/// Rows of one sequence of the batch.
struct Sequence {
    std::int64_t q_start = 0, k_start = 0; ///< row offsets when packed
    int q_len = 0, k_len = 0;
};

FLASHOMP_INLINE Sequence sequence(const Params& p, int batch)
{
    Sequence s{0, 0, p.seqlen_q, p.seqlen_k};
    if (p.cu_seqlens_q != nullptr) {
        s.q_start = p.cu_seqlens_q[batch];
        s.q_len = p.cu_seqlens_q[batch + 1] - p.cu_seqlens_q[batch];
    }
    if (p.cu_seqlens_k != nullptr) {
        s.k_start = p.cu_seqlens_k[batch];
        s.k_len = p.cu_seqlens_k[batch + 1] - p.cu_seqlens_k[batch];
    }
    return s;
}

/// The same where the keys are in a cache. A function of its own, so that the kernels of other calls have nothing of
/// it.
FLASHOMP_INLINE Sequence sequence_in_cache(const Params& p, int batch)
{
    Sequence s = sequence(p, batch);
    if (p.cache.lengths != nullptr) {
        s.k_len = p.cache.lengths[batch];
    }
    if (p.cache.newest > 0 && s.k_len > p.cache.newest) {
        s.k_start += s.k_len - p.cache.newest;
        s.k_len = p.cache.newest;
    }
    return s;
}

/// Consecutive rows of one head of one sequence: what a tile machine loads from and stores to.
struct Rows {
    void* data = nullptr;    ///< the tensor's base
    std::int64_t offset = 0; ///< of the first row, in elements
    std::int64_t stride = 0; ///< between rows, in elements
    int count = 0;           ///< valid rows; the rest of a block reads as zero and is not written
    int depth = 0;           ///< elements a row
    Element element = Element::float32;

    // The same rows as coordinates in the tensor's map.
    const void* map = nullptr;
    std::int64_t row = 0;
    int head = 0, batch = 0;

    unsigned* nonfinite = nullptr; ///< Params::nonfinite of rows of results, else null
};

FLASHOMP_INLINE Rows rows_of(const Params& p, const Tensor& t, int batch, int head, std::int64_t first, int count,
                             int depth)
{
    return {t.data, batch * t.batch + head * t.head + first * t.row,
            t.row,  count,
            depth,  p.element,
            t.map,  first,
            head,   t.is_packed ? 0 : batch};
}

/// The same of o, dq, dk or dv.
FLASHOMP_INLINE Rows written_rows(const Params& p, const Tensor& t, int batch, int head, std::int64_t first, int count,
                                  int depth)
{
    Rows rows = rows_of(p, t, batch, head, first, count, depth);
    rows.element = t.element;
    return rows;
}

/// The same, of which it is told where they are not finite. Not of all rows: a pointer that is read where q is, g++
/// would keep in registers until o is stored.
FLASHOMP_INLINE Rows results_of(const Params& p, const Tensor& t, int batch, int head, std::int64_t first, int count,
                                int depth)
{
    Rows rows = written_rows(p, t, batch, head, first, count, depth);
    rows.nonfinite = p.nonfinite;
    return rows;
}

/// At most `most` of the rows, from row `first` on.
FLASHOMP_INLINE Rows slice(Rows rows, int first, int most)
{
    rows.offset += first * rows.stride;
    rows.row += first;
    rows.count = rows.count - first < most ? rows.count - first : most;
    return rows;
}

FLASHOMP_INLINE float* row_stats(const RowTensor& t, int batch, int head, std::int64_t first)
{
    return t.data + batch * t.batch + head * t.head + first;
}

} // namespace flashomp::offload

#pragma omp end declare target
