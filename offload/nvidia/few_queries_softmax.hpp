// The online softmax of few queries (softmax.hpp): each warp has a base and a sum of its own for each query.
#pragma once

#include "algorithm/row_statistics.hpp"
#include "nvidia/few_queries_tile.hpp"

#pragma omp declare target

namespace flashomp::offload {

namespace ptx {

/// As row_statistics.hpp wants it.
struct Arithmetic {
    static FLASHOMP_INLINE float exp2(float x) { return exp2_approx(x); }
};

} // namespace ptx

/// Probabilities of few queries, and what they weigh.
template <class Config>
class FewQueriesSoftmax : public FewQueriesTile<Config> {
    using Tile = FewQueriesTile<Config>;
    using Tile::steps, Tile::tiles;

public:
    using typename Tile::Rounded, typename Tile::Scores;

    /// unit: the scale of scores, which are dot products.
    FLASHOMP_INLINE void begin(float unit)
    {
        factor_ = unit * log2_e;
        lag_ = quotient(most_lag, unit);
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            FLASHOMP_UNROLL(2)
            for (int c = 0; c < 2; ++c) {
                base_[t][c] = sum_[t][c] = 0.0F;
                limit_[t][c] = -infinity;
            }
        }
        this->clear();
    }

    /// Takes in a tile of scores and leaves the probabilities in it. Bases move where a score is well above, with what
    /// was summed until then.
    FLASHOMP_INLINE void update(Scores& s)
    {
        bool exceeds = false;
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            FLASHOMP_UNROLL(4)
            for (int e = 0; e < 4; ++e) {
                exceeds = exceeds | (s.s[t][e] > limit_[t][e % 2]);
            }
        }
        if (ptx::any_lane(exceeds)) {
            move_bases(s);
        }
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            const float scaled[2] = {base_[t][0] * factor_, base_[t][1] * factor_};
            FLASHOMP_UNROLL(4)
            for (int e = 0; e < 4; ++e) {
                s.s[t][e] = ptx::exp2_approx(__builtin_fmaf(s.s[t][e], factor_, -scaled[e % 2]));
                sum_[t][e % 2] += s.s[t][e];
            }
        }
    }

    /// To shared memory, of each query: the sum and, in logits' units, the base; -inf where no key was seen.
    FLASHOMP_INLINE void leave_statistics(std::uint32_t to)
    {
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            FLASHOMP_UNROLL(2)
            for (int c = 0; c < 2; ++c) {
                const float sum = of_keys(sum_[t][c], [](float x, float y) FLASHOMP_LAMBDA { return x + y; });
                const std::uint32_t place = to + 8 * static_cast<unsigned>(this->column(t) + c);
                ptx::store_shared(place, sum); // by all lanes that have the query: the same
                ptx::store_shared(place + 4, limit_[t][c] == -infinity ? -infinity : base_[t][c]);
            }
        }
    }

private:
    /// 8·ln 2, as TensorTile::lag().
    static constexpr float most_lag = 5.5451774F;

    /// x of all lanes that have the same query, put together by f.
    template <class F>
    static FLASHOMP_INLINE float of_keys(float x, const F& f)
    {
        x = f(x, ptx::shuffle_xor<4>(x));
        x = f(x, ptx::shuffle_xor<8>(x));
        return f(x, ptx::shuffle_xor<16>(x));
    }

    FLASHOMP_INLINE void move_bases(const Scores& s)
    {
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            FLASHOMP_UNROLL(2)
            for (int c = 0; c < 2; ++c) {
                const float peak = of_keys(ptx::max(s.s[t][c], s.s[t][c + 2]),
                                           [](float x, float y) FLASHOMP_LAMBDA { return ptx::max(x, y); });
                const RowBase moved = moved_base<ptx::Arithmetic>(peak, base_[t][c], limit_[t][c], factor_, lag_);
                base_[t][c] = moved.base;
                limit_[t][c] = moved.limit;
                sum_[t][c] *= moved.correction;
                FLASHOMP_UNROLL(16)
                for (int m = 0; m < steps; ++m) {
                    this->sums_[t][m][c] *= moved.correction;
                    this->sums_[t][m][c + 2] *= moved.correction;
                }
            }
        }
    }

    float factor_, lag_;
    float base_[tiles][2], limit_[tiles][2], sum_[tiles][2];
};

} // namespace flashomp::offload

#pragma omp end declare target
