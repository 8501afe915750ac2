// A workspace that the caller's allocator lends for one call.
#pragma once

#include "overlap.hpp"
#include "problem_tensors.hpp"
#include "space.hpp"

#include "flashomp/error.hpp"
#include "flashomp/flashomp.h"
#include "flashomp/prepared.hpp"

#include <cstdint>
#include <exception>
#include <fmt/format.h>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace flashomp::capi {

class LentWorkspace {
public:
    /// Throws RunFailure where there is no memory, and Error where what there is cannot be the problem's workspace.
    LentWorkspace(const flashomp_allocator& allocator, std::int64_t bytes, const Space& space, const Problem& problem)
        : allocator_(allocator), bytes_(bytes), device_type_(space.is_host() ? FLASHOMP_CPU : FLASHOMP_CUDA),
          device_id_(space.is_host() ? 0 : space.device), stream_(space.stream)
    {
        if (bytes == 0) {
            return;
        }
        data_ = of_caller("allocator->allocate", [&] {
            return allocator_.allocate(allocator_.context, bytes, alignment, device_type_, device_id_, stream_);
        });
        if (data_ == nullptr) {
            throw RunFailure(
                fmt::format("the call needs {} bytes of scratch memory on {}, but the caller's allocator has none.",
                            bytes, space.name()));
        }
        try {
            check(problem);
        } catch (...) { // no destructor follows a constructor that throws
            give_back_after_failure();
            throw;
        }
    }
    ~LentWorkspace() { give_back_after_failure(); }
    LentWorkspace(const LentWorkspace&) = delete;
    LentWorkspace& operator=(const LentWorkspace&) = delete;

    [[nodiscard]] void* data() const { return data_; }

    /// At the end of a call that succeeded. What release() throws goes to the caller; it is not called again.
    void give_back()
    {
        if (void* const memory = std::exchange(data_, nullptr)) {
            of_caller("allocator->release", [&] {
                allocator_.release(allocator_.context, memory, bytes_, device_type_, device_id_, stream_);
            });
        }
    }

private:
    static constexpr std::int64_t alignment = PreparedForward::workspace_alignment;

    /// Whatever its type, an exception of the caller's own function is a defect there, not the call's failure.
    template <class Function>
    static std::invoke_result_t<Function> of_caller(const char* name, const Function& function)
    {
        try {
            return function();
        } catch (const std::exception& thrown) {
            throw std::runtime_error(fmt::format("{} threw: {}", name, thrown.what()));
        } catch (...) {
            throw std::runtime_error(fmt::format("{} threw an exception of an unknown type.", name));
        }
    }

    void check(const Problem& problem) const
    {
        if (const auto address = reinterpret_cast<std::uintptr_t>(data_); address % alignment != 0) {
            throw Error(fmt::format("allocator->allocate returned address {:#x}; it must be a multiple of {}.", address,
                                    alignment));
        }
        const Memory memory = device_type_ == FLASHOMP_CPU ? Memory::host : Memory::device;
        const auto view = ConstTensorView::contiguous(data_, DType::boolean, {bytes_}, memory);
        each_tensor(problem, [&](const char* name, const ConstTensorView& tensor) {
            if (tensor && overlap(view, tensor)) {
                throw Error(fmt::format("allocator->allocate returned memory that overlaps {}; the workspace must not "
                                        "share memory with a tensor of the call.",
                                        name));
            }
        });
    }

    /// The failure that is under way is the one to be told, not that of release().
    void give_back_after_failure() noexcept
    {
        try {
            give_back();
        } catch (...) { // NOLINT(bugprone-empty-catch)
        }
    }

    flashomp_allocator allocator_;
    std::int64_t bytes_;
    std::int32_t device_type_, device_id_;
    void* stream_;
    void* data_ = nullptr;
};

} // namespace flashomp::capi
