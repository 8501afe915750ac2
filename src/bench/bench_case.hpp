// One attention problem with its tensors where the kernels will use them, for timing.
#pragma once

#include "flashomp/attention.hpp"

#include "host_tensor.hpp"
#include "shape.hpp"
#include "space.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace flashomp::bench {

/// A host tensor and, on a device, its copy there.
class PlacedTensor {
public:
    /// Copies `tensor` to a device's memory. Throws RunFailure when the device has no memory for it.
    PlacedTensor(io::HostTensor tensor, const Space& space);
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
    Space space_;
};

/// Random inputs, the same for the same shape and dtype, and the outputs of both directions.
class BenchCase {
public:
    /// `space`: the memory that holds the tensors, of the device that runs the calls, so that no copies are timed.
    /// Throws RunFailure when there is not enough memory.
    BenchCase(const cost::Shape& shape, DType dtype, Options options, const Space& space);
    ~BenchCase();
    BenchCase(const BenchCase&) = delete;
    BenchCase& operator=(const BenchCase&) = delete;

    Report forward();
    Report backward();

    /// Gives the outputs of one direction back, and makes them anew, filled with NaN.
    void drop_outputs(bool backward);
    void make_outputs(bool backward);

    /// Fills those of one direction with NaN again, so that what no later call writes shows.
    void poison_outputs(bool backward);

    /// All tensors where the calls find them; those that are not made are absent.
    [[nodiscard]] BackwardArgs arguments();
    [[nodiscard]] ForwardArgs forward_arguments();

    /// Bytes of the outputs of one direction.
    [[nodiscard]] std::int64_t output_bytes(bool backward);

    /// The arguments with host tensors, for those who read results; downloads the outputs first.
    [[nodiscard]] BackwardArgs on_host();

    /// The inputs as they were, float32 in host memory, where dtype() is float8_e4m3; else null.
    struct Unrounded {
        io::HostTensor q, k, v;
    };
    [[nodiscard]] const Unrounded* unrounded() const { return unrounded_.get(); }

    /// The options with all tensors in host memory.
    [[nodiscard]] Options options_on_host();

    [[nodiscard]] const cost::Shape& shape() const { return shape_; }
    [[nodiscard]] DType dtype() const { return dtype_; }
    [[nodiscard]] const Options& options() const { return options_; }

    /// What calls from now on are told about how they are to run.
    void choose(Machine machine, const Tiling& tiling);

    /// CUDA: as long as this is there, calls return when their kernels are queued on the default stream.
    class Queued {
    public:
        explicit Queued(BenchCase& bench) : bench_(bench) { bench_.options_.stream = nullptr; }
        ~Queued() { bench_.options_.stream.reset(); }
        Queued(const Queued&) = delete;
        Queued& operator=(const Queued&) = delete;

    private:
        BenchCase& bench_;
    };

private:
    using Tensor = std::unique_ptr<PlacedTensor>;

    /// v: a tensor of its own, or columns of the keys.
    [[nodiscard]] ConstTensorView values(ConstTensorView keys, const TensorView& own) const;

    /// Those of the direction that are there.
    [[nodiscard]] std::vector<PlacedTensor*> outputs(bool backward) const;

    [[nodiscard]] io::Shape rows_shape(bool keys, std::int64_t heads, std::int64_t depth) const;

    cost::Shape shape_;
    DType dtype_;
    Options options_;
    Space space_;
    Tensor sink_, slopes_, bias_;
    Tensor q_scale_, k_scale_, v_scale_; ///< of float8_e4m3
    std::unique_ptr<Unrounded> unrounded_;
    Tensor q_, k_, v_, o_, lse_, dout_, dq_, dk_, dv_, dbias_, starts_q_, starts_k_, table_;
};

} // namespace flashomp::bench
