// One attention problem with its tensors where the kernels will use them, for timing.
#pragma once

#include "flashomp/attention.hpp"
#include "host_tensor.hpp"
#include "shapes.hpp"

#include <memory>

namespace flashomp::bench {

/// Errors of the results against the float64 reference, and what the tolerance rule allows.
struct Accuracy {
    double o = 0, lse = 0, dq = 0, dk = 0, dv = 0;
    double bound_o = 0, bound_gradient = 0;
    bool has_gradients = false;
    bool has_dkv = false; ///< dk and dv need every query of a head: only checked where N x N float64 fits
    [[nodiscard]] bool is_good() const;
};

class BenchCase {
public:
    /// Random tensors; in device memory when `on_device`, so that no copies are timed.
    BenchCase(const Shape& shape, DType dtype, const Options& options, bool on_device);
    ~BenchCase();
    BenchCase(const BenchCase&) = delete;
    BenchCase& operator=(const BenchCase&) = delete;

    Report forward();
    Report backward();

    /// Compares the last results with the reference, for the last head of the last batch: all of its rows up to
    /// seqlen 2048, its last 128 query rows beyond.
    [[nodiscard]] Accuracy check(bool backward);

    /// Overwrites every output with NaN, so that what a run does not write shows.
    void poison();

private:
    struct Tensor;
    Shape shape_;
    DType dtype_;
    Options options_;
    std::unique_ptr<Tensor> q_, k_, v_, o_, lse_, dout_, dq_, dk_, dv_;
};

} // namespace flashomp::bench
