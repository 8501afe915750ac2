// Large logits: what float32 takes from LSE (docs/algorithm.md), given back where no call sees whole rows.
//
// Where logits are in the thousands, a float32 LSE is off by up to 2^-12. Parts of a row then get wrong weights
// exp(LSE_S - LSE) in forward, and a wrong P = exp(s - LSE) in backward. A single call weighs no parts, and finds the
// common factor of a row's P in the row. Here such calls are computed with other logits, s' = s - c, with a c near the
// row's LSE. Results are the same but for LSE' = LSE - c, which is near 0, where float32 keeps all of it
// (docs/distributed.md, "Large logits").
#pragma once

#include "agreement.hpp"
#include "tensors.hpp"

#include <array>
#include <cstdint>
#include <vector>

namespace flashomp::mpi {

/// Whether the rounding of LSE, which call.args.lse has, shows in parts of this call, and can be kept from it: the same
/// on all ranks. Collective.
[[nodiscard]] bool wants_shift(const Messages& messages, const Call& call);

/// q, k and options by which the logits of a row are less by its c. q and k get two more columns:
///
///     [q, -x1/64, -x2/64]·[k, 64, 64] = q·k - (x1 + x2),      scale·(x1 + x2) = c
///
/// so that kernels, options and schemes know nothing of it. x1/64 and x2/64 have 8 bits each: every dtype holds them,
/// and every machine's products are exact. The sink is left out, as it would be another one for each row.
class ShiftedLogits {
public:
    /// From call.args.lse. Takes all memory.
    explicit ShiftedLogits(const Call& call);

    [[nodiscard]] const ConstTensorView& q() const { return q_; }
    [[nodiscard]] const ConstTensorView& k() const { return k_; }
    [[nodiscard]] const Options& options() const { return options_; }

    // Row-major statistics of rows, like LSE.
    [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(c_.size()); }
    [[nodiscard]] std::int64_t head_of(std::int64_t row) const { return row / rows_of_head_ % heads_; }
    /// LSE - c of the sink alone.
    [[nodiscard]] double sink(std::int64_t row) const;
    /// LSE, from LSE - c.
    [[nodiscard]] float whole(std::int64_t row, float lse) const
    {
        return static_cast<float>(c_[at(row)] + static_cast<double>(lse));
    }
    [[nodiscard]] std::int64_t bytes() const;

private:
    static std::size_t at(std::int64_t row) { return static_cast<std::size_t>(row); }
    /// The two numbers of a row that sum up to its c, divided by scale and 64.
    [[nodiscard]] std::array<double, 2> cut(double lse, DType dtype) const;

    Options options_;
    ConstTensorView sink_;
    std::int64_t heads_, rows_of_head_;
    double scale_;
    std::vector<double> c_;
    Buffer q_memory_, k_memory_;
    ConstTensorView q_, k_;
};

/// Forward once more.
class ShiftedForward {
public:
    /// After a forward pass, whose LSE says how far to shift. Takes all memory.
    explicit ShiftedForward(const Call& call);

    [[nodiscard]] const Call& call() const { return shifted_; }
    /// After that call: o and LSE of the caller.
    void finish(const Options& merge_options);
    [[nodiscard]] std::int64_t bytes() const;

private:
    const Call& call_;
    ShiftedLogits logits_;
    Buffer o_, lse_, sink_o_, sink_lse_; ///< of the keys, and of a part that is the sink alone
    Call shifted_;
};

/// Backward by two calls: the first one finds LSE - c in the arithmetic in which the second one will have s - c.
class ShiftedBackward {
public:
    /// Takes all memory.
    explicit ShiftedBackward(const Call& call);

    [[nodiscard]] const Call& first() const { return first_; }
    [[nodiscard]] const Call& second() const { return second_; }
    /// Between the two.
    void take_lse();
    /// After both: what the second one did not write in its place.
    void finish(Messages& messages);
    [[nodiscard]] std::int64_t bytes() const;

private:
    [[nodiscard]] BackwardArgs shifted_args();
    void add_dsink();

    const Call& call_;
    ShiftedLogits logits_;
    Buffer o_, lse_, dq_, dk_, row_o_, row_dout_; ///< o of the first call is for nobody; a row of o and dout in float32
    std::vector<bool> sees_keys_;
    std::vector<float> dsink_, before_;
    Call first_, second_;
};

} // namespace flashomp::mpi
