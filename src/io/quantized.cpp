#include "quantized.hpp"

#include "convert.hpp"

#include "flashomp/error.hpp"
#include "float8.hpp"
#include "host_threads.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace flashomp::io {

Quantized quantized(const HostTensor& tensor, int heads_axis)
{
    const Shape& shape = tensor.shape();
    if (shape.size() != 4) {
        throw Error(
            fmt::format("A tensor of {} axes cannot be converted to float8_e4m3; 4 axes are allowed.", shape.size()));
    }
    const HostTensor wide = converted(tensor, DType::float32);
    Quantized result{HostTensor(DType::float8_e4m3, shape, Fill::nothing),
                     HostTensor(DType::float32, {shape[0], shape.at(static_cast<std::size_t>(heads_axis))})};
    const auto* const from = static_cast<const float*>(wide.data());
    auto* const to = static_cast<std::uint8_t*>(result.elements.data());
    auto* const scale = static_cast<float*>(result.scale.data());
    const std::int64_t heads = shape.at(static_cast<std::size_t>(heads_axis));
    const std::int64_t outer = heads_axis == 2 ? shape[1] : 1; // rows ahead of the heads' axis
    const std::int64_t inner = wide.elements() / std::max<std::int64_t>(1, shape[0] * outer * heads);
    const auto for_head = [&](std::int64_t batch, std::int64_t head, const auto& f) {
        for (std::int64_t row = 0; row < outer; ++row) {
            const std::int64_t first = ((batch * outer + row) * heads + head) * inner;
            for (std::int64_t i = first; i < first + inner; ++i) {
                f(i);
            }
        }
    };
    const int threads = host_threads(0, shape[0] * heads);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (std::int64_t index = 0; index < shape[0] * heads; ++index) {
        float most = 0.0F;
        for_head(index / heads, index % heads, [&](std::int64_t i) { most = std::max(most, std::abs(from[i])); });
        const float unit = most > 0.0F ? most / static_cast<float>(most_float8_e4m3) : 1.0F;
        scale[index] = unit;
        for_head(index / heads, index % heads, [&](std::int64_t i) {
            const double value = static_cast<double>(from[i]) / static_cast<double>(unit);
            to[i] =
                float8_e4m3_from(std::isnan(value) ? value : std::clamp(value, -most_float8_e4m3, most_float8_e4m3));
        });
    }
    return result;
}

} // namespace flashomp::io
