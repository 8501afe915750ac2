// Writing new keys and values into a key/value cache, with rotary embedding on the way.
#pragma once

#include "flashomp/attention.hpp"

namespace flashomp {

/// Rotary embedding (Su et al. 2021): a pair of elements of a row at position t turns by the angle whose cosine and
/// sine are row t of the tables. rotary_dim is twice their columns, at most head_dim; elements from there on stay.
struct Rotary {
    ConstTensorView cos = {}; ///< [positions, rotary_dim/2], float32 or q's dtype; not given: nothing turns
    ConstTensorView sin = {}; ///< as cos
    bool interleaved = true;  ///< pairs are elements 2i and 2i + 1 (GPT-J); else i and i + rotary_dim/2 (GPT-NeoX)
};

/// Tensors of append(). All but the tables of Rotary share one dtype, float32, bfloat16 or float16, and both caches may
/// have float8_e4m3 or int8 instead.
struct AppendArgs {
    ConstTensorView k = {};  ///< new keys [B, N, Hkv, head_dim], or with cu_seqlens_k packed [total, Hkv, head_dim]
    ConstTensorView v = {};  ///< new values, as k, with head_dim_v; left out, with v_cache, where they are a view of k
    TensorView k_cache = {}; ///< in and out: the cache, in the forms that forward() takes
    TensorView v_cache = {}; ///< in and out
    Rotary rotary = {};      ///< of k, and of q where given
    ConstTensorView q = {};  ///< optional, where there is a rotary embedding: [B, Nq, Hq, head_dim], or packed
    TensorView q_out = {};   ///< out, with q: as q, which it may be
};

/// Writes each sequence's new keys and values behind those that the sequence has in the cache, and turns them and q.
///
/// Options: the tables of the cache, cu_seqlens_k, and with q cu_seqlens_q, causal and window, k_scale and v_scale of a
/// cache of 8 bits, and where the call runs; all others of what attention computes are refused. Where cache_seqlens is
/// given, sequence b has cache_seqlens[b] keys before the call, and new row i goes to place cache_seqlens[b] + i. The
/// compressed form says what there is after the call: the new rows are the last of each sequence. Their place is their
/// position for the rotary embedding. Row i of q has the position of new row i where causal or window says that its
/// place counts, else all rows of q have that of new row 0, as flash-attention has it. Lengths are the caller's to
/// raise. Tables are checked first: no place outside the cache is written, and none that two sequences append to, or
/// that another sequence reads. Nothing else in the cache is touched. A cache in host memory is written on the host,
/// one on a GPU there. Throws Error, with nothing written, when an argument is not as documented; RunFailure when the
/// machine fails.
///
/// A cache of 8 bits gets each element divided by its scale and rounded to the nearest number of the type, ties to
/// even; what is beyond the largest number becomes that (±448 of float8_e4m3, ±127 of int8). A NaN stays one in
/// float8_e4m3, and is 0 in int8. Scales are read, not written: pages that are appended to need theirs before, and
/// those of all keys that a sequence has are checked. Values that are a view of such keys have the same scales, which
/// attention needs as k_scale and as v_scale.
Report append(const AppendArgs& args, const Options& options);

} // namespace flashomp
