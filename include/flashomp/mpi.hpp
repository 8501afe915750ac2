// Attention over sequences whose rows are shared out over the ranks of an MPI communicator (target flashomp::mpi,
// docs/distributed.md). A library of its own: libflashomp knows nothing of MPI.
#pragma once

#include "flashomp/attention.hpp"

// The C++ bindings that MPI has dropped would have to be linked.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace flashomp::mpi {

/// Which rows of the sequence a rank holds. `contiguous`: rank r has the rows behind those of rank r - 1, as many as
/// its tensors have. `zigzag`: of 2·ranks chunks, chunk c being rows [c·N/(2·ranks), (c+1)·N/(2·ranks)), rank r has
/// chunk r and behind it chunk 2·ranks - 1 - r, so that every rank has equal parts of the work under a causal mask.
enum class Layout : std::uint8_t { contiguous, zigzag };

/// How queries meet keys of other ranks.
enum class Scheme : std::uint8_t {
    automatic,  ///< what the cost model finds fastest (Report::why)
    ring,       ///< K and V go from rank to rank, each block while the one before is computed
    all_gather, ///< K and V go from their rank to all that see them, at once: most memory, fewest steps
    ulysses,    ///< heads are shared out instead of rows: each rank has all rows of its heads (DeepSpeed Ulysses)
    grid        ///< heads_ranks neighbours share out heads; these groups are a ring
};

struct Sharding {
    MPI_Comm comm = MPI_COMM_WORLD;
    Layout layout = Layout::contiguous;
    Scheme scheme = Scheme::automatic;
    int heads_ranks = 0; ///< of Scheme::grid: how many ranks share out heads; divides the ranks, at most Hq
};

/// What a call did on this rank.
struct Report {
    flashomp::Report last;          ///< of the last call on a part; backend, machine and place are those of all
    Scheme scheme = Scheme::ring;   ///< never automatic
    int heads_ranks = 1;            ///< ranks that shared out heads
    std::string why;                ///< the cost model's reason, where the scheme was left open
    bool has_large_logits = false;  ///< so that parts were computed again (Large logits, below)
    std::int64_t bytes_sent = 0;    ///< to other ranks
    std::int64_t calls = 0;         ///< on parts, without merge()
    std::int64_t extra_bytes = 0;   ///< of buffers, besides those of the calls; not their stages in host memory
    double seconds = 0.0;           ///< of the whole call
    double seconds_computing = 0.0; ///< of calls on parts, merges and sums
    double seconds_waiting = 0.0;   ///< for messages, with nothing to compute
};

/// "contiguous", "ring" and so on.
[[nodiscard]] std::string_view name_of(Layout layout);
[[nodiscard]] std::string_view name_of(Scheme scheme);

/// The rows of a sequence of `length` that rank `rank` of `ranks` has. Of contiguous shards these are the most even
/// ones, [r·N/ranks, (r+1)·N/ranks); a call takes others, too.
/// Throws Error where there is no such rank.
[[nodiscard]] Positions positions(Layout layout, int rank, int ranks, std::int64_t length);

// What each rank gives. q, dout and o have the rank's rows of the queries, k and v the rank's rows of the keys, both by
// the layout: q [B, Nq_local, Hq, head_dim], k [B, Nk_local, Hkv, head_dim], lse [B, Hq, Nq_local]. Nq and Nk, the sums
// over ranks, may differ, and ranks may have no rows. Contiguous shards may be of any lengths; zigzag ones are those of
// positions().
// bias, mask and block_mask have the rank's rows, where they have rows, and all keys of the whole sequence, and so has
// key_padding_mask, with the same values on every rank. dbias is like bias, and complete. A bias whose rows have extent
// 1 on all ranks is one for all rows, with the same values, unless every rank has exactly one row; its dbias is the sum
// over all ranks, on each of them. Extent 1 on some ranks and their own rows on others is an Error.
// sink and alibi_slopes have all heads, and the same values on every rank. dsink is the sum over ranks, on each of
// them.
//
// Packed sequences. cu_seqlens_q and cu_seqlens_k are those of the whole, the same on every rank. q, k and v are the
// rank's rows [local, H, head_dim] of the packed ones, by the layout, wherever sequences begin and end. Tensors of the
// options are those of a single call, whole and the same on every rank; dbias is the sum over ranks.
//
// Backend, machine, device, threads and tiling are each rank's own. All other options must be the same on all ranks.
// Not taken with more than one rank: caches, 8 bits, positions.
//
// GPUs. Where device is automatic and calls would take a GPU, a rank takes that of its number among the communicator's
// ranks on its node, modulo the GPUs there: device_of_rank(). In another communicator, and with one rank alone, which
// takes the first GPU, a rank may have another number: name the device that tensors are on.
// All tensors, those of the options, too, are in host memory, or all are in the memory of the rank's device, on every
// rank; cu_seqlens are in host memory. On host tensors calls on a GPU copy what each needs there and back. Of device
// tensors only what large logits need (below) is on the host: blocks, sums and parts are the device's memory, too.
// Messages go through page-locked host memory, unless MPI takes addresses of the device: Open MPI's
// MPIX_Query_cuda_support() or MPICH's MPIX_GPU_query_support() says so, or the environment variable
// FLASHOMP_MPI_GPU_AWARE, which is 0 or 1 then. MPI may want the rank's device to be the calling thread's current one.
// Streams. Options::stream is taken with device tensors. The call reads and writes them in the stream's order: after
// what was sent there before. It returns when its results are there, with one rank alone when they are queued. On the
// cuda backend all its work is queued on the stream, or on CUDA's default one, and messages move meanwhile.
//
// Large logits. Where an LSE of some rank is so large that its rounding to float32 would show in what is put together
// from parts (above 32), all ranks compute float32 calls once more with logits from which about LSE is taken: forward
// takes twice as long, backward three times. Not with softcap or score_mod, nor with head_dim above 568. Of tensors on
// a device LSE is looked at on the host, in every float32 call; where it is large, dout is, too, in backward.
// In a float32 LSE beyond 2^24 the log of the number of keys is lost. Where a bias of -1e9 hides every key of a row,
// and q has 16 bits or the bias is beyond -1e10, o of that row is not the mean of v, nor is P 1/n in what the row adds
// to gradients. A row whose dout is 0 adds nothing.
//
// One rank. The call is flashomp::forward() or backward(), to the bit.
// Results are the same bits in every run with the same number of ranks, scheme and layout. Parts are float32 and are
// merged and summed in float32, in an order that depends on nothing else; o, dq, dk and dv are rounded once.
// Failures. All ranks of the communicator must make the call. Before anything else moves the ranks compare what they
// were given, all but bias, mask and block_mask of packed sequences, which would take as long as the call to read:
// where they differ, or one of them has an argument that is not as documented, all throw the same Error (NotBuilt for
// what is not taken with more than one rank). A failure in the middle is a RunFailure on all ranks, which finish their
// messages first. A failure of MPI itself is a RunFailure on the ranks that see it. Threads. MPI is called by the
// calling thread alone. Calls on one communicator follow one another, as MPI's collective functions do. The first call
// on a communicator duplicates it; the duplicate is freed with it.

/// The device of calls with these options on the calling rank, for whoever allocates tensors there: that of the options
/// where it is not automatic or there is one GPU at most. Collective.
[[nodiscard]] Device device_of_rank(MPI_Comm comm, const Options& options = {});

/// flashomp::forward() over the ranks of sharding.comm. Collective.
Report forward(const ForwardArgs& args, const Options& options = {}, const Sharding& sharding = {});

/// flashomp::backward() over the ranks of sharding.comm, whose forward() wrote o and lse, with the same options and
/// layout. Collective.
Report backward(const BackwardArgs& args, const Options& options = {}, const Sharding& sharding = {});

} // namespace flashomp::mpi
