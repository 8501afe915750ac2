#include "optimizer.hpp"

#include <cmath>
#include <numbers>

namespace gpt {

namespace {

constexpr Index block = 1 << 14;

/// Of the first `size` values, in blocks whose sums are added in order, and of further rows.
template <class C>
double norm_of(const Numbers<C>& values, Index size, const Rows<C>& table, std::span<const Index> rows)
{
    std::vector<double> parts(static_cast<std::size_t>((size + block - 1) / block));
    for_blocks(size, block, [&](Index first, Index count) {
        const Eigen::Map<const Eigen::Array<C, Eigen::Dynamic, 1>> part(values.data() + first, count);
        parts[static_cast<std::size_t>(first / block)] = part.template cast<double>().square().sum();
    });
    double sum = 0;
    for (const double part : parts) {
        sum += part;
    }
    for (const Index row : rows) {
        sum += table.row(row).template cast<double>().squaredNorm();
    }
    return std::sqrt(sum);
}

} // namespace

double learning_rate(const OptimizerOptions& options, std::int64_t step, std::int64_t steps)
{
    if (step < options.warmup) {
        return options.learning_rate * static_cast<double>(step + 1) / static_cast<double>(options.warmup);
    }
    const double done = static_cast<double>(step - options.warmup) /
                        static_cast<double>(std::max<std::int64_t>(1, steps - options.warmup));
    const double falling = 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, done)));
    return options.learning_rate * (options.last_rate + (1 - options.last_rate) * falling);
}

template <class C>
double AdamW<C>::step(Numbers<C>& weights, Numbers<C>& gradients, std::int64_t step, std::int64_t steps,
                      std::span<const Index> touched)
{
    using Array = Eigen::Map<Eigen::Array<C, Eigen::Dynamic, 1>>;
    const double norm = norm_of(gradients, layout_.dense_size(), layout_.ngrams(gradients), touched);
    const auto scale = static_cast<C>(options_.clip > 0 && norm > options_.clip ? options_.clip / norm : 1.0);
    const double rate = learning_rate(options_, step, steps);
    const auto t = static_cast<double>(step + 1);
    const auto beta1 = static_cast<C>(options_.beta1);
    const auto beta2 = static_cast<C>(options_.beta2);
    const auto correction1 = static_cast<C>(rate / (1 - std::pow(options_.beta1, t)));
    const auto correction2 = static_cast<C>(1 / (1 - std::pow(options_.beta2, t)));
    const auto move = [&](Index first, Index count, C decay) {
        const auto at = [&](Numbers<C>& all) { return Array(all.data() + first, count); };
        Array w = at(weights);
        Array g = at(gradients);
        Array m = at(m_);
        Array v = at(v_);
        g *= scale;
        m = beta1 * m + (C(1) - beta1) * g;
        v = beta2 * v + (C(1) - beta2) * g.square();
        w -= correction1 * m / ((correction2 * v).sqrt() + static_cast<C>(options_.epsilon)) + decay * w;
    };
    for (const Place& place : layout_.places()) {
        if (place.first < layout_.dense_size()) {
            const auto decay = static_cast<C>(place.is_matrix ? rate * options_.weight_decay : 0.0);
            for_blocks(place.rows * place.columns, block,
                       [&](Index first, Index count) { move(place.first + first, count, decay); });
        }
    }
    constexpr Index rows_at_a_time = 64;
    for_blocks(static_cast<Index>(touched.size()), rows_at_a_time, [&](Index first, Index count) {
        const Index width = layout_.ngrams(weights).cols();
        for (const Index row : touched.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count))) {
            move(layout_.dense_size() + row * width, width, C(0));
        }
    });
    return norm;
}

template class AdamW<float>;
template class AdamW<double>;

} // namespace gpt
