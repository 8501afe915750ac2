// Host tensors on a device: copies in before the kernels, copies out after.
#pragma once

#include "kernel_params.hpp"
#include "workspace.hpp"

#include "flashomp/tensor.hpp"

#include <deque>
#include <vector>

namespace flashomp {

/// The device copies of one call's host tensors. Tensors that are on the device already are used where they are,
/// and on the host everything is.
class Staging final : public Tensors {
public:
    explicit Staging(const Space& space) : space_(space) {}

    ConstTensorView input(const ConstTensorView& view) override;
    TensorView output(const TensorView& view) override; ///< finish() brings it back
    /// The array where kernels on the device can read it; null when it is empty.
    template <class T>
    const T* array(const std::vector<T>& values)
    {
        return static_cast<const T*>(bytes(values.data(), static_cast<std::int64_t>(values.size() * sizeof(T))));
    }
    /// Copies every output to where the caller wants it, and waits for the copies. There are none in asynchronous
    /// calls.
    void finish();

    [[nodiscard]] std::int64_t bytes() const { return bytes_; }

private:
    struct Output {
        TensorView caller, copy;
    };
    TensorView reserve(const ConstTensorView& view);
    const void* bytes(const void* data, std::int64_t size);

    Space space_;
    std::int64_t bytes_ = 0;
    std::deque<Workspace> copies_;
    std::vector<Output> outputs_;
};

} // namespace flashomp
