// One call on this rank: groups of ranks that share out heads, and a ring of these groups. A plain ring has groups of
// one rank, Ulysses one group. Both passes have this in common.
#pragma once

#include "call.hpp"
#include "cost.hpp"
#include "heads.hpp"
#include "layout.hpp"
#include "messages.hpp"
#include "part.hpp"
#include "ring.hpp"
#include "site.hpp"
#include "tensors.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace flashomp::mpi {

/// Who has and sees what.
struct Geometry {
    Geometry(const Call& call, const Whole& whole, Layout layout, int rank, int sharing_ranks);

    std::int64_t batch, heads_q, heads_kv, head_dim, head_dim_v;
    int heads_ranks, ring_ranks;
    int member, ring_rank;                        ///< of this rank: in its group, and its group in the ring
    Group queries, keys;                          ///< the group's
    std::vector<std::vector<Run>> runs_q, runs_k; ///< of each group
    std::vector<std::int64_t> rows_k;             ///< of each group
    Route route;
    std::vector<HeadRange> ranges_q, ranges_k; ///< of each member

    [[nodiscard]] HeadRange heads() const { return ranges_q[static_cast<std::size_t>(member)]; }
    [[nodiscard]] HeadRange key_heads() const { return ranges_k[static_cast<std::size_t>(member)]; }
    [[nodiscard]] bool shares_heads() const { return heads_ranks > 1; }
    /// Blocks of the ring whose elements have so many bytes.
    [[nodiscard]] Place place(std::int64_t element_bytes) const;
};

/// What the cost model is asked about.
[[nodiscard]] CostShape cost_shape(const Call& call, const Geometry& ring);

class Engine {
public:
    /// Takes all memory; the constructors of the passes do so, too. May throw std::bad_alloc, sends nothing.
    Engine(Messages& messages, const Call& call, const Whole& whole, const Geometry& geometry, const Choice& choice);
    virtual ~Engine() = default;
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    /// Throws RunFailure on all ranks where a part failed on one. Without computing, messages and copies are left.
    Report run(bool computes);

protected:
    /// Of the passes.
    virtual void begin_step(int step) = 0;
    virtual void compute(const Piece& piece, const HeadRun& heads, int step) = 0;
    virtual void end_step(int step) = 0;
    virtual void finish() = 0;

    /// Runs f, measures it and keeps what it throws. After a failure nothing is computed any more.
    template <class F>
    void attempt(F f);

    // What is done with elements, where they are.

    void copy(const ConstTensorView& from, const TensorView& to) { site_.copy(from, to); }
    void add(const ConstTensorView& terms, const TensorView& sums) { site_.add(terms, sums); }
    void fill(const TensorView& tensor, float value) { site_.fill(tensor, value); }
    /// Each element once: from float32, or the same dtype, to any dtype of results.
    void round_into(const ConstTensorView& from, const TensorView& to) { site_.convert(from, to); }

    /// Memory there.
    [[nodiscard]] Buffer buffer(std::int64_t bytes, Stage stage = Stage::none) { return {site_, bytes, stage}; }
    [[nodiscard]] Buffer buffer(DType dtype, std::initializer_list<std::int64_t> shape, Stage stage = Stage::none)
    {
        return {site_, dtype, shape, stage};
    }
    /// Sums over all ranks, on each of them, of float32 buffers that have a stage always.
    void sum_over_ranks(Buffer& values, Buffer& scratch);

    /// The rank's own part of an input [A, own rows, Hq, C]: as it is, or shared out into the buffer.
    [[nodiscard]] ConstTensorView shared_input(const ConstTensorView& own, Buffer& buffer);
    /// The same of a tensor like bias: [1|B, 1|Hq, 1|rows, keys].
    [[nodiscard]] ConstTensorView shared_pairs(const ConstTensorView& own, bool has_rows, Buffer& buffer);
    /// The heads that each member has of such a tensor: the same one where there is one for all.
    [[nodiscard]] std::vector<HeadRange> pair_ranges(const ConstTensorView& pairs) const;
    /// Bytes that shared_input() and shared_pairs() need; 0 where heads are not shared out.
    [[nodiscard]] std::int64_t input_bytes(const ConstTensorView& own) const;
    [[nodiscard]] std::int64_t pairs_bytes(const ConstTensorView& own, bool has_rows) const;

    /// A view with the axis of sequences in front, which packed tensors have not.
    template <class Pointer>
    [[nodiscard]] BasicTensorView<Pointer> batched(const BasicTensorView<Pointer>& view) const
    {
        return call_.is_packed() ? with_batch(view) : view;
    }
    /// Rows and query heads of a call, of [B, rows, heads, C] and of [B, heads, rows].
    template <class Pointer>
    [[nodiscard]] static BasicTensorView<Pointer> rows_part(const BasicTensorView<Pointer>& all, const Run& run,
                                                            const HeadRange& heads)
    {
        return part_of(part_of(all, 1, run.row, run.at.count), 2, heads.first, heads.count);
    }
    template <class Pointer>
    [[nodiscard]] static BasicTensorView<Pointer> lse_part(const BasicTensorView<Pointer>& all, const Run& run,
                                                           const HeadRange& heads)
    {
        return part_of(part_of(all, 1, heads.first, heads.count), 2, run.row, run.at.count);
    }
    /// K and V of a block, in elements of `dtype`: K, then V.
    [[nodiscard]] TensorView key_view(std::byte* block, int of, DType dtype) const;
    [[nodiscard]] TensorView value_view(std::byte* block, int of, DType dtype) const;
    /// The most rows that a call has.
    [[nodiscard]] static std::int64_t most_rows(const std::vector<std::vector<Run>>& runs);

    /// Whether the piece is the first one of its queries in this call.
    [[nodiscard]] bool is_first(const Piece& piece) const { return &piece == first_of_[index_of_run(piece.q)]; }
    [[nodiscard]] const std::vector<Run>& own_runs() const;
    [[nodiscard]] bool has_pieces(const Run& run) const { return first_of_[index_of_run(run)] != nullptr; }
    [[nodiscard]] int block_of(int step) const { return geometry_.route.block_of(geometry_.ring_rank, step); }
    [[nodiscard]] const std::string& failure() const { return failure_; }

    Messages& messages_;
    Site& site_;
    const Call& call_;
    const Geometry& geometry_;
    bool bias_has_rows_, mask_has_rows_;
    std::vector<HeadRun> head_runs_;
    std::unique_ptr<Keys> keys_;
    BlockMasks block_masks_;
    Report report_;
    ConstTensorView q_, bias_, mask_; ///< with the group's rows and the rank's heads
    std::unique_ptr<PartOptions> options_;
    Buffer q_shared_, bias_shared_, mask_shared_, bias_wide_;
    Exchange exchange_;
    bool wants_wide_bias_ = false; ///< dbias is summed in float32

private:
    [[nodiscard]] std::size_t index_of_run(const Run& run) const;
    void share_inputs();
    [[nodiscard]] std::int64_t exchange_bytes() const;

    std::vector<std::vector<Piece>> pieces_; ///< of each step
    std::vector<const Piece*> first_of_;     ///< of each run of queries
    std::string failure_;
};

/// How parts are merged that calls with these options have computed.
[[nodiscard]] Options merge_options(const Options& options);

[[nodiscard]] std::unique_ptr<Engine> forward_engine(Messages& messages, const Call& call, const Whole& whole,
                                                     const Geometry& geometry, const Choice& choice);
[[nodiscard]] std::unique_ptr<Engine> backward_engine(Messages& messages, const Call& call, const Whole& whole,
                                                      const Geometry& geometry, const Choice& choice);

template <class F>
void Engine::attempt(F f)
{
    if (!failure_.empty()) {
        return;
    }
    const double start = MPI_Wtime();
    try {
        f();
    } catch (const std::exception& failed) {
        failure_ = failed.what();
    }
    report_.seconds_computing += MPI_Wtime() - start;
}

} // namespace flashomp::mpi
