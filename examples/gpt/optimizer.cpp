#include "optimizer.hpp"

#include <cmath>
#include <numbers>

namespace gpt {

namespace {

constexpr Index block = 1 << 14;

/// In blocks, whose sums are added in order.
template <class C>
double norm_of(const Numbers<C>& values)
{
    const auto size = static_cast<Index>(values.size());
    std::vector<double> parts(static_cast<std::size_t>((size + block - 1) / block));
    for_blocks(size, block, [&](Index first, Index count) {
        const Eigen::Map<const Eigen::Array<C, Eigen::Dynamic, 1>> part(values.data() + first, count);
        parts[static_cast<std::size_t>(first / block)] = part.template cast<double>().square().sum();
    });
    double sum = 0;
    for (const double part : parts) {
        sum += part;
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
double AdamW<C>::step(Numbers<C>& weights, Numbers<C>& gradients, std::int64_t step, std::int64_t steps)
{
    using Array = Eigen::Map<Eigen::Array<C, Eigen::Dynamic, 1>>;
    const double norm = norm_of(gradients);
    const auto scale = static_cast<C>(options_.clip > 0 && norm > options_.clip ? options_.clip / norm : 1.0);
    const double rate = learning_rate(options_, step, steps);
    const auto t = static_cast<double>(step + 1);
    const auto beta1 = static_cast<C>(options_.beta1);
    const auto beta2 = static_cast<C>(options_.beta2);
    const auto correction1 = static_cast<C>(rate / (1 - std::pow(options_.beta1, t)));
    const auto correction2 = static_cast<C>(1 / (1 - std::pow(options_.beta2, t)));
    for (const Place& place : layout_.places()) {
        const auto decay = static_cast<C>(place.is_matrix ? rate * options_.weight_decay : 0.0);
        for_blocks(place.rows * place.columns, block, [&](Index first, Index count) {
            const auto at = [&](Numbers<C>& all) { return Array(all.data() + place.first + first, count); };
            Array w = at(weights);
            Array g = at(gradients);
            Array m = at(m_);
            Array v = at(v_);
            g *= scale;
            m = beta1 * m + (C(1) - beta1) * g;
            v = beta2 * v + (C(1) - beta2) * g.square();
            w -= correction1 * m / ((correction2 * v).sqrt() + static_cast<C>(options_.epsilon)) + decay * w;
        });
    }
    return norm;
}

template class AdamW<float>;
template class AdamW<double>;

} // namespace gpt
