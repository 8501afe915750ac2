// From a dot product to the logit of the softmax: scale, softcap, ALiBi, bias, mask (docs/algorithm.md, section 7).
// Logits stay natural; the factor log2 e that turns exp into exp2 (FlashAttention-2, section 3.1) multiplies their
// difference to the row's base instead: with ALiBi over long distances they reach thousands, where one more rounding of
// the logit itself would show. Where the scale is all there is, the forward pass puts it into that factor (Logit).
#pragma once

#include "algorithm/mask.hpp"
#include "algorithm/math.hpp"
#include "algorithm/modification.hpp"
#include "algorithm/pair_mask.hpp"
#include "algorithm/seams.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// What is known of a part of modified scores when a tile's loop is compiled.
enum class Part { asked, absent, present };

/// What is known of all parts that a loop would ask for. A compiler makes vector instructions of a loop over pairs only
/// where it asks nothing.
struct Known {
    Part softcap = Part::asked;
    Part bias = Part::asked; ///< present: in float32
    Part dropout = Part::asked;
    Part hiding = Part::asked; ///< of key padding and masks, beside the band
};

/// Whether a part is there: `asked` says so where it is not known.
template <Part part>
FLASHOMP_INLINE bool is_there(bool asked)
{
    return part == Part::asked ? asked : part == Part::present;
}

/// The score modifications of one query head of one sequence. Modification: a program's own (modification.hpp). Mask:
/// PairMask, or NoMask on machines that do not take masks. AnyBand: SeamedBand on machines that take shards in two
/// stretches, else Band.
template <class Modification, class Mask, class AnyBand>
struct ScoreWith {
    float scale = 1.0F;
    float softcap = 0.0F;
    float slope = 0.0F; ///< ALiBi
    int delta = 0;      ///< Nk - Nq, plus what the first query is further than the first key
    BiasTensor bias;    ///< moved to this batch and head
    AnyBand band;
    const std::uint8_t* key_padding = nullptr; ///< of this batch
    [[no_unique_address]] Mask mask;           ///< of this batch and head
    PhiloxKey dropout_key{};
    std::uint32_t dropout_threshold = 0;
    float dropout_scale = 1.0F;
    std::uint32_t batch = 0, head = 0;  ///< numbers in the whole
    int first_query = 0, first_key = 0; ///< positions of the first rows in the whole sequence
    int whole_q = 0, whole_k = 0;       ///< its lengths
    [[no_unique_address]] Modification modification;

    FLASHOMP_INLINE ScoreWith(const Params& p, const Sequence& s, int batch_, int head_)
        : scale(p.scale), softcap(p.softcap), delta(whole_delta(p, s) + shift_of(p)), band(band_as<AnyBand>(p, s)),
          dropout_key(p.dropout_key), dropout_threshold(p.dropout_threshold), dropout_scale(p.dropout_scale),
          batch(static_cast<std::uint32_t>(p.first_sequence + batch_)),
          head(static_cast<std::uint32_t>(p.first_head + head_)), first_query(p.place_q.first),
          first_key(p.place_k.first), whole_q(p.has_positions ? p.whole_q : s.q_len),
          whole_k(p.has_positions ? p.whole_k : s.k_len), modification(modification_of<Modification>(p))
    {
        if (p.alibi_slopes != nullptr) {
            slope = p.alibi_slopes[batch_ * p.alibi_batch_stride + head_];
        }
        // Member by member: g++ calls memcpy() for the whole, and in a function that calls anything wgmma waits for
        // each product.
        bias.data = p.bias.data;
        bias.batch = p.bias.batch;
        bias.head = p.bias.head;
        bias.query = p.bias.query;
        bias.key = p.bias.key;
        bias.element = p.bias.element;
        const std::int64_t offset = batch_ * bias.batch + head_ * bias.head;
        if (bias.data != nullptr) {
            const std::int64_t bytes = bias.element == Element::float32 ? 4 : 2;
            bias.data = static_cast<char*>(bias.data) + offset * bytes;
        }
        if (p.key_padding_mask != nullptr) {
            key_padding = p.key_padding_mask + batch_ * p.key_padding_batch_stride;
        }
        if constexpr (std::is_same_v<Mask, PairMask>) {
            mask = mask_of_head(p.mask, batch_, head_);
        }
    }

    /// The keys from the first to the last that any of the queries [i0, i1) sees, without padding at both ends.
    FLASHOMP_INLINE Range unpadded_keys(int i0, int i1) const
    {
        Range seen = band.keys(i0, i1);
        if (key_padding == nullptr) {
            return seen;
        }
        while (seen.end > seen.begin && key_padding[seen.end - 1] == 0) {
            --seen.end;
        }
        while (seen.begin < seen.end && key_padding[seen.begin] == 0) {
            ++seen.begin;
        }
        return seen;
    }

    /// The keys that all of the queries [i0, i1) keep: tiles of these need no mask. Rows past the end do not matter,
    /// since nobody reads their results; but there is no bias for them.
    FLASHOMP_INLINE Range interior_keys(int i0, int i1) const
    {
        const bool is_whole = i1 <= band.q_len;
        const bool has_any = !HidesPairs<Modification> && key_padding == nullptr && (is_whole || bias.data == nullptr);
        return has_any ? band.interior_keys(i0, is_whole ? i1 : band.q_len) : Range{};
    }

    /// The queries that keep all of the keys [j0, j1), as above.
    FLASHOMP_INLINE Range interior_queries(int j0, int j1) const
    {
        const bool is_whole = j1 <= band.k_len;
        const bool has_any = !HidesPairs<Modification> && key_padding == nullptr && (is_whole || bias.data == nullptr);
        return has_any ? band.interior_queries(j0, is_whole ? j1 : band.k_len) : Range{};
    }

    template <Known known = Known{}>
    FLASHOMP_INLINE bool keeps(int i, int j) const
    {
        if constexpr (known.hiding == Part::absent && !HidesPairs<Modification>) {
            return band.keeps(i, j);
        }
        if (!band.keeps(i, j)) {
            return false;
        }
        if constexpr (HidesPairs<Modification>) {
            if (!modification.keeps(pair(i, j))) {
                return false;
            }
        }
        return (key_padding == nullptr || key_padding[j] != 0) && (!has_mask(mask) || mask_keeps(mask, i, j));
    }

    /// The same, where a bias of -inf hides too.
    FLASHOMP_INLINE bool sees(int i, int j) const
    {
        return keeps(i, j) && (bias.data == nullptr ||
                               read_element(bias.data, bias.element, i * bias.query + j * bias.key) != -infinity);
    }

    FLASHOMP_INLINE bool sees_any(int i) const
    {
        const Range keys = band.keys(i, i + 1);
        int j = keys.begin;
        while (j < keys.end && !sees(i, j)) {
            ++j;
        }
        return j < keys.end;
    }

    /// The modified logit of (i, j), for a tile that is not masked.
    template <Known known = Known{}>
    FLASHOMP_INLINE float logit(float dot, int i, int j) const
    {
        float s = scale * dot;
        if constexpr (ModifiesScores<Modification>) {
            s = modification.score(s, pair(i, j));
        }
        if (is_there<known.softcap>(softcap > 0.0F)) {
            s = softcap * tanh_fast(quotient(s, softcap));
        }
        const int distance = band.query(i) + delta - band.key(j);
        s -= slope * static_cast<float>(distance < 0 ? -distance : distance);
        if constexpr (known.bias == Part::present) {
            s += static_cast<const float*>(bias.data)[i * bias.query + j * bias.key];
        } else if (is_there<known.bias>(bias.data != nullptr)) {
            s += read_element(bias.data, bias.element, i * bias.query + j * bias.key);
        }
        return s;
    }

    /// The modified logit of (i, j); -inf where the mask hides it. Positions past the ends are masked before anything
    /// is read for them.
    template <bool masked, Known known = Known{}>
    FLASHOMP_INLINE float operator()(float dot, int i, int j) const
    {
        return !masked || keeps<known>(i, j) ? logit<known>(dot, i, j) : -infinity;
    }

    /// What dropout multiplies the probability of (i, j) by: 0 or 1/(1 - p).
    template <Known known = Known{}>
    FLASHOMP_INLINE float dropout(int i, int j) const
    {
        if (!is_there<known.dropout>(dropout_threshold != 0)) {
            return 1.0F;
        }
        const bool kept = dropout_keep(dropout_key, batch, head, drawn_query(i), drawn_key(j), dropout_threshold);
        return kept ? dropout_scale : 0.0F;
    }

    /// Positions in the whole sequence, which dropout draws by.
    FLASHOMP_INLINE std::uint32_t drawn_query(int i) const
    {
        return static_cast<std::uint32_t>(first_query + band.query(i));
    }
    FLASHOMP_INLINE std::uint32_t drawn_key(int j) const { return static_cast<std::uint32_t>(first_key + band.key(j)); }

    /// Whether slope() is not always 1.
    FLASHOMP_INLINE bool has_slope() const { return ModifiesScores<Modification> || softcap > 0.0F; }

    /// d(logit)/d(scaled dot): that of the program's own score, and 1 - tanh² of the softcap.
    template <Known known = Known{}>
    FLASHOMP_INLINE float slope_at(float dot, [[maybe_unused]] int i, [[maybe_unused]] int j) const
    {
        float s = scale * dot;
        float own = 1.0F;
        if constexpr (ModifiesScores<Modification>) {
            own = modification.slope(s, pair(i, j));
            s = modification.score(s, pair(i, j));
        }
        if (!is_there<known.softcap>(softcap > 0.0F)) {
            return own;
        }
        const float t = tanh_fast(quotient(s, softcap));
        return own * (1.0F - t * t);
    }

    FLASHOMP_INLINE ScorePair pair(int i, int j) const
    {
        return {static_cast<int>(batch),
                static_cast<int>(head),
                first_query + band.query(i),
                first_key + band.key(j),
                whole_q,
                whole_k};
    }
};

/// That of the library's own kernels, and that of the passes on a machine.
using Score = ScoreWith<Unmodified, NoMask, Band>;
template <class Machine>
using ScoreOn = ScoreWith<ModificationOf<Machine>, MaskOn<Machine>, BandOn<Machine>>;

/// Machines whose loops over pairs become vector instructions where they ask nothing. The others would get more code
/// for nothing.
template <class Machine>
concept KnowsParts = requires
{
    Machine::knows_parts;
};

/// Calls f<known>(), once for a tile, by what its scores are made of: none or one of softcap, bias and dropout, or
/// else what asks.
template <bool modified, bool masked, class Machine, class F>
FLASHOMP_INLINE void with_known(const ScoreOn<Machine>& score, const F& f)
{
    if constexpr (modified && KnowsParts<Machine>) {
        constexpr Part no = Part::absent;
        constexpr Part yes = Part::present;
        const bool has_softcap = score.softcap > 0.0F;
        const bool has_bias = score.bias.data != nullptr;
        const bool has_dropout = score.dropout_threshold != 0;
        const bool hides = masked && (score.key_padding != nullptr || has_mask(score.mask));
        if (!hides && !has_softcap && !has_bias) {
            return has_dropout ? f.template operator()<Known{no, no, yes, no}>()
                               : f.template operator()<Known{no, no, no, no}>();
        }
        if (!hides && !has_dropout && !has_bias) {
            return f.template operator()<Known{yes, no, no, no}>();
        }
        // Past the ends of the sequence there is no bias: where the tile is masked it has to be asked for.
        if (!masked && !has_dropout && !has_softcap && score.bias.element == Element::float32) {
            return f.template operator()<Known{no, yes, no, no}>();
        }
    }
    f.template operator()<Known{}>();
}

/// Hides padded keys: the columns of a tile, or with keys_are_rows its rows.
template <bool keys_are_rows, class AnyScore>
struct PaddedKeys {
    const AnyScore& score;
    int j0;

    template <class Row>
    FLASHOMP_INLINE float operator()(float dot, Row r, int c) const
    {
        const int j = j0 + (keys_are_rows ? static_cast<int>(r) : c);
        return j < score.band.k_len && score.key_padding[j] == 0 ? -infinity : dot;
    }
};

/// Hides what the masks hide, in a tile of dot products: its rows are queries, or with keys_are_rows keys. Pairs past
/// the ends are hidden by the band; for them the last one that is there is asked, without a branch.
template <bool keys_are_rows, class Keeps, class AnyScore>
struct MaskedPairs {
    const AnyScore& score;
    int i0, j0;
    Keeps keeps; ///< (mask, i, j)

    template <class Row>
    FLASHOMP_INLINE float operator()(float dot, Row r, int c) const
    {
        const int i = i0 + (keys_are_rows ? c : static_cast<int>(r));
        const int j = j0 + (keys_are_rows ? static_cast<int>(r) : c);
        const int last_i = score.band.q_len - 1;
        const int last_j = score.band.k_len - 1;
        return keeps(score.mask, i < last_i ? i : last_i, j < last_j ? j : last_j) ? dot : -infinity;
    }
};

/// Whether a machine hides a tile's pairs in a way of its own.
template <class Machine, bool keys_are_rows>
concept HidesTiles = requires(Machine& tile, typename Machine::Scores& s, const PairMask& mask, int n)
{
    tile.template hide<keys_are_rows>(s, mask, n, n, n, n);
};

/// The same for all pairs of a tile, between syncs: in the machine's own way, or a loop for each kind of mask.
template <bool keys_are_rows, class Machine>
FLASHOMP_INLINE void hide_masked(Machine& tile, typename Machine::Scores& s, const ScoreOn<Machine>& score, int i0,
                                 int j0)
{
    if constexpr (HidesTiles<Machine, keys_are_rows>) {
        tile.template hide<keys_are_rows>(s, score.mask, i0, j0, score.band.q_len, score.band.k_len);
    } else {
        const auto map = [&](auto keeps) FLASHOMP_LAMBDA {
            tile.map(s, MaskedPairs<keys_are_rows, decltype(keeps), ScoreOn<Machine>>{score, i0, j0, keeps});
        };
        if (score.mask.dense != nullptr && !score.mask.is_bits) {
            map([](const PairMask& m, int i, int j)
                    FLASHOMP_LAMBDA { return m.dense[i * m.dense_query + j * m.dense_key] != 0; });
        } else if (score.mask.dense != nullptr) {
            map([](const PairMask& m, int i, int j) FLASHOMP_LAMBDA { return bit_of(m.dense + i * m.dense_query, j); });
        }
        if (score.mask.blocks != nullptr) {
            map([](const PairMask& m, int i, int j) FLASHOMP_LAMBDA { return blocks_keep(m, i, j); });
        }
    }
}

/// Whether a tile's pairs take part in sums.
template <bool keys_are_rows, class AnyScore>
struct VisiblePairs {
    const AnyScore& score;
    int i0, j0;

    FLASHOMP_INLINE bool operator()(int r, int c) const
    {
        return keys_are_rows ? score.sees(i0 + c, j0 + r) : score.sees(i0 + r, j0 + c);
    }
};

/// -inf for pairs that do not.
template <class AnyScore>
struct HiddenLogit {
    VisiblePairs<false, AnyScore> is_visible;

    FLASHOMP_INLINE float operator()(float logit, int r, int c) const { return is_visible(r, c) ? logit : -infinity; }
};

/// Probabilities of one tile after dropout.
template <class AnyScore, Known known = Known{}>
struct DropoutFactor {
    const AnyScore& score;
    int i0, j0;

    template <class Row>
    FLASHOMP_INLINE float operator()(float p, Row r, int c) const
    {
        return p * score.template dropout<known>(i0 + r, j0 + c);
    }
};

/// Whether a machine drops a tile's probabilities in a way of its own.
template <class Machine>
concept DropsTiles = requires(Machine& tile, typename Machine::Scores& s, const ScoreOn<Machine>& score, int n)
{
    tile.drop(s, score, n, n);
};

/// Dropout of one tile, in the machine's own way or an element at a time.
template <class Machine>
FLASHOMP_INLINE void drop(Machine& tile, typename Machine::Scores& s, const ScoreOn<Machine>& score, int i0, int j0)
{
    if constexpr (DropsTiles<Machine>) {
        tile.drop(s, score, i0, j0);
    } else {
        with_known<true, false, Machine>(score, [&]<Known known>() FLASHOMP_LAMBDA {
            tile.map(s, DropoutFactor<ScoreOn<Machine>, known>{score, i0, j0});
        });
    }
}

/// The scores of one tile, from the dot products of rows that are queries and columns that are keys: logits where they
/// are modified, else as they are, without the scale.
template <bool modified, bool masked, class AnyScore, Known known = Known{}>
struct Logit {
    const AnyScore& score; // a copy of so many fields would not be kept in registers
    int i0, j0;

    template <class Row>
    FLASHOMP_INLINE float operator()(float dot, Row r, int c) const
    {
        if constexpr (!modified) {
            return !masked || score.band.keeps(i0 + r, j0 + c) ? dot : -infinity;
        }
        return score.template operator()<masked, known>(dot, i0 + r, j0 + c);
    }
};

} // namespace flashomp::offload

#pragma omp end declare target
