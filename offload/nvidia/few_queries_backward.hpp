// All gradients of few queries in one pass over the keys (few_queries_crew.hpp): training's counterpart of a step of
// decoding. A crew reads each key and value once and writes its gradients once.
//
//     Sᵀ = K·Qᵀ    dPᵀ = V·dOᵀ    dV = Pᵀ·dO    dK = dSᵀ·Q    dQᵀ += Kᵀ·dSᵀ
//
// dQᵀ stays in a warp's registers. Nothing knows whole rows, so nothing repairs LSE and D (row_repair.hpp).
#pragma once

#include "algorithm/score_gradient.hpp"
#include "nvidia/few_queries_crew.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Parts of the keys of each key head, and what they leave.
struct KeyParts {
    int parts = 1;
    float* sums = nullptr;        ///< dQ of a part, [batch, key head, part] of FewQueriesShape::sum_floats()
    unsigned* arrivals = nullptr; ///< [batch, key head]: parts that are done; 0 before the launch
};

/// Parts of the keys of a launch, whose blocks are parts.
FLASHOMP_INLINE int key_parts(const Params& p, const Launch& launch)
{
    const int parts = (p.seqlen_k + launch.resident_rows - 1) / launch.resident_rows;
    return parts > 1 ? parts : 1;
}

/// P and dS of few queries, and what follows for the keys.
template <class Config>
class FewQueriesGradients : public FewQueriesTile<Config> {
    using Tile = FewQueriesTile<Config>;
    using Tile::pairs, Tile::steps, Tile::tiles;
    using typename Tile::Keys, typename Tile::Math, typename Tile::Queries;

public:
    using typename Tile::Rounded, typename Tile::Scores;

    /// statistics: LSE and D of each query.
    FLASHOMP_INLINE void begin(std::uint32_t statistics)
    {
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            FLASHOMP_UNROLL(2)
            for (int c = 0; c < 2; ++c) {
                const ptx::FloatPair pair =
                    ptx::load_shared_pair(statistics + 8 * static_cast<unsigned>(this->column(t) + c));
                lse_[t][c] = pair.x;
                delta_[t][c] = pair.y;
            }
        }
        this->clear();
    }

    /// P in the place of the dot products, and dS in that of dP (score_gradient.hpp). all_seen: by every query; else
    /// query r sees those of keys_of(r) that is_kept(j) keeps, numbers in the tile.
    template <class KeysOf, class IsKept>
    FLASHOMP_INLINE void gradients(Scores& s, Scores& dp, float scale, bool all_seen, const KeysOf& keys_of,
                                   const IsKept& is_kept)
    {
        if (!all_seen) {
            this->hide(s, keys_of, is_kept);
        }
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            FLASHOMP_UNROLL(4)
            for (int e = 0; e < 4; ++e) {
                const float difference = fused(scale, s.s[t][e], -lse_[t][e % 2]);
                const float probability = ptx::exp2_approx(difference * log2_e);
                // What is hidden may have any dP.
                const bool is_hidden = !all_seen && s.s[t][e] == -infinity;
                s.s[t][e] = probability;
                dp.s[t][e] = is_hidden ? 0.0F : probability * (dp.s[t][e] - delta_[t][e % 2]);
            }
        }
    }

    /// weights · queries · factor, rounded, to where keys or values were.
    FLASHOMP_INLINE void sum_keys(const Rounded& weights, std::uint32_t queries, std::uint32_t to, float factor)
    {
        this->forget_places();
        const std::uint32_t base = to + this->lane_ / 4 * 128 + 4 * (this->lane_ % 4);
        FLASHOMP_UNROLL(16)
        for (int n = 0; n < steps; ++n) {
            float sum[2][4] = {};
            FLASHOMP_UNROLL(2)
            for (int pair = 0; pair < pairs; ++pair) {
                const ptx::Four right = ptx::load_matrices_transposed(
                    queries + this->along_columns() + static_cast<unsigned>(pair) * 16 * 128 +
                    Queries::pair_offset(2 * n, this->lane_ / 16, this->lane_));
                const ptx::Four left = weights.left(pair);
                Math::multiply_add(sum[0], left, right.x[0], right.x[1]);
                Math::multiply_add(sum[1], left, right.x[2], right.x[3]);
            }
            FLASHOMP_UNROLL(2)
            for (int c = 0; c < 2; ++c) {
                const auto chunk = static_cast<unsigned>(2 * n + c);
                const std::uint32_t at = base + Keys::panel(chunk) + ((chunk % 8) ^ (this->lane_ / 4)) * 16;
                ptx::store_shared_32(at, Math::pack(sum[c][0] * factor, sum[c][1] * factor));
                ptx::store_shared_32(at + 8 * 128, Math::pack(sum[c][2] * factor, sum[c][3] * factor));
            }
        }
    }

private:
    float lse_[tiles][2], delta_[tiles][2];
};

/// One crew's part of the keys of one key head.
template <class Config>
class FewQueriesBackward : FewQueriesCrew<Config> {
    using Crew = FewQueriesCrew<Config>;
    using Tile = FewQueriesGradients<Config>;
    using Crew::batch_, Crew::check_, Crew::depth, Crew::lane_, Crew::memory_, Crew::p_, Crew::rows_, Crew::sequence_,
        Crew::warp_;
    using typename Crew::Keys, typename Crew::Math, typename Crew::Queries, typename Crew::Stored;

public:
    /// index: number of the part among those of all key heads.
    FLASHOMP_INLINE FewQueriesBackward(const Params& p, const KeyParts& parts, std::int64_t index, const void* memory)
        : FewQueriesBackward(p, parts, item_of(p, parts, static_cast<int>(index)), memory)
    {
    }

    FLASHOMP_INLINE void run()
    {
        const int blocks = (sequence_.k_len + Config::keys - 1) / Config::keys;
        const int rounds = (blocks + Config::warps - 1) / Config::warps;
        const int each = (rounds + parts_.parts - 1) / parts_.parts * Config::warps;
        const int begin = item_.part * each;
        const int end = begin + each < blocks ? begin + each : blocks;
        this->load_queries(p_.q, p_.head_dim, Config::queries_at);
        this->load_queries(p_.dout, p_.head_dim_v, Config::queries_at + int{Queries::bytes});
        const int first = begin + static_cast<int>(warp_);
        FLASHOMP_UNROLL(4)
        for (int stage = 0; stage + 1 < Config::stages; ++stage) {
            load_keys(first + stage * Config::warps, end, stage);
        }
        sum_rows();
        ptx::copy_wait<Config::stages - 2>();
        ptx::barrier<Config::threads>();
        tile_.begin(memory_ + Config::statistics_at);
        int stage = 0;
        FLASHOMP_UNROLL(1)
        for (int block = first; block < end; block += Config::warps) {
            ptx::copy_wait<Config::stages - 2>();
            ptx::warp_barrier(); // all lanes' copies are there, and nobody reads what was in the next stage's place
            ptx::refetch();
            constexpr int ahead = Config::stages - 1;
            load_keys(block + ahead * Config::warps, end, (stage + ahead) % Config::stages);
            attend(block * Config::keys, this->stage_at(stage));
            stage = (stage + 1) % Config::stages;
        }
        ptx::copy_wait<0>();
        leave_sums();
    }

private:
    struct Item {
        int part, number, batch, head_kv; ///< number: of the key head among all
    };

    static FLASHOMP_INLINE Item item_of(const Params& p, const KeyParts& parts, int index)
    {
        const int number = index / parts.parts;
        const int batch = number / p.heads_kv;
        return {index - number * parts.parts, number, batch, number - batch * p.heads_kv};
    }

    FLASHOMP_INLINE FewQueriesBackward(const Params& p, const KeyParts& parts, const Item& item, const void* memory)
        : Crew(p, sequence(p, item.batch), item.batch, rows_of_group(p, item), memory), parts_(parts), item_(item)
    {
    }

    /// All queries of the heads that share a key head.
    static FLASHOMP_INLINE FewRows rows_of_group(const Params& p, const Item& item)
    {
        const int group = p.heads_q / p.heads_kv;
        const int each = sequence(p, item.batch).q_len;
        return {item.head_kv * group, 0, each, group * each};
    }

    FLASHOMP_INLINE Rows rows_of_keys(const Tensor& tensor, int j0, int head_dim) const
    {
        const int left = sequence_.k_len - j0;
        return written_rows(p_, tensor, batch_, item_.head_kv, sequence_.k_start + j0,
                            left < Config::keys ? left : int{Config::keys}, head_dim);
    }

    /// One group of copies, which is empty where there are no keys, or nobody sees them.
    FLASHOMP_INLINE void load_keys(int block, int end, int stage)
    {
        const int j0 = block * Config::keys;
        if (block < end && is_seen(j0)) {
            copy_in<Keys, 32>(this->stage_at(stage), rows_of_keys(p_.k, j0, p_.head_dim), lane_);
            copy_in<Keys, 32>(this->stage_at(stage) + Keys::bytes, rows_of_keys(p_.v, j0, p_.head_dim_v), lane_);
        }
        ptx::copy_commit();
    }

    /// Whether any query sees one of the keys from j0 on.
    FLASHOMP_INLINE bool is_seen(int j0) const
    {
        const Range seen = this->seen_keys();
        return (j0 < seen.end) & (j0 + Config::keys > seen.begin);
    }

    /// LSE and D of all rows to shared memory; rows without keys, and beyond the last, have P = 0.
    FLASHOMP_INLINE void sum_rows()
    {
        FLASHOMP_UNROLL(1)
        for (int r = static_cast<int>(warp_); r < Config::rows; r += Config::warps) {
            float lse = infinity;
            float delta = 0.0F;
            if (r < rows_.count) {
                const Stored* const o = static_cast<const Stored*>(p_.o.data) + this->offset_of(p_.o, r);
                const Stored* const dout = static_cast<const Stored*>(p_.dout.data) + this->offset_of(p_.dout, r);
                for (int x = static_cast<int>(lane_); x < p_.head_dim_v; x += 32) {
                    delta += Math::value(o[x]) * Math::value(dout[x]);
                }
                lse = usable_lse(p_.lse.data[this->statistic_of(p_.lse, r)]);
            }
            delta = of_all_lanes(delta, [](float x, float y) FLASHOMP_LAMBDA { return x + y; });
            const std::uint32_t place = memory_ + Config::statistics_at + 8 * static_cast<unsigned>(r);
            ptx::store_shared(place, lse);
            ptx::store_shared(place + 4, delta);
        }
    }

    /// Gradients of 16 keys from j0 on, which are at `place` with their values.
    FLASHOMP_INLINE void attend(int j0, std::uint32_t place)
    {
        const std::uint32_t q = memory_ + Config::queries_at, dout = q + Queries::bytes, values = place + Keys::bytes;
        typename Tile::Rounded p = Tile::hidden(), ds = Tile::hidden();
        if (is_seen(j0)) {
            typename Tile::Scores s, dp;
            tile_.multiply(s, place, q);
            tile_.multiply(dp, values, dout);
            tile_.gradients(
                s, dp, p_.scale, this->all_seen(j0), [&](int r) FLASHOMP_LAMBDA { return this->keys_of(r, j0); },
                [&](int key) FLASHOMP_LAMBDA { return this->is_kept(j0 + key); });
            p = Tile::rounded(s);
            ds = Tile::rounded(dp);
            tile_.project(ds, place);
        }
        ptx::warp_barrier(); // keys and values have been read: their gradients take their places
        tile_.sum_keys(p, dout, values, 1.0F);
        tile_.sum_keys(ds, q, place, p_.scale);
        ptx::warp_barrier();
        store(results_at(p_.dk, j0, p_.head_dim), place);
        store(results_at(p_.dv, j0, p_.head_dim_v), values);
    }

    FLASHOMP_INLINE Rows results_at(const Tensor& tensor, int j0, int head_dim) const
    {
        Rows rows = rows_of_keys(tensor, j0, head_dim);
        rows.nonfinite = p_.nonfinite;
        return rows;
    }

    /// From a warp's place to memory.
    FLASHOMP_INLINE void store(const Rows& rows, std::uint32_t from)
    {
        constexpr int chunks = Keys::chunks;
        auto* const target = static_cast<std::uint16_t*>(rows.data) + rows.offset;
        const bool whole = in_chunks<2>(rows);
        const unsigned lane = ptx::here(lane_);
        const unsigned chunk = lane % chunks;
        const int column = static_cast<int>(8 * chunk);
        HalvesCheck check;
        FLASHOMP_UNROLL(1)
        for (int r = static_cast<int>(lane) / chunks; r < rows.count; r += 32 / chunks) {
            const std::uint32_t at = from + Keys::offset(static_cast<unsigned>(r), chunk);
            check.see(Math::is_bfloat16, ptx::load_shared_128(at));
            std::uint16_t* const to = target + r * rows.stride;
            const int end = rows.depth < column + 8 ? rows.depth : column + 8;
            if (whole && end > column) {
                ptx::copy_out_16(to + column, at);
                continue;
            }
            FLASHOMP_UNROLL(1)
            for (int x = column; x < end; ++x) {
                to[x] = static_cast<std::uint16_t>(ptx::load_shared_16(at + 2 * static_cast<unsigned>(x - column)));
            }
        }
        check.report(rows.nonfinite);
    }

    /// dQ of all warps, and of all parts if this is the last.
    FLASHOMP_INLINE void leave_sums()
    {
        ptx::warp_barrier();
        tile_.leave(memory_ + warp_ * Config::warp_bytes);
        ptx::barrier<Config::threads>();
        float* const own = parts_.sums + (std::int64_t{item_.number} * parts_.parts + item_.part) * Config::sum_floats;
        for_fours([&](int i) FLASHOMP_LAMBDA {
            float sum[4] = {};
            const int place = Tile::place_of(i / depth, i % depth);
            FLASHOMP_UNROLL(4)
            for (int w = 0; w < Config::warps; ++w) {
                const ptx::Four more =
                    ptx::load_shared_128(memory_ + static_cast<unsigned>(w * Config::warp_bytes + 4 * place));
                this->add(sum, more);
            }
            if (parts_.parts == 1) {
                write(i, sum);
            } else {
                ptx::store_global_128(own + i, sum);
            }
        });
        if (parts_.parts > 1 &&
            is_last<Config::warps>(parts_.arrivals + item_.number, parts_.parts, memory_ + Config::place_at)) {
            add_parts();
        }
        check_.report(p_.nonfinite);
    }

    FLASHOMP_INLINE void add_parts()
    {
        constexpr int at_once = 8; // loads that do not wait for each other: the call waits for this crew
        const float* const first = parts_.sums + std::int64_t{item_.number} * parts_.parts * Config::sum_floats;
        for_fours([&](int i) FLASHOMP_LAMBDA {
            float sum[4] = {};
            for (int part = 0; part < parts_.parts; part += at_once) {
                ptx::Four more[at_once];
                FLASHOMP_UNROLL(8)
                for (int n = 0; n < at_once; ++n) {
                    more[n] = ptx::load_global_128(first + std::int64_t{part + n} * Config::sum_floats + i,
                                                   part + n < parts_.parts);
                }
                FLASHOMP_UNROLL(8)
                for (int n = 0; n < at_once; ++n) {
                    this->add(sum, more[n]);
                }
            }
            write(i, sum);
        });
    }

    /// f(i) for each four floats of the rows there are, shared out to the threads.
    template <class F>
    FLASHOMP_INLINE void for_fours(const F& f)
    {
        FLASHOMP_UNROLL(1)
        for (int i = 4 * static_cast<int>(warp_ * 32 + lane_); i < rows_.count * depth; i += 4 * Config::threads) {
            f(i);
        }
    }

    /// Four floats of dQ from number i of a part's sums on.
    FLASHOMP_INLINE void write(int i, const float (&sum)[4])
    {
        const int r = i / depth;
        const int x = i - r * depth;
        const std::int64_t at = this->offset_of(p_.dq, r) + x;
        FLASHOMP_UNROLL(4)
        for (int e = 0; e < 4; ++e) {
            const float value = sum[e] * p_.scale;
            if (x + e < p_.head_dim) {
                write_element(p_.dq.data, p_.dq.element, at + e, value);
                check_.see(value, 0.0F);
            }
        }
    }

    const KeyParts& parts_;
    Item item_;
    Tile tile_;
};

} // namespace flashomp::offload

#pragma omp end declare target
