// Attention of few queries, as in a step of decoding (few_queries_crew.hpp):
//
//     Sᵀ = K·Qᵀ    Oᵀ += Vᵀ·Pᵀ
//
// Oᵀ stays in a warp's registers, beside a base and a sum of its own for each query (softmax.hpp). At the end the
// crew's warps are put together, and by the last crew of a block its parts of the keys (merge.hpp has the identity).
#pragma once

#include "algorithm/forward.hpp"
#include "algorithm/merge.hpp"
#include "nvidia/few_queries_keys.hpp"
#include "nvidia/few_queries_softmax.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// A block's part of the keys.
struct FewQueriesItem {
    int batch = 0, head_kv = 0;
    int first_head = 0, first_query = 0; ///< of the block: a query head, and a query of each of its heads
    int split = 0;
    int number = 0; ///< of the block among all
};

/// Blocks of Launch::resident_rows queries of each of Launch::heads_in_block heads.
class FewQueriesItems {
public:
    FLASHOMP_INLINE FewQueriesItems(const Params& p, const Launch& launch)
        : p_(p), launch_(launch),
          blocks_(p.seqlen_q <= launch.resident_rows ? 1
                                                     : (p.seqlen_q + launch.resident_rows - 1) / launch.resident_rows),
          heads_(divided(p.heads_q, launch.heads_in_block))
    {
    }

    /// Blocks of heads.
    [[nodiscard]] FLASHOMP_INLINE int heads() const { return heads_; }

    /// Blocks of queries of all sequences.
    [[nodiscard]] FLASHOMP_INLINE std::int64_t of_head() const
    {
        return launch_.units != nullptr ? std::int64_t{launch_.unit_count} : std::int64_t{blocks_} * p_.batch;
    }

    [[nodiscard]] FLASHOMP_INLINE std::int64_t count() const { return of_head() * heads_ * p_.splits; }

    /// In 32 bits, which plan() sees to. Parts of a block are neighbours.
    [[nodiscard]] FLASHOMP_INLINE FewQueriesItem item(int index) const
    {
        const int number = divided(index, p_.splits);
        const int block = divided(number, heads_);
        return item(index - number * p_.splits, number - block * heads_, block);
    }

    /// block: of queries of all sequences.
    [[nodiscard]] FLASHOMP_INLINE FewQueriesItem item(int split, int heads, int block) const
    {
        FewQueriesItem item;
        item.split = split;
        item.number = block * heads_ + heads;
        Unit unit;
        if (launch_.units != nullptr) {
            unit = launch_.units[block];
        } else {
            unit.batch = divided(block, blocks_);
            unit.block = block - unit.batch * blocks_;
        }
        item.batch = unit.batch;
        item.first_query = unit.block * launch_.resident_rows;
        item.first_head = heads * launch_.heads_in_block;
        item.head_kv = p_.heads_q == p_.heads_kv ? item.first_head : item.first_head / (p_.heads_q / p_.heads_kv);
        return item;
    }

private:
    /// x / y. A division takes 100 cycles and more, of the 10 000 that few keys take, and most of these are by 1.
    static FLASHOMP_INLINE int divided(int x, int y) { return y == 1 ? x : x / y; }

    const Params& p_;
    const Launch& launch_;
    int blocks_, heads_;
};

/// One crew's part of the keys of one block. Source: where they lie (key_source.hpp).
template <class Config, class Source>
class FewQueriesForward : FewQueriesCrew<Config> {
    using Crew = FewQueriesCrew<Config>;
    using Tile = FewQueriesSoftmax<Config>;
    using Crew::batch_, Crew::check_, Crew::depth, Crew::lane_, Crew::memory_, Crew::p_, Crew::rows_, Crew::sequence_,
        Crew::warp_;
    using typename Crew::Math;

public:
    FLASHOMP_INLINE FewQueriesForward(const Params& p, const Launch& launch, const FewQueriesItem& item,
                                      const void* memory)
        : FewQueriesForward(p, launch, item, Source::of(p, item.batch), memory)
    {
    }

    /// arrivals: of each block, 0 before the launch; null: parts are left as they are.
    FLASHOMP_INLINE void run(unsigned* arrivals)
    {
        if (rows_.count <= 0) { // the whole crew
            return;
        }
        const Range part = split_keys(this->seen_keys(), Config::keys, item_.split, p_.splits);
        this->load_queries(p_.q, p_.head_dim, Config::queries_at);
        tile_.begin(p_.scale);
        // One place in the code that loads and one that computes: where keys are few, each instruction runs once or
        // twice, and fetching them takes as long as fetching keys.
        const int first = part.begin + Config::keys * static_cast<int>(warp_);
        FewKeys<Config, Source> keys(p_, sequence_, batch_, item_.head_kv, first);
        int j0 = first - int{Config::stages} * int{step};
        int stage = 0;
        FLASHOMP_UNROLL(1)
        for (int round = -int{Config::stages}; (round <= 0) | (j0 < part.end); ++round) {
            if (round >= 0) {
                ptx::copy_wait<Config::stages - 1>();
                if (round == 0) {
                    ptx::barrier<Config::threads>(); // the queries, for warps without keys, too
                }
                if (j0 < part.end) {
                    ptx::warp_barrier(); // all lanes' copies are there
                    ptx::refetch();
                    attend(j0, this->stage_at(stage));
                    ptx::warp_barrier(); // nobody reads what was in this place
                }
            }
            const int ahead = j0 + int{Config::stages} * int{step};
            if (ahead < part.end) {
                keys.load(this->stage_at(stage), ahead);
            }
            ptx::copy_commit(); // a group, which may be empty
            stage = (stage + 1) % Config::stages;
            j0 += step;
        }
        ptx::copy_wait<0>();
        ptx::warp_barrier();
        tile_.leave(this->stage_at(0));
        tile_.leave_statistics(statistics_at(static_cast<int>(warp_), 0));
        ptx::barrier<Config::threads>();
        put_warps_together();
        if (arrivals != nullptr &&
            is_last<Config::warps>(arrivals + item_.number, p_.splits, memory_ + Config::place_at)) {
            put_parts_together();
        }
        check_.report(p_.nonfinite);
    }

private:
    enum : int { step = int{Config::keys} * int{Config::warps} };

    FLASHOMP_INLINE FewQueriesForward(const Params& p, const Launch& launch, const FewQueriesItem& item,
                                      const Sequence& sequence, const void* memory)
        : Crew(p, sequence, item.batch, rows_in_block(launch, item, sequence.q_len), memory), item_(item)
    {
    }

    static FLASHOMP_INLINE FewRows rows_in_block(const Launch& launch, const FewQueriesItem& item, int q_len)
    {
        const int left = q_len - item.first_query;
        const int each = left < launch.resident_rows ? left : launch.resident_rows;
        return {item.first_head, item.first_query, each, launch.heads_in_block * each};
    }

    /// 16 keys from j0 on, which are at `place` with their values.
    FLASHOMP_INLINE void attend(int j0, std::uint32_t place)
    {
        typename Tile::Scores s;
        tile_.multiply(s, place, memory_ + Config::queries_at);
        if (!this->all_seen(j0)) {
            tile_.hide(
                s, [&](int r) FLASHOMP_LAMBDA { return this->keys_of(r, j0); },
                [&](int key) FLASHOMP_LAMBDA { return this->is_kept(j0 + key); });
        }
        tile_.update(s);
        tile_.project(Tile::rounded(s), place + Config::Keys::bytes);
    }

    /// Sum and base of row r of a warp.
    FLASHOMP_INLINE std::uint32_t statistics_at(int warp, int r) const
    {
        return memory_ + Config::statistics_at + 8 * static_cast<unsigned>(warp * Config::rows + r);
    }

    /// The end of row r, of all keys that the warps have seen. weights: what is to become of a warp's sums.
    FLASHOMP_INLINE RowEnd row_end(int r, float (&weights)[Config::warps]) const
    {
        float base = -infinity, sum = 0.0F;
        ptx::FloatPair of_warp[Config::warps];
        FLASHOMP_UNROLL(4)
        for (int w = 0; w < Config::warps; ++w) {
            of_warp[w] = ptx::load_shared_pair(statistics_at(w, r));
            base = ptx::max(base, of_warp[w].y);
        }
        const float factor = p_.scale * log2_e;
        FLASHOMP_UNROLL(4)
        for (int w = 0; w < Config::warps; ++w) {
            const bool is_there = of_warp[w].y > -infinity; // else it may hold anything
            weights[w] = is_there ? ptx::exp2_approx((of_warp[w].y - base) * factor) : 0.0F;
            sum += of_warp[w].x * weights[w];
        }
        const bool has_sink = (item_.split == 0) & (p_.sink.data != nullptr);
        float sink = 0.0F;
        if (has_sink) {
            const typename Crew::Query at = this->query(r);
            sink = p_.sink.data[at.head * p_.sink.head + at.i * p_.sink.row];
        }
        return finished_row<ptx::Arithmetic>(sum, base, base, p_.scale, has_sink, sink);
    }

    /// What all warps have left, to o and LSE; of a part of the keys, to where parts are.
    FLASHOMP_INLINE void put_warps_together()
    {
        for_rows([&](int r) FLASHOMP_LAMBDA {
            float weights[Config::warps];
            const RowEnd end = row_end(r, weights);
            const float factor = end.factor();
            const std::int64_t row = this->statistic_of(p_.partial_lse, r) + item_.split * p_.partial_stride;
            const bool is_part = p_.splits > 1;
            (is_part ? p_.partial_lse.data : p_.lse.data)[is_part ? row : this->statistic_of(p_.lse, r)] = end.lse();
            for_fours([&](int x) FLASHOMP_LAMBDA {
                float sum[4] = {};
                const auto place = static_cast<unsigned>(4 * Tile::place_of(r, x));
                FLASHOMP_UNROLL(4)
                for (int w = 0; w < Config::warps; ++w) {
                    const auto of_warp = static_cast<unsigned>(w * Config::warp_bytes);
                    this->add(sum, ptx::load_shared_128(memory_ + of_warp + place), weights[w]);
                }
                scale(sum, factor);
                if (is_part) {
                    write(p_.partial_o, Element::float32, row * p_.head_dim_v, x, sum);
                } else {
                    write_result(r, x, sum);
                }
            });
        });
    }

    /// Of all parts, from memory, o and LSE.
    FLASHOMP_INLINE void put_parts_together()
    {
        for_rows([&](int r) FLASHOMP_LAMBDA {
            const std::int64_t row = this->statistic_of(p_.partial_lse, r);
            const float* const lse = p_.partial_lse.data + row;
            for_fours([&](int x) FLASHOMP_LAMBDA {
                // A lane weighs two parts.
                const int first = static_cast<int>(lane_), second = first + 32;
                const float part_lse[2] = {
                    ptx::load_global_32(lse + first * p_.partial_stride, first < p_.splits, -infinity),
                    ptx::load_global_32(lse + second * p_.partial_stride, second < p_.splits, -infinity)};
                const float* from = p_.partial_o + row * p_.head_dim_v + x;
                Loaded loaded;
                load_parts(loaded, from, x, 0); // on their way while the parts are weighed
                const float top = of_all_lanes(ptx::max(part_lse[0], part_lse[1]),
                                               [](float a, float b) FLASHOMP_LAMBDA { return ptx::max(a, b); });
                const float largest = top == -infinity ? 0.0F : top; // so that -inf - largest is no NaN
                const float share[2] = {exp_difference<ptx::Arithmetic>(part_lse[0], largest),
                                        exp_difference<ptx::Arithmetic>(part_lse[1], largest)};
                const float all =
                    of_all_lanes(share[0] + share[1], [](float a, float b) FLASHOMP_LAMBDA { return a + b; });
                // Without keys a part may hold anything.
                const float weight[2] = {part_lse[0] == -infinity ? -1.0F : share[0],
                                         part_lse[1] == -infinity ? -1.0F : share[1]};
                float sum[4] = {};
                FLASHOMP_UNROLL(1)
                for (int split = 0; split < p_.splits; split += at_once) {
                    if (split > 0) {
                        load_parts(loaded, from, x, split);
                    }
                    add_parts(sum, loaded, split < 32 ? weight[0] : weight[1], split);
                }
                if (x == 0) {
                    p_.lse.data[this->statistic_of(p_.lse, r)] = merged_lse(largest, all);
                }
                scale(sum, all != 0.0F ? quotient(1.0F, all) : 0.0F);
                write_result(r, x, sum);
            });
        });
    }

    enum : int { at_once = 16 }; ///< loads that do not wait for each other: the call waits for the last crew
    struct Loaded {
        ptx::Four x[at_once];
    };

    /// Of `at_once` parts from `split` on the columns that the first has at `from`, which moves along.
    FLASHOMP_INLINE void load_parts(Loaded& loaded, const float*& from, int x, int split) const
    {
        const std::int64_t apart = p_.partial_stride * p_.head_dim_v;
        const bool is_column = x < p_.head_dim_v;
        FLASHOMP_UNROLL(16)
        for (int n = 0; n < at_once; ++n) {
            loaded.x[n] = ptx::load_global_128(from, is_column & (split + n < p_.splits));
            from += apart;
        }
        ptx::warp_barrier(); // else ptxas puts each load before its use, and all wait one after the other
    }

    /// weight: of the lane's part, which is the one of its number among 32; -1: it is not to count.
    static FLASHOMP_INLINE void add_parts(float (&sum)[4], const Loaded& loaded, float weight, int split)
    {
        FLASHOMP_UNROLL(16)
        for (int n = 0; n < at_once; ++n) {
            const float by = ptx::shuffle(weight, static_cast<unsigned>(split % 32 + n));
            const float share = ptx::max(by, 0.0F);
            FLASHOMP_UNROLL(4)
            for (int e = 0; e < 4; ++e) {
                sum[e] = fused(share, by < 0.0F ? 0.0F : float_of(loaded.x[n].x[e]), sum[e]);
            }
        }
    }

    static FLASHOMP_INLINE void scale(float (&sum)[4], float by)
    {
        FLASHOMP_UNROLL(4)
        for (int e = 0; e < 4; ++e) {
            sum[e] *= by;
        }
    }

    /// f(row) for those of this warp.
    template <class F>
    FLASHOMP_INLINE void for_rows(const F& f)
    {
        FLASHOMP_UNROLL(1)
        for (int r = static_cast<int>(warp_); r < rows_.count; r += Config::warps) {
            f(r);
        }
    }

    /// f(x) for each four columns of o from x on that a lane of the warp has.
    template <class F>
    FLASHOMP_INLINE void for_fours(const F& f)
    {
        FLASHOMP_UNROLL(1)
        for (int x = 4 * static_cast<int>(lane_); x < depth + 4 * static_cast<int>(lane_); x += 4 * 32) {
            f(x);
        }
    }

    /// Four columns of o.
    FLASHOMP_INLINE void write_result(int r, int x, const float (&sum)[4])
    {
        FLASHOMP_UNROLL(4)
        for (int e = 0; e < 4; ++e) {
            check_.see(x + e < p_.head_dim_v ? sum[e] : 0.0F, 0.0F);
        }
        write(p_.o.data, p_.o.element, this->offset_of(p_.o, r), x, sum);
    }

    /// Four columns of a row of o or of a part's, which begins at `row` in `data`.
    FLASHOMP_INLINE void write(void* data, Element element, std::int64_t row, int x, const float (&sum)[4])
    {
        const std::int64_t at = row + x;
        const int element_bytes = element == Element::float32 ? 4 : 2;
        const std::uintptr_t place =
            reinterpret_cast<std::uintptr_t>(data) + static_cast<std::uintptr_t>(at) * element_bytes;
        if (x + 4 <= p_.head_dim_v && place % (4 * element_bytes) == 0) {
            auto* const to = reinterpret_cast<void*>(place);
            if (element == Element::float32) {
                ptx::store_global_128(to, sum);
            } else {
                ptx::store_global_64(to, Math::pack(sum[0], sum[1]), Math::pack(sum[2], sum[3]));
            }
            return;
        }
        const int there = p_.head_dim_v - x;
        FLASHOMP_UNROLL(1)
        for (int e = 0; e < (there < 4 ? there : 4); ++e) {
            // Not sum[e], which would take the sums out of their registers.
            write_element(data, element, at + e, e < 2 ? (e == 0 ? sum[0] : sum[1]) : (e == 2 ? sum[2] : sum[3]));
        }
    }

    FewQueriesItem item_;
    Tile tile_;
};

} // namespace flashomp::offload

#pragma omp end declare target
