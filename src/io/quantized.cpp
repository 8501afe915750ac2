#include "quantized.hpp"

#include "convert.hpp"

#include "flashomp/error.hpp"
#include "float8.hpp"
#include "host_threads.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace flashomp::io {

Quantized quantized(const HostTensor& tensor, int heads_axis, DType to_type)
{
    const Shape& shape = tensor.shape();
    if (shape.size() != 4) {
        throw Error(fmt::format("A tensor of {} axes cannot be converted to {}; 4 axes are allowed.", shape.size(),
                                name_of(to_type)));
    }
    const HostTensor wide = converted(tensor, DType::float32);
    Quantized result{HostTensor(to_type, shape, Fill::nothing),
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
    const bool is_int8 = to_type == DType::int8;
    const double largest = is_int8 ? 127.0 : most_float8_e4m3;
    const int threads = host_threads(0, shape[0] * heads);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (std::int64_t index = 0; index < shape[0] * heads; ++index) {
        float most = 0.0F;
        for_head(index / heads, index % heads, [&](std::int64_t i) { most = std::max(most, std::abs(from[i])); });
        const float unit = most > 0.0F ? most / static_cast<float>(largest) : 1.0F;
        scale[index] = unit;
        for_head(index / heads, index % heads, [&](std::int64_t i) {
            const double value = static_cast<double>(from[i]) / static_cast<double>(unit);
            const double within = std::isnan(value) ? value : std::clamp(value, -largest, largest);
            to[i] = is_int8 ? static_cast<std::uint8_t>(
                                  static_cast<std::int8_t>(std::isnan(within) ? 0.0 : std::nearbyint(within)))
                            : float8_e4m3_from(within);
        });
    }
    return result;
}

} // namespace flashomp::io
