#include "standard_kernels.hpp"

#include "algorithm/element.hpp"

#include <cuda_runtime.h>

namespace flashomp::bench {

namespace {

constexpr int threads = 256; ///< of a row
constexpr int warps = threads / 32;

/// What all threads of the block make of their values, known to each of them.
template <class Op>
__device__ float reduce(float x, const Op& op)
{
    __shared__ float of_warps[warps];
    for (int distance = 16; distance > 0; distance /= 2) {
        x = op(x, __shfl_xor_sync(0xFFFFFFFFU, x, distance));
    }
    __syncthreads(); // whoever still reads the last results
    if (threadIdx.x % 32 == 0) {
        of_warps[threadIdx.x / 32] = x;
    }
    __syncthreads();
    float all = of_warps[0];
    for (int warp = 1; warp < warps; ++warp) {
        all = op(all, of_warps[warp]);
    }
    return all;
}

template <class E>
__global__ void __launch_bounds__(threads) softmax_kernel(ScoreMatrices shape, const E* s, E* p, float* lse)
{
    const std::int64_t index = blockIdx.x;
    const std::int64_t matrix = index / shape.rows;
    const std::int64_t row = index % shape.rows;
    const std::int64_t seen =
        shape.is_causal ? min(max(row + shape.shift + 1, std::int64_t{0}), shape.columns) : shape.columns;
    const E* const from = s + index * shape.columns;
    E* const to = p + index * shape.columns;
    float most = -INFINITY;
    for (std::int64_t c = threadIdx.x; c < seen; c += threads) {
        most = fmaxf(most, offload::to_float(from[c]));
    }
    most = reduce(most, [](float x, float y) { return fmaxf(x, y); });
    float sum = 0.0F;
    for (std::int64_t c = threadIdx.x; c < seen; c += threads) {
        sum += expf(offload::to_float(from[c]) - most);
    }
    sum = reduce(sum, [](float x, float y) { return x + y; });
    for (std::int64_t c = threadIdx.x; c < shape.columns; c += threads) {
        offload::from_float(c < seen ? expf(offload::to_float(from[c]) - most) / sum : 0.0F, to[c]);
    }
    if (threadIdx.x == 0) {
        const std::int64_t neighbours = shape.batch * shape.heads_kv;
        const std::int64_t group = shape.heads_q / shape.heads_kv;
        const std::int64_t batch = matrix % neighbours / shape.heads_kv;
        const std::int64_t head = matrix % shape.heads_kv * group + matrix / neighbours;
        lse[(batch * shape.heads_q + head) * shape.rows + row] = seen > 0 ? most + logf(sum) : -INFINITY;
    }
}

template <class E>
__global__ void __launch_bounds__(threads) softmax_gradient_kernel(ScoreMatrices shape, const E* p, const E* dp, E* ds)
{
    const std::int64_t first = std::int64_t{blockIdx.x} * shape.columns;
    float sum = 0.0F;
    for (std::int64_t c = threadIdx.x; c < shape.columns; c += threads) {
        sum += offload::to_float(p[first + c]) * offload::to_float(dp[first + c]);
    }
    sum = reduce(sum, [](float x, float y) { return x + y; });
    for (std::int64_t c = threadIdx.x; c < shape.columns; c += threads) {
        offload::from_float(offload::to_float(p[first + c]) * (offload::to_float(dp[first + c]) - sum), ds[first + c]);
    }
}

/// Calls f with a null pointer of the element's type.
template <class F>
int for_element(offload::Element element, const F& f)
{
    switch (element) {
    case offload::Element::bfloat16:
        f(static_cast<offload::BFloat16*>(nullptr));
        break;
    case offload::Element::float16:
        f(static_cast<offload::Float16*>(nullptr));
        break;
    case offload::Element::float32:
        f(static_cast<float*>(nullptr));
        break;
    }
    return cudaGetLastError();
}

} // namespace

int launch_softmax(const ScoreMatrices& shape, const void* s, void* p, float* lse)
{
    const auto rows = static_cast<unsigned>(shape.count() * shape.rows);
    return for_element(shape.element, [&]<class E>(E*) {
        softmax_kernel<E><<<rows, threads>>>(shape, static_cast<const E*>(s), static_cast<E*>(p), lse);
    });
}

int launch_softmax_gradient(const ScoreMatrices& shape, const void* p, const void* dp, void* ds)
{
    const auto rows = static_cast<unsigned>(shape.count() * shape.rows);
    return for_element(shape.element, [&]<class E>(E*) {
        softmax_gradient_kernel<E>
            <<<rows, threads>>>(shape, static_cast<const E*>(p), static_cast<const E*>(dp), static_cast<E*>(ds));
    });
}

} // namespace flashomp::bench
