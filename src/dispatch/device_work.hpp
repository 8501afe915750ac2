// What flashomp::mpi needs of a device besides calls: memory, elements on their way, and copies beside the calls.
#pragma once

#include "flashomp/options.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace flashomp {

/// The device of calls with some options. Work is done in the order in which it is asked for, behind what was sent to
/// the caller's stream; it may be under way when a function returns.
class DeviceWork {
public:
    /// Throws Error where such calls run on the host.
    explicit DeviceWork(const Options& options);
    ~DeviceWork();
    DeviceWork(const DeviceWork&) = delete;
    DeviceWork& operator=(const DeviceWork&) = delete;

    /// What calls take so that they are in this order, too. With a stream they are queued; without one they are over
    /// when they return. Throws Error where the stream is being captured: nobody can wait for it then.
    [[nodiscard]] const Options& options() const;
    /// Whether it is memory of CUDA, which other libraries can use.
    [[nodiscard]] bool has_cuda_memory() const;

    /// Kept by the library for later calls once nobody has it; so wait() first. Throws RunFailure where there is none.
    [[nodiscard]] std::shared_ptr<std::byte> memory(std::int64_t bytes) const;
    /// Of the host.
    [[nodiscard]] std::shared_ptr<std::byte> page_locked(std::int64_t bytes) const;

    // Tensors on the device, of one shape. These throw RunFailure.

    void copy(const ConstTensorView& from, const TensorView& to);    ///< of one dtype, bit for bit
    void convert(const ConstTensorView& from, const TensorView& to); ///< float32 and 16 bits, rounded once
    void add(const ConstTensorView& terms, const TensorView& sums);  ///< float32
    void fill(const TensorView& tensor, float value);                ///< float32
    /// Booleans [.., .., .., n]: bits from the first on, of the same rows.
    void unpack_bits(const ConstTensorView& bits, std::int64_t first, const TensorView& booleans);

    /// Waits for all of it. Throws RunFailure with what went wrong.
    void wait();
    [[nodiscard]] bool is_idle() const; ///< whether there is nothing to wait for, or something failed

    /// A point in the order of work. Null: it is past.
    using Mark = std::shared_ptr<void>;
    [[nodiscard]] Mark mark() const; ///< the end of what was asked for so far
    [[nodiscard]] bool is_past(const Mark& mark) const;

    /// Copies beside the work that is asked for from now on, behind a mark; on the host in page-locked memory, which is
    /// to stay until the copy is over. The mark returned is the copy's end. Where they fail, wait() throws.
    [[nodiscard]] Mark copy_out(void* host, const void* there, std::int64_t bytes, const Mark& after);
    [[nodiscard]] Mark copy_in(void* there, const void* host, std::int64_t bytes, const Mark& after);

private:
    struct State;
    void run(int work, const ConstTensorView& from, const TensorView& to, std::int64_t first = 0, float value = 0.0F);
    Mark copy_beside(void* target, const void* source, std::int64_t bytes, bool is_in, const Mark& after);

    std::unique_ptr<State> state_;
};

/// The number of the GPU that calls with these options take, or -1 on the host. Throws as such calls do.
[[nodiscard]] int device_of_calls(const Options& options);

} // namespace flashomp
