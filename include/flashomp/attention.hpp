// The public entry points: exact attention, forward and backward.
#pragma once

#include "flashomp/error.hpp"
#include "flashomp/options.hpp"
#include "flashomp/tensor.hpp"

#include <cstdint>
#include <string>

namespace flashomp {

/// The largest head_dim, of q and k, and the largest head_dim_v, of v and o. Either may be the larger one. They are
/// those of multi-head latent attention (DeepSeek-V2, section 2.1), where v may be a view of k's first columns.
inline constexpr std::int64_t most_head_dim = 576, most_head_dim_v = 512;

/// What a call did and where: filled after the run, never from what was asked for.
struct Report {
    std::string backend; ///< "openmp", "cuda", "reference"
    std::string machine; ///< the tile machine, for example "host-amx" or "plain"; "eigen" for the reference
    std::string ran_on;  ///< "host (2 threads)" or "NVIDIA H200 (device 0)"
    /// Every kernel ran on a device. An OpenMP target region that falls back to the host records that in host memory,
    /// and a call that was sent to a GPU then throws RunFailure. A region on the GPU records nothing, since that would
    /// cost 10 µs. A CUDA kernel runs on its device or its launch fails.
    bool on_device = false;
    bool tuned = false; ///< machine and tiling come from a table of `flashomp tune`
    /// A result was not finite (Hidden keys, below), or CUDA's backward with ALiBi or a bias, up to depth 128, had an
    /// LSE of 4096 or more in size in a row whose gradient is not 0: it has lost too much of the row's sum for kernels
    /// that do not repair it; with a stream always false.
    bool computed_twice = false;
    std::string note;                ///< why it ran there, when the caller left the choice open
    double seconds = 0.0;            ///< wall-clock of the call without validation; with a stream, of queueing it
    std::int64_t extra_bytes = 0;    ///< LSE, D and scratch: all that is stored besides inputs, outputs and gradients
    std::int64_t staged_bytes = 0;   ///< device copies of tensors that were given in host memory
    std::int64_t standard_bytes = 0; ///< what standard attention would have stored in N x N matrices
};

/// Tensors of the forward pass. All of q, k, v, o share one dtype (float32, bfloat16, float16), but for k and v of a
/// cache of 8 bits (Caches, above), and o may be float32 whatever they are: what is summed over parts then rounds once.
struct ForwardArgs {
    ConstTensorView q; ///< [B, Nq, Hq, head_dim], 1 to most_head_dim
    ConstTensorView k; ///< [B, Nk, Hkv, head_dim], Hq divisible by Hkv
    ConstTensorView v; ///< [B, Nk, Hkv, head_dim_v], 1 to most_head_dim_v; inputs may share memory
    TensorView o;      ///< out: [B, Nq, Hq, head_dim_v]
    TensorView lse;    ///< out: float32 [B, Hq, Nq], natural logarithm; -inf where nothing is attended to
};

/// Tensors of the backward pass. o and lse are those the forward pass wrote, with the same options. Each of o, dq, dk
/// and dv has the dtype of q or is float32.
struct BackwardArgs {
    ConstTensorView q;
    ConstTensorView k;
    ConstTensorView v;
    ConstTensorView o;
    ConstTensorView lse;
    ConstTensorView dout;  ///< gradient of o, [B, Nq, Hq, head_dim_v]
    TensorView dq;         ///< out: as q
    TensorView dk;         ///< out: as k
    TensorView dv;         ///< out: as v
    TensorView dbias = {}; ///< out, optional: as options.bias, reduced to its broadcast shape
    TensorView dsink = {}; ///< out, optional: float32 [Hq]
};

// Failures. Three kinds of exceptions leave a call. Error: an argument is not as documented, and no output has been
// written. RunFailure: the arguments are right, but the machine failed, and outputs hold anything (error.hpp).
// std::bad_alloc: the host has no memory for the lists of a call, and outputs hold anything, too. A call with
// Options::stream returns before its kernels run: what fails later is reported by the CUDA function that waits for the
// stream, for example cudaStreamSynchronize().
//
// Threads. All functions may be called from several threads at once, on any backend and device, as long as no call
// writes a tensor that another call reads or writes. Results do not depend on other calls. Calls read environment
// variables, so no thread may change the environment (setenv) while a call runs.
//
// Forks. A forked child may call on the host. The driver does not let the child use GPUs that its parent has used: a
// call that names such a GPU throws Error, and a call with device auto runs on the host and says so in Report::note.
// Runs of calls that were prepared for a GPU throw Error, too (prepared.hpp).
// Fork while no other thread is inside the first call of the process, which opens libraries and reads the tuning table.
//
// What is kept between calls, until the process ends: up to 64 blocks of scratch memory of the host and the devices
// together; of CUDA, a memory pool per device for calls with Options::stream, and page-locked memory for words that
// kernels write to the host; libraries of kernels, which a call opens when it first needs one; the list of devices and
// the tuning table, read when a call first asks for them; and OpenMP's team of each thread that called. No call keeps
// pointers to its tensors, and no result depends on what is kept.

// Hidden keys. Row i sees key j when causal, window and key_padding_mask all keep the pair and the bias is not −∞
// there. A hidden pair takes no part in any result, whatever row i of q and dout and row j of k and v hold, NaN and
// infinities included. A key that no row sees has dk = dv = 0. When a row holds or sees a NaN or an infinity, its o,
// LSE and dq hold what IEEE arithmetic makes of that value, as a rule NaN; so do dk and dv of every key that the row
// sees. Block sizes and threads do not matter. Such values are slow. Where a result is not finite, the host computes
// the rows concerned once more, one at a time, and a GPU computes the whole call once more on a machine without tensor
// cores (Report::computed_twice); results that were finite before may then differ in rounding. float8_e4m3 tensors have
// no second computation: keep k and v finite there. Padding at either end of key_padding_mask costs nothing on the
// host.

// Shards. With Options::positions_q or positions_k, q, or k and v, are some rows of a longer sequence; without one of
// them its rows are the whole sequence. i, j, Nq and Nk in causal, window, alibi_slopes, dropout and score_mod are then
// positions in the whole sequence and its lengths, so that each of them means the same on a shard as on the whole: the
// results of calls on all shards of the keys, put together by merge(), are those of one call. Tensors have the extents
// of the shard: bias, key_padding_mask, mask and block_mask those of its rows and keys, as views of the whole have
// them. A sink is one more key, to be given in one of the calls that are merged. Where positions_k leaves out keys,
// backward takes P = exp(s - LSE) and D = Σ dO∘O from lse and o: they are to be those of the whole rows, that is
// merged, and dq, dk and dv are the shard's parts of sums. D loses what o was rounded by; o in float32 keeps it. dbias
// is of the shard's pairs, dsink of its rows, whatever their keys. Not for packed sequences and caches. One stretch
// each runs on every kernel; two on the host, on the plain machine and in the reference.
//
// Sequences and heads may be some of a larger call, too: its sequences from Options::first_sequence on and its query
// heads from first_head on. Dropout then draws what it draws there, and score_mod is asked about them by their numbers
// there, so that the results are those of the whole call for them. Tensors have the extents of the part: alibi_slopes,
// bias, masks and sink those of its sequences and heads. For every call, packed ones (sequence b of the call is
// first_sequence + b of the whole) and caches included, on every kernel. first_sequence and the sequences of the call
// are together at most 2^30, first_head and its query heads at most 2^20.

// Caches. With Options::cache_seqlens, cache_batch_index, block_table or kv_indptr, kv_indices and kv_last_page_len k
// and v are a key/value cache, in any strides: [B, Nk, Hkv, ...], [caches, Nk, Hkv, ...], or pages of which each
// sequence has those that its table names, shared ones, too. Sequence b has cache_seqlens[b] keys (without
// cache_seqlens all that its cache could have), and its Nk in masks, windows and ALiBi is that number: with
// Causal::bottom_right its last query sees its last key. Rows beyond a sequence's keys, pages that belong to nobody,
// and what tables say of them, are never read. The Nk of a key_padding_mask and a bias is that of the whole cache,
// max_pages·page_size for a block_table; the compressed form has no such Nk, and takes neither. q may be packed
// (cu_seqlens_q). The results are those of the same keys in tensors, to the bit where the whole cache is as long and
// the same machine runs (GPUs of compute capability 9.0 have no cache on theirs for many queries). backward() takes no
// cache.
//
// Caches of 8 bits. Where q is float32, bfloat16 or float16, k and v may be a cache of float8_e4m3 or int8, both one,
// with or without the options above; o is as q. An element stands for itself times Options::k_scale or v_scale of its
// key head, or page and key head. Kernels multiply by scales in float32: rows that they have loaded, or scores and
// probabilities. The results are those of attention to these products, with the error that q's dtype has for keys and
// values of its own.

/// o = softmax(scale·q·kᵀ, masked)·v and its log-sum-exp, exactly, without storing an N x N matrix
/// (Dao et al. 2022, "FlashAttention", Algorithm 1, with the FlashAttention-2 schedule).
/// Throws Error, with nothing written, when an argument is not as documented; RunFailure when the machine fails.
Report forward(const ForwardArgs& args, const Options& options = {});

/// Gradients of forward() with respect to q, k and v, recomputing the probabilities from lse
/// (Dao et al. 2022, Algorithm 4). Deterministic: the same inputs give the same bits.
/// Throws Error, with nothing written, when an argument is not as documented; RunFailure when the machine fails.
Report backward(const BackwardArgs& args, const Options& options = {});

/// Attention over a part of the keys: what forward() wrote for it. o as in ForwardArgs, or float32 whatever the dtype
/// of the inputs was.
struct Partial {
    ConstTensorView o;
    ConstTensorView lse;
};

/// Attention over the union of two disjoint sets of keys, from the results for each: with w = exp(lse_x - lse),
/// o = w_a·o_a + w_b·o_b and lse = log(exp(lse_a) + exp(lse_b)). Ring attention, paged attention and split decoding are
/// built from it. All three o share a shape, all lse share a shape; `o` may have another dtype than the parts, and both
/// outputs may be the tensors of part a or b themselves. At most 2^30 sequences and rows, 2^20 heads and 65536 elements
/// a row. options: backend (not reference), device, machine and threads count; all others are ignored.
/// Throws Error, with nothing written, when an argument is not as documented; RunFailure when the machine fails.
Report merge(const Partial& a, const Partial& b, const TensorView& o, const TensorView& lse,
             const Options& options = {});

/// Writes the mask that a call with this dropout draws: true where a probability is kept. `mask` is a boolean host
/// tensor [B, Hq, Nq, Nk], of extents that a call may have: at most 2^30 sequences, queries and keys and 2^20 heads.
/// With packed sequences i and j count from the start of each sequence.
/// Throws Error, with nothing written, when an argument is not as documented.
void dropout_mask(const Dropout& dropout, const TensorView& mask);

} // namespace flashomp
