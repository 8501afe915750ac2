#include "standard_cuda.hpp"

#include "kernel_params.hpp"
#include "standard_kernels.hpp"
#include "workspace.hpp"

#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"

#include <array>
#include <cmath>
#include <cublas_v2.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <optional>
#include <vector>

namespace flashomp::bench {

namespace {

/// cublasGemmBatchedEx(), which the header overloads.
using MultiplyBatched = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                           const void*, const void* const*, cudaDataType, int, const void* const*,
                                           cudaDataType, int, const void*, void* const*, cudaDataType, int, int,
                                           cublasComputeType_t, cublasGemmAlgo_t);

/// cuBLAS, opened when it is asked for: the tool runs where it is not installed.
struct Cublas {
    decltype(&cublasCreate_v2) create = nullptr;
    decltype(&cublasDestroy_v2) destroy = nullptr;
    MultiplyBatched multiply = nullptr;

    Cublas()
    {
        const std::string versioned = fmt::format("libcublas.so.{}", CUBLAS_VER_MAJOR);
        void* library = dlopen(versioned.c_str(), RTLD_NOW | RTLD_LOCAL); // stays open
        if (library == nullptr) {
            throw RunFailure(
                fmt::format("{} was not found, by which standard attention multiplies on a GPU; install NVIDIA's "
                            "package libcublas.",
                            versioned));
        }
        create = reinterpret_cast<decltype(create)>(dlsym(library, "cublasCreate_v2"));
        destroy = reinterpret_cast<decltype(destroy)>(dlsym(library, "cublasDestroy_v2"));
        multiply = reinterpret_cast<MultiplyBatched>(dlsym(library, "cublasGemmBatchedEx"));
        if (create == nullptr || destroy == nullptr || multiply == nullptr) {
            throw RunFailure(fmt::format("{} lacks functions that standard attention needs.", versioned));
        }
    }
};

cudaDataType_t cublas_type(DType dtype)
{
    return dtype == DType::bfloat16 ? CUDA_R_16BF : (dtype == DType::float16 ? CUDA_R_16F : CUDA_R_32F);
}

/// Row-major matrices of one shape: those of all heads, or of all key heads, by their addresses.
struct Matrices {
    const void* const* addresses; ///< in device memory
    int rows, columns;
    int stride; ///< between rows, in elements
};

class StandardCuda final : public Standard {
public:
    StandardCuda(BenchCase& bench, const Space& space);
    ~StandardCuda() override
    {
        const cuda::CurrentDevice current(space_.device);
        cublas_.destroy(handle_);
    }
    StandardCuda(const StandardCuda&) = delete;
    StandardCuda& operator=(const StandardCuda&) = delete;

    [[nodiscard]] std::string machine() const override { return fmt::format("cublas-{}", name_of(bench_.dtype())); }
    void forward(bool keep_p) override;
    void backward() override;

private:
    /// Addresses of the heads of [batch, rows, heads, depth], in the order of ScoreMatrices. `is_key` tensors have
    /// heads_kv; with `once` each of these is listed once, else once for every query head that reads it.
    Matrices heads_of(const ConstTensorView& view, bool is_key, bool once = false);
    Matrices scores_of(void* data);
    /// c = factor·a·b (+ c), each a and b transposed where said, for `count` matrices from `first` on.
    void multiply(const Matrices& a, bool transposes_a, const Matrices& b, bool transposes_b, const Matrices& c,
                  float factor, bool adds, std::int64_t first, std::int64_t count);
    Matrices listed(std::vector<const void*>& addresses, int rows, int columns, int stride);
    [[nodiscard]] std::int64_t matrix_bytes() const
    {
        return shape_.count() * shape_.rows * shape_.columns * size_of(bench_.dtype());
    }
    static void expect(bool succeeded, const char* what);

    BenchCase& bench_;
    Space space_;
    Cublas cublas_;
    cublasHandle_t handle_ = nullptr;
    ScoreMatrices shape_{};
    float scale_ = 1.0F;
    std::optional<Workspace> p_;
    std::vector<Workspace> lists_; ///< of addresses, of the call at work
};

StandardCuda::StandardCuda(BenchCase& bench, const Space& space) : bench_(bench), space_(space)
{
    const cost::Shape& shape = bench.shape();
    expect_standard_attention(shape);
    const bool is_top_left = shape.causal == Causal::top_left;
    shape_ = {shape.batch,
              shape.heads_q,
              shape.heads_kv,
              shape.seqlen_q,
              shape.seqlen_k,
              kernel_element(bench.dtype()),
              shape.causal != Causal::none,
              is_top_left ? 0 : shape.seqlen_k - shape.seqlen_q};
    scale_ = static_cast<float>(bench.options().scale.value_or(1.0 / std::sqrt(static_cast<double>(shape.head_dim))));
    const cuda::CurrentDevice current(space_.device);
    expect(cublas_.create(&handle_) == CUBLAS_STATUS_SUCCESS, "starting cuBLAS");
}

void StandardCuda::expect(bool succeeded, const char* what)
{
    if (!succeeded) {
        throw RunFailure(fmt::format("{} failed.", what));
    }
}

Matrices StandardCuda::listed(std::vector<const void*>& addresses, int rows, int columns, int stride)
{
    const auto bytes = static_cast<std::int64_t>(addresses.size() * sizeof(void*));
    lists_.emplace_back(bytes, space_);
    copy_in(lists_.back().data(), space_, addresses.data(), bytes);
    return {static_cast<const void* const*>(lists_.back().data()), rows, columns, stride};
}

Matrices StandardCuda::heads_of(const ConstTensorView& view, bool is_key, bool once)
{
    const std::int64_t group = shape_.heads_q / shape_.heads_kv;
    std::vector<const void*> addresses;
    for (std::int64_t member = 0; member < (once ? 1 : group); ++member) {
        for (std::int64_t batch = 0; batch < shape_.batch; ++batch) {
            for (std::int64_t head_kv = 0; head_kv < shape_.heads_kv; ++head_kv) {
                const std::int64_t head = is_key ? head_kv : head_kv * group + member;
                const std::int64_t element = batch * view.strides[0] + head * view.strides[2];
                addresses.push_back(static_cast<const char*>(view.data) + element * size_of(view.dtype));
            }
        }
    }
    return listed(addresses, static_cast<int>(view.shape[1]), static_cast<int>(view.shape[3]),
                  static_cast<int>(view.strides[1]));
}

Matrices StandardCuda::scores_of(void* data)
{
    std::vector<const void*> addresses;
    const std::int64_t bytes = shape_.rows * shape_.columns * size_of(bench_.dtype());
    for (std::int64_t matrix = 0; matrix < shape_.count(); ++matrix) {
        addresses.push_back(static_cast<char*>(data) + matrix * bytes);
    }
    const int columns = static_cast<int>(shape_.columns);
    return listed(addresses, static_cast<int>(shape_.rows), columns, columns);
}

void StandardCuda::multiply(const Matrices& a, bool transposes_a, const Matrices& b, bool transposes_b,
                            const Matrices& c, float factor, bool adds, std::int64_t first, std::int64_t count)
{
    // cuBLAS stores by columns, so it sees every matrix transposed: cᵀ = bᵀ·aᵀ.
    const float addend = adds ? 1.0F : 0.0F;
    const int inner = transposes_a ? a.rows : a.columns;
    const cudaDataType_t type = cublas_type(bench_.dtype());
    const cublasStatus_t status =
        cublas_.multiply(handle_, transposes_b ? CUBLAS_OP_T : CUBLAS_OP_N, transposes_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                         c.columns, c.rows, inner, &factor, b.addresses + first, type, b.stride, a.addresses + first,
                         type, a.stride, &addend, const_cast<void* const*>(c.addresses), type, c.stride,
                         static_cast<int>(count), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    expect(status == CUBLAS_STATUS_SUCCESS, "a matrix product of standard attention");
}

void StandardCuda::forward(bool keep_p)
{
    const cuda::CurrentDevice current(space_.device);
    const BackwardArgs args = bench_.arguments();
    lists_.clear();
    p_.reset();
    const Workspace s(matrix_bytes(), space_);
    Workspace p(matrix_bytes(), space_);
    const std::int64_t all = shape_.count();
    multiply(heads_of(args.q, false), false, heads_of(args.k, true), true, scores_of(s.data()), scale_, false, 0, all);
    expect(launch_softmax(shape_, s.data(), p.data(), static_cast<float*>(const_cast<void*>(args.lse.data))) == 0,
           "the softmax of standard attention");
    multiply(scores_of(p.data()), false, heads_of(args.v, true), false, heads_of(args.o, false), 1.0F, false, 0, all);
    wait_for(space_);
    if (keep_p) {
        p_.emplace(std::move(p));
    }
}

void StandardCuda::backward()
{
    const cuda::CurrentDevice current(space_.device);
    const BackwardArgs args = bench_.arguments();
    lists_.clear();
    const Workspace dp(matrix_bytes(), space_);
    const Workspace ds(matrix_bytes(), space_);
    const std::int64_t all = shape_.count();
    const std::int64_t neighbours = shape_.batch * shape_.heads_kv;
    const Matrices dout = heads_of(args.dout, false);
    const Matrices q = heads_of(args.q, false);
    const Matrices p = scores_of(p_->data());
    const Matrices gradient = scores_of(ds.data());
    multiply(dout, false, heads_of(args.v, true), true, scores_of(dp.data()), 1.0F, false, 0, all);
    expect(launch_softmax_gradient(shape_, p_->data(), dp.data(), ds.data()) == 0,
           "the softmax's gradient of standard attention");
    multiply(gradient, false, heads_of(args.k, true), false, heads_of(args.dq, false), scale_, false, 0, all);
    // Query heads that share a key head add to it one after the other.
    const Matrices dk = heads_of(args.dk, true, true);
    const Matrices dv = heads_of(args.dv, true, true);
    for (std::int64_t first = 0; first < all; first += neighbours) {
        multiply(p, true, dout, false, dv, 1.0F, first > 0, first, neighbours);
        multiply(gradient, true, q, false, dk, scale_, first > 0, first, neighbours);
    }
    wait_for(space_);
}

} // namespace

std::unique_ptr<Standard> make_standard_cuda(BenchCase& bench, const Space& space)
{
    return std::make_unique<StandardCuda>(bench, space);
}

} // namespace flashomp::bench
