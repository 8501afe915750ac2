// One attention problem with its tensors where the kernels will use them, for timing.
#pragma once

#include "flashomp/attention.hpp"

#include "host_tensor.hpp"
#include "shape.hpp"

#include <cstdint>
#include <memory>

namespace flashomp::bench {

/// A host tensor and, on a device, its copy there.
class PlacedTensor {
public:
    /// Copies `tensor` to the device where `device` is not -1. Throws Error when the device has no memory for it.
    PlacedTensor(io::HostTensor tensor, int device);
    ~PlacedTensor();
    PlacedTensor(const PlacedTensor&) = delete;
    PlacedTensor& operator=(const PlacedTensor&) = delete;

    void upload() const;
    void download();

    /// Overwrites every byte with 0xFF (NaN), so that what a run does not write shows.
    void poison();

    /// Where a call is to find it.
    [[nodiscard]] TensorView view();

    [[nodiscard]] io::HostTensor& host() { return host_; }

private:
    io::HostTensor host_;
    void* copy_ = nullptr;
    int device_;
};

/// Random inputs, the same for the same shape and dtype, and the outputs of both directions.
class BenchCase {
public:
    /// `device`: OpenMP number of the device whose memory holds the tensors, so that no copies are timed; -1 the host.
    /// Throws Error when there is not enough memory.
    BenchCase(const cost::Shape& shape, DType dtype, const Options& options, int device);
    ~BenchCase();
    BenchCase(const BenchCase&) = delete;
    BenchCase& operator=(const BenchCase&) = delete;

    Report forward();
    Report backward();

    /// Gives the outputs of one direction back, and makes them anew, filled with NaN.
    void drop_outputs(bool backward);
    void make_outputs(bool backward);

    /// Bytes of the outputs of one direction.
    [[nodiscard]] std::int64_t output_bytes(bool backward);

    /// The arguments with host tensors, for those who read results; downloads the outputs first.
    [[nodiscard]] BackwardArgs on_host();

    [[nodiscard]] const cost::Shape& shape() const { return shape_; }
    [[nodiscard]] DType dtype() const { return dtype_; }
    [[nodiscard]] const Options& options() const { return options_; }

private:
    using Tensor = std::unique_ptr<PlacedTensor>;

    [[nodiscard]] io::Shape rows_shape(bool keys, std::int64_t heads, std::int64_t depth) const;

    cost::Shape shape_;
    DType dtype_;
    Options options_;
    int device_;
    Tensor q_, k_, v_, o_, lse_, dout_, dq_, dk_, dv_, starts_q_, starts_k_;
};

} // namespace flashomp::bench
