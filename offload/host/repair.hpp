// The rows of a result that are not finite, computed anew one at a time from their visible pairs alone (nonfinite.hpp).
#pragma once

#include "algorithm/key_source.hpp"
#include "algorithm/quantised_source.hpp"
#include "algorithm/score.hpp"
#include "host/finite.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace flashomp::offload {

/// Modification: a program's own score, or Unmodified.
template <class Modification>
class Repair {
public:
    static void forward(const Params& params, int threads)
    {
        for_bad_rows(params, params.o, params.head_dim_v, threads, forward_row);
    }

    static void backward(const Params& params, int threads)
    {
        for_bad_rows(params, params.dq, params.head_dim, threads, query_row);
        repair_keys(params, threads);
        if (params.dbias.data != nullptr) {
            repair_bias(params, threads);
        }
        for (int head = 0; params.dsink != nullptr && head < params.heads_q; ++head) {
            if (!std::isfinite(params.dsink[head])) {
                params.dsink[head] = static_cast<float>(sink_element(params, head));
            }
        }
    }

private:
    using Row = std::vector<double>;

    static constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
    static constexpr double no_logit = -std::numeric_limits<double>::infinity();

    /// Calls f() with the first element of a single row.
    template <class F>
    static auto with_elements(const Rows& row, F f)
    {
        switch (row.element) {
        case Element::bfloat16:
            return f(static_cast<BFloat16*>(row.data) + row.offset);
        case Element::float16:
            return f(static_cast<Float16*>(row.data) + row.offset);
        case Element::float32:
            break;
        }
        return f(static_cast<float*>(row.data) + row.offset);
    }

    /// A row of which a pair takes the product: of q or dO, or of K or V, whose cache may have 8 bits.
    struct Factor {
        Factor(const Rows& rows) : row(rows) {} // NOLINT(google-explicit-constructor): most rows are nothing else
        Factor(const QuantisedRows& rows)       // NOLINT(google-explicit-constructor)
            : row(rows.rows.row(0)), element(rows.element), scale(rows.scale(0))
        {
        }

        Rows row;
        CacheElement element = CacheElement::as_q;
        float scale = 1.0F;
    };

    template <class F>
    static auto with_elements(const Factor& factor, F f)
    {
        switch (factor.element) {
        case CacheElement::float8_e4m3:
            return f(static_cast<Float8*>(factor.row.data) + factor.row.offset);
        case CacheElement::int8:
            return f(static_cast<Int8*>(factor.row.data) + factor.row.offset);
        case CacheElement::as_q:
            break;
        }
        return with_elements(factor.row, f);
    }

    static Row read(const Rows& row)
    {
        Row values(static_cast<std::size_t>(row.depth));
        with_elements(row, [&](const auto* data) {
            std::transform(data, data + row.depth, values.begin(),
                           [](auto x) { return static_cast<double>(to_float(x)); });
        });
        return values;
    }

    static void write(const Rows& row, const Row& values)
    {
        with_elements(row, [&](auto* data) {
            for (const double value : values) {
                from_float(static_cast<float>(value), *data++);
            }
        });
    }

    static double dot(const Row& a, const Factor& b)
    {
        const double product = with_elements(b, [&](const auto* data) {
            double sum = 0.0;
            for (std::size_t x = 0; x < a.size(); ++x) {
                sum += a[x] * static_cast<double>(to_float(data[x]));
            }
            return sum;
        });
        return product * static_cast<double>(b.scale);
    }

    /// sum += factor·row
    static void add(Row& sum, double factor, const Factor& row)
    {
        const double by = factor * static_cast<double>(row.scale);
        with_elements(row, [&](const auto* data) {
            for (std::size_t x = 0; x < sum.size(); ++x) {
                sum[x] += by * static_cast<double>(to_float(data[x]));
            }
        });
    }

    static bool is_all_nan(const Row& values)
    {
        return std::all_of(values.begin(), values.end(), [](double x) { return std::isnan(x); });
    }

    /// One query head of one sequence: its pairs one by one.
    struct Head {
        Head(const Params& params, int batch_, int head_)
            : p(params), batch(batch_), index(head_), kv(head_ / (params.heads_q / params.heads_kv)),
              seq(params.cache.is_there() ? sequence_in_cache(params, batch_) : sequence(params, batch_)),
              score(params, seq, batch_, head_)
        {
        }

        /// The scaled, modified score of a visible pair.
        [[nodiscard]] double logit(double dot_product, int i, int j) const
        {
            return static_cast<double>(score.logit(static_cast<float>(dot_product), i, j));
        }
        [[nodiscard]] double sink(int i) const
        {
            const SinkTensor& sink = p.sink;
            return sink.data != nullptr ? static_cast<double>(sink.data[index * sink.head + i * sink.row]) : no_logit;
        }
        [[nodiscard]] double lse(int i) const
        {
            const auto value = static_cast<double>(stat(p.lse, i));
            return value == no_logit ? -no_logit : value; // usable_lse()
        }

        [[nodiscard]] Rows row_of(const Tensor& of_queries, int i, int depth) const
        {
            return rows_of(p, of_queries, batch, index, seq.q_start + i, 1, depth);
        }
        [[nodiscard]] Rows result(const Tensor& of_queries, int i, int depth) const
        {
            return written_rows(p, of_queries, batch, index, seq.q_start + i, 1, depth);
        }
        [[nodiscard]] Rows query(int i) const { return row_of(p.q, i, p.head_dim); }
        [[nodiscard]] Rows dout(int i) const { return row_of(p.dout, i, p.head_dim_v); }
        [[nodiscard]] Factor key(int j) const
        {
            if (p.cache.is_quantised()) {
                return QuantisedKeys::keys(p, seq, batch, kv, j, 1);
            }
            return p.cache.pages != nullptr ? PagedKeys::keys(p, seq, batch, kv, j, 1).row(0)
                                            : StridedKeys::keys(p, seq, batch, kv, j, 1);
        }
        [[nodiscard]] Factor value(int j) const
        {
            if (p.cache.is_quantised()) {
                return QuantisedKeys::values(p, seq, batch, kv, j, 1);
            }
            return p.cache.pages != nullptr ? PagedKeys::values(p, seq, batch, kv, j, 1).row(0)
                                            : StridedKeys::values(p, seq, batch, kv, j, 1);
        }
        [[nodiscard]] float& stat(const RowTensor& of_rows, int i) const
        {
            return *row_stats(of_rows, batch, index, seq.q_start + i);
        }

        /// Calls f(j) for every key that row i sees, until it returns false.
        template <class F>
        void for_visible_keys(int i, F f) const
        {
            const Range keys = score.band.keys(i, i + 1);
            for (int j = keys.begin; j < keys.end; ++j) {
                if (score.sees(i, j) && !f(j)) {
                    return;
                }
            }
        }

        const Params& p;
        int batch, index, kv;
        Sequence seq;
        ScoreWith<Modification, PairMask, SeamedBand> score;
    };

    /// Calls f(head, i) for every row of queries whose row of `results` is not finite.
    template <class F>
    static void for_bad_rows(const Params& p, const Tensor& results, int depth, int threads, F f)
    {
        constexpr std::int64_t few = 4096; // elements that are looked at before a second thread could start
        const std::int64_t rows = std::int64_t{p.batch} * p.heads_q * p.seqlen_q;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 16) if (rows * depth > few)
        for (std::int64_t row = 0; row < rows; ++row) {
            const auto i = static_cast<int>(row % p.seqlen_q);
            const auto index = static_cast<int>(row / p.seqlen_q % p.heads_q);
            const auto batch = static_cast<int>(row / p.seqlen_q / p.heads_q);
            const Sequence seq = sequence(p, batch);
            if (i < seq.q_len && !all_finite(written_rows(p, results, batch, index, seq.q_start + i, 1, depth))) {
                f(Head(p, batch, index), i);
            }
        }
    }

    /// o and LSE of one row: standard attention.
    static void forward_row(const Head& head, int i)
    {
        const Params& p = head.p;
        const Row q = read(head.query(i));
        double top = head.sink(i);
        bool is_nan = std::isnan(top);
        head.for_visible_keys(i, [&](int j) {
            const double logit = head.logit(dot(q, head.key(j)), i, j);
            is_nan = is_nan || std::isnan(logit);
            top = std::max(top, logit);
            return !is_nan; // a NaN is in every element of the row
        });
        top = top == no_logit ? 0.0 : top; // (−∞) − (−∞) would be NaN
        Row o(static_cast<std::size_t>(p.head_dim_v), is_nan ? not_a_number : 0.0);
        double sum = is_nan ? not_a_number : std::exp(head.sink(i) - top);
        if (!is_nan) {
            head.for_visible_keys(i, [&](int j) {
                const double weight = std::exp(head.logit(dot(q, head.key(j)), i, j) - top);
                sum += weight;
                add(o, weight * static_cast<double>(head.score.dropout(i, j)), head.value(j));
                return true;
            });
        }
        const double divisor = sum == 0.0 ? 1.0 : sum; // nothing to attend to: o = 0
        std::transform(o.begin(), o.end(), o.begin(), [divisor](double x) { return x / divisor; });
        write(head.result(p.o, i, p.head_dim_v), o);
        head.stat(p.lse, i) = static_cast<float>(top + std::log(sum));
    }

    /// P of a visible pair by the row's LSE, and d(loss)/d(scaled dot product) over it (score_gradient.hpp).
    struct Pair {
        double p = 0.0;     ///< what multiplies the gradients
        double dp = 0.0;    ///< gradient of P, after dropout
        double slope = 1.0; ///< of the softcap and a program's own score
        double kept = 1.0;  ///< dropout's factor
    };

    static Pair pair_of(const Head& head, const Row& q, const Row& dout, int i, int j, double lse)
    {
        Pair pair;
        const double product = dot(q, head.key(j));
        pair.p = std::exp(head.logit(product, i, j) - lse);
        pair.kept = static_cast<double>(head.score.dropout(i, j));
        pair.dp = dot(dout, head.value(j)) * pair.kept;
        pair.slope = static_cast<double>(head.score.slope_at(static_cast<float>(product), i, j));
        return pair;
    }

    /// dQ of one row, with the D and the residual that the sums over rows of queries take.
    static void query_row(const Head& head, int i)
    {
        const Params& p = head.p;
        const Row q = read(head.query(i));
        const Row dout = read(head.dout(i));
        const double lse = head.lse(i);
        double divisor = 1.0;
        double delta = 0.0;
        if (p.keys_are_part) { // LSE and D are those of rows that nobody sees here
            delta = dot(dout, head.result(p.o, i, p.head_dim_v));
        } else {
            double sum = std::exp(head.sink(i) - lse); // of P, the sink's included
            head.for_visible_keys(i, [&](int j) {
                const Pair pair = pair_of(head, q, dout, i, j, lse);
                sum += pair.p;
                delta += pair.p * pair.dp;
                return !std::isnan(sum);
            });
            divisor = sum == 0.0 ? 1.0 : sum; // nothing to attend to
            delta /= divisor;
        }
        const bool is_nan = std::isnan(delta) && !p.keys_are_part; // a part may see none of what made D a NaN
        Row dq(static_cast<std::size_t>(p.head_dim), is_nan ? not_a_number : 0.0);
        if (!is_nan) {
            head.for_visible_keys(i, [&](int j) {
                const Pair pair = pair_of(head, q, dout, i, j, lse);
                const double ds = pair.p / divisor * (pair.dp - delta) * pair.slope;
                add(dq, ds * static_cast<double>(p.scale), head.key(j));
                return true;
            });
        }
        write(head.result(p.dq, i, p.head_dim), dq);
        head.stat(p.delta, i) = static_cast<float>(delta);
        head.stat(p.residual, i) = static_cast<float>(std::log2(divisor));
    }

    /// What a pair adds to sums over rows of queries.
    struct Share {
        double p = 0.0;      ///< after dropout: times dO to dV
        double dlogit = 0.0; ///< to dbias
        double ds = 0.0;     ///< times the scale and q to dK
    };

    static Share share_of(const Head& head, const Row& q, const Row& dout, int i, int j)
    {
        const Pair pair = pair_of(head, q, dout, i, j, head.lse(i));
        const double probability = pair.p / std::exp2(static_cast<double>(head.stat(head.p.residual, i)));
        const double dlogit = probability * (pair.dp - static_cast<double>(head.stat(head.p.delta, i)));
        return {probability * pair.kept, dlogit, dlogit * pair.slope};
    }

    /// dK and dV of one key.
    static void key_row(const Params& p, int batch, int head_kv, int j)
    {
        Row dk(static_cast<std::size_t>(p.head_dim)), dv(static_cast<std::size_t>(p.head_dim_v));
        const int group = p.heads_q / p.heads_kv;
        const Sequence seq = sequence(p, batch);
        for (int index = head_kv * group; index < (head_kv + 1) * group; ++index) {
            const Head head(p, batch, index);
            const Range queries = head.score.band.queries(j, j + 1);
            for (int i = queries.begin; i < queries.end; ++i) {
                if (!head.score.sees(i, j)) {
                    continue;
                }
                const Share share = share_of(head, read(head.query(i)), read(head.dout(i)), i, j);
                add(dk, share.ds * static_cast<double>(p.scale), head.query(i));
                add(dv, share.p, head.dout(i));
                if (is_all_nan(dk) && is_all_nan(dv)) {
                    break;
                }
            }
        }
        write(written_rows(p, p.dk, batch, head_kv, seq.k_start + j, 1, p.head_dim), dk);
        write(written_rows(p, p.dv, batch, head_kv, seq.k_start + j, 1, p.head_dim_v), dv);
    }

    static void repair_keys(const Params& p, int threads)
    {
        const std::int64_t rows = std::int64_t{p.batch} * p.heads_kv * p.seqlen_k;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 16)
        for (std::int64_t row = 0; row < rows; ++row) {
            const auto j = static_cast<int>(row % p.seqlen_k);
            const auto head = static_cast<int>(row / p.seqlen_k % p.heads_kv);
            const auto batch = static_cast<int>(row / p.seqlen_k / p.heads_kv);
            const Sequence seq = sequence(p, batch);
            if (j < seq.k_len && !(all_finite(written_rows(p, p.dk, batch, head, seq.k_start + j, 1, p.head_dim)) &&
                                   all_finite(written_rows(p, p.dv, batch, head, seq.k_start + j, 1, p.head_dim_v)))) {
                key_row(p, batch, head, j);
            }
        }
    }

    /// One element of dbias: the sum over everything that reads the element. An axis along which the bias broadcasts,
    /// with stride 0, is summed over.
    static double bias_element(const Params& p, int batch0, int head0, int i0, int j0)
    {
        const BiasTensor& dbias = p.dbias;
        double sum = 0.0;
        for (int batch = dbias.batch == 0 ? 0 : batch0; batch <= (dbias.batch == 0 ? p.batch - 1 : batch0); ++batch) {
            for (int index = dbias.head == 0 ? 0 : head0; index <= (dbias.head == 0 ? p.heads_q - 1 : head0); ++index) {
                const Head head(p, batch, index);
                const int last = dbias.query == 0 ? head.seq.q_len - 1 : std::min(i0, head.seq.q_len - 1);
                for (int i = dbias.query == 0 ? 0 : i0; i <= last; ++i) {
                    const Row q = read(head.query(i));
                    const Row dout = read(head.dout(i));
                    head.for_visible_keys(i, [&](int j) {
                        sum += dbias.key == 0 || j == j0 ? share_of(head, q, dout, i, j).dlogit : 0.0;
                        return !std::isnan(sum);
                    });
                }
            }
        }
        return sum;
    }

    static void repair_bias(const Params& p, int threads)
    {
        const BiasTensor& dbias = p.dbias;
        const int keys = dbias.key == 0 ? 1 : p.seqlen_k;
        for (int batch = 0; batch < (dbias.batch == 0 ? 1 : p.batch); ++batch) {
            for (int head = 0; head < (dbias.head == 0 ? 1 : p.heads_q); ++head) {
                for (int i = 0; i < (dbias.query == 0 ? 1 : p.seqlen_q); ++i) {
                    const std::int64_t row = batch * dbias.batch + head * dbias.head + i * dbias.query;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
                    for (int j = 0; j < keys; ++j) {
                        if (!std::isfinite(read_element(dbias.data, dbias.element, row + j * dbias.key))) {
                            write_element(dbias.data, dbias.element, row + j * dbias.key,
                                          static_cast<float>(bias_element(p, batch, head, i, j)));
                        }
                    }
                }
            }
        }
    }

    /// dsink of one query head: -Σ p_sink·D.
    static double sink_element(const Params& p, int index)
    {
        double sum = 0.0;
        for (int batch = 0; batch < p.batch; ++batch) {
            const Head head(p, batch, index);
            for (int i = 0; i < head.seq.q_len; ++i) {
                const double residual = std::exp2(static_cast<double>(head.stat(p.residual, i)));
                const auto delta = static_cast<double>(head.stat(p.delta, i));
                const bool counts = std::isfinite(delta) || head.score.sees_any(i); // without keys D is 0
                sum -= counts ? std::exp(head.sink(i) - head.lse(i)) / residual * delta : 0.0;
            }
        }
        return sum;
    }
};

} // namespace flashomp::offload
