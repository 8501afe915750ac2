// Large logits: what float32 takes from LSE (docs/algorithm.md), given back where no call sees whole rows.
//
// Where logits are in the thousands, a float32 LSE is off by up to 2^-12. Parts of a row then get wrong weights
// exp(LSE_S - LSE) in forward, and a wrong P = exp(s - LSE) in backward. A single call weighs no parts, and finds the
// common factor of a row's P in the row. Here such calls are computed with other logits, s' = s - c, with a c near the
// row's LSE. Results are the same but for LSE' = LSE - c, which is near 0, where float32 keeps all of it
// (docs/distributed.md, "Large logits").
#pragma once

#include "buffer.hpp"
#include "call.hpp"
#include "messages.hpp"
#include "site.hpp"
#include "tensors.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

namespace flashomp::mpi {

/// Whether the rounding of LSE, which call.args.lse has, shows in parts of this call, and can be kept from it: the same
/// on all ranks. Collective. `heads_ranks`: how many of them share out heads.
[[nodiscard]] bool wants_shift(const Messages& messages, const Call& call, const Whole& whole, int heads_ranks);

/// q, k and options by which the logits of a row are less by its c. q and k get eight more columns:
///
///     [q, -x, … -x, -y, -z]·[k, 64, … 64] = q·k - 64·(6·x + y + z),      c = scale·64·(6·x + y + z)
///
/// so that kernels, options and schemes know nothing of it. x, y and z have 11 bits, so that products are exact on
/// every machine, those of TF32 numbers, too. Of x and y, which are about equal, no partial sum in a vector lane is
/// large; z is what they leave, so that c is within 2^-25 of LSE. The sink is left out, as it would be another one for
/// each row.
class ShiftedLogits {
public:
    /// From call.args.lse. Takes all memory.
    ShiftedLogits(const Call& call, Site& site);

    [[nodiscard]] const ConstTensorView& q() const { return q_; }
    [[nodiscard]] const ConstTensorView& k() const { return k_; }
    [[nodiscard]] const Options& options() const { return options_; }
    /// Where dQ has Σ dS of each row, if k is k(),
    [[nodiscard]] ConstTensorView column_of_sums(const ConstTensorView& dq) const;
    /// and the sum that an element there stands for.
    [[nodiscard]] double sum_of(float element) const;

    // Of one row, by its place in a row-major LSE.
    [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(c_.size()); }
    /// s' of the sink.
    [[nodiscard]] double sink(std::int64_t row) const;
    /// LSE' from LSE, about; 0 where that is not finite.
    [[nodiscard]] float shifted(std::int64_t row, float lse) const
    {
        const double rest = static_cast<double>(lse) - c_[static_cast<std::size_t>(row)];
        return std::isfinite(rest) ? static_cast<float>(rest) : 0.0F;
    }
    /// LSE, from LSE'.
    [[nodiscard]] float whole(std::int64_t row, float lse) const
    {
        return static_cast<float>(c_[static_cast<std::size_t>(row)] + static_cast<double>(lse));
    }
    /// Its place among the rows of q, o and so on.
    [[nodiscard]] std::int64_t among_rows_of_q(std::int64_t row) const;
    [[nodiscard]] std::int64_t head_of(std::int64_t row) const { return row / rows_of_head_ % heads_; }

    [[nodiscard]] std::int64_t bytes() const;

private:
    /// The logit of a 1 in q where k is 64.
    [[nodiscard]] double logit_of_k() const;
    struct Columns {
        double x, y, z;
    };
    [[nodiscard]] Columns columns_of_row(double lse) const;

    Options options_;
    std::vector<float> sinks_; ///< of the heads
    std::int64_t heads_, rows_of_head_, head_dim_;
    double scale_; ///< as kernels have it, rounded to float32
    std::vector<double> c_;
    Buffer q_memory_, k_memory_;
    ConstTensorView q_, k_;
};

/// Forward once more. What is done with single rows is done on the host, wherever the tensors are.
class ShiftedForward {
public:
    /// After a forward pass, whose LSE says how far to shift. Takes all memory.
    ShiftedForward(const Call& call, Site& site);

    [[nodiscard]] const Call& call() const { return shifted_; }
    /// After that call: o and LSE of the caller. They may be under way then.
    void finish(const Options& merge_options);
    [[nodiscard]] std::int64_t bytes() const;

private:
    const Call& call_;
    Site& site_;
    ShiftedLogits logits_;
    Buffer lse_, sink_o_, sink_lse_; ///< of the keys, and of a part that is the sink alone
    Call shifted_;
};

/// Backward by three calls. Two add up what makes P and D over the keys of each row, in the arithmetic of the third:
/// forward may run on another machine, whose s' are rounded otherwise. A single call does so on its way (RowRepair);
/// here no call may take a row for whole.
class ShiftedBackward {
public:
    /// Takes all memory.
    ShiftedBackward(const Call& call, Site& site);

    [[nodiscard]] const Call& exponentials() const { return exponentials_; } ///< Σ P, for LSE'
    void take_lse();
    [[nodiscard]] const Call& deltas() const { return deltas_; } ///< Σ P∘dP, for D
    void take_delta();
    [[nodiscard]] const Call& gradients() const { return gradients_; }
    /// After all of them: what the last one did not write in its place. It may be under way then.
    void finish(Messages& messages);
    [[nodiscard]] std::int64_t bytes() const;

private:
    [[nodiscard]] BackwardArgs shifted_args();
    [[nodiscard]] BackwardArgs exponentials_args();
    /// The column of sums of the last call, on the host.
    [[nodiscard]] const float* sums();

    const Call& call_;
    Site& site_;
    ShiftedLogits logits_;
    Options without_dropout_;
    Buffer unit_v_, unit_dout_, o_, lse_, dq_, dk_, sums_, dsink_;
    TensorView sums_view_;
    std::vector<float> before_; ///< room for sums of dsink
    BackwardArgs args_;
    Call exponentials_, deltas_, gradients_;
};

} // namespace flashomp::mpi
