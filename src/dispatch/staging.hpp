// Host tensors on a device: copies in before the kernels, copies out after.
#pragma once

#include "kernel_params.hpp"
#include "problem.hpp"
#include "space.hpp"

#include "flashomp/tensor.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace flashomp {

/// What the copies of a call's host tensors take.
struct StagingBytes {
    std::int64_t tensors = 0;  ///< their elements
    std::int64_t memory = 0;   ///< of the space, with what lies between them
    std::int64_t gathered = 0; ///< on the host: of the largest one that has gaps

    void add(const ConstTensorView& view, const Space& space);
};
[[nodiscard]] StagingBytes staging_bytes(const Problem& problem, const Space& space);

/// The device copies of one run's host tensors. Tensors that are on the device already are used where they are, and on
/// the host everything is.
class Staging final : public Tensors {
public:
    /// In as much memory as StagingBytes says, of the space and of the host.
    Staging(const Space& space, void* memory, const StagingBytes& bytes, void* gathered)
        : space_(space), memory_(static_cast<std::byte*>(memory)), left_(bytes.memory), gathered_(gathered)
    {
    }

    // Both throw std::logic_error for a tensor that StagingBytes did not count.

    ConstTensorView input(const ConstTensorView& view) override;
    TensorView output(const TensorView& view) override; ///< finish() brings it back

    /// Copies every output to where the caller wants it, and waits for the copies. There are none in asynchronous
    /// calls.
    void finish();

private:
    struct Output {
        TensorView caller, copy;
    };
    TensorView reserve(const ConstTensorView& view);

    Space space_;
    std::byte* memory_; ///< that no tensor has yet
    std::int64_t left_; ///< bytes of it
    void* gathered_;
    std::array<Output, 8> outputs_;
    std::size_t output_count_ = 0;
};

} // namespace flashomp
