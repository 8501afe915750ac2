// Where a call's tensors and buffers are, and what is done with them there: the seam between the engine, which knows
// shapes, parts and messages, and the memory, which is the host's or a device's.
#pragma once

#include "flashomp/attention.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace flashomp::mpi {

/// Work is done in the order in which it is asked for, and may be under way when a function returns: whoever lets
/// others at the memory, MPI first of all, waits before. Nothing else reads or writes elements.
class Site {
public:
    Site() = default;
    virtual ~Site() = default;
    Site(const Site&) = delete;
    Site& operator=(const Site&) = delete;

    [[nodiscard]] virtual Memory memory() const = 0; ///< of the tensors
    /// Whether MPI can be given addresses of this memory. Else messages are staged: they go through host memory.
    [[nodiscard]] virtual bool is_reached_by_mpi() const = 0;
    /// The options of the rank's calls here. Throws Error where a stream cannot be waited for.
    [[nodiscard]] virtual Options options_of_calls(const Options& given) const = 0;

    /// Both throw RunFailure or std::bad_alloc.
    [[nodiscard]] virtual std::shared_ptr<std::byte> allocate(std::int64_t bytes) = 0;
    /// On the host, for copies.
    [[nodiscard]] virtual std::shared_ptr<std::byte> allocate_stage(std::int64_t bytes) = 0;

    // Calls, as flashomp's functions of these names; prepare() judges and computes nothing.

    virtual flashomp::Report forward(const ForwardArgs& args, const Options& options);
    virtual flashomp::Report backward(const BackwardArgs& args, const Options& options);
    virtual void merge(const Partial& a, const Partial& b, const TensorView& o, const TensorView& lse,
                       const Options& options);
    virtual void prepare(const ForwardArgs& args, const Options& options);
    virtual void prepare(const BackwardArgs& args, const Options& options);

    // Elements, as the functions of tensors.hpp. A failure does not stop messages: expect_no_failure() tells it.

    virtual void copy(const ConstTensorView& from, const TensorView& to) noexcept = 0;
    virtual void add(const ConstTensorView& terms, const TensorView& sums) noexcept = 0;
    virtual void convert(const ConstTensorView& from, const TensorView& to) noexcept = 0;
    virtual void unpack_bits(const ConstTensorView& bits, std::int64_t first, const TensorView& booleans) noexcept = 0;
    virtual void fill(const TensorView& tensor, float value) noexcept = 0;

    virtual void wait() noexcept = 0;                  ///< until all of it is done, or has failed
    [[nodiscard]] virtual bool is_idle() noexcept = 0; ///< whether wait() would return at once
    virtual void expect_no_failure() = 0;              ///< after wait(): throws RunFailure where something has failed

    /// A point in the order of work. Null: it is past.
    using Mark = std::shared_ptr<void>;
    [[nodiscard]] virtual Mark mark() noexcept = 0; ///< the end of what was asked for so far
    [[nodiscard]] virtual bool is_past(const Mark& mark) noexcept = 0;
    /// Copies between this memory and a stage, behind a mark and beside the work that is asked for from now on. They
    /// return the copy's end.
    virtual Mark copy_out(std::byte* stage, const std::byte* here, std::int64_t bytes, const Mark& after) noexcept = 0;
    virtual Mark copy_in(std::byte* here, const std::byte* stage, std::int64_t bytes, const Mark& after) noexcept = 0;
};

/// Waits where it goes, before memory goes that was taken earlier.
struct WaitsAtLast {
    Site& site;
    ~WaitsAtLast() { site.wait(); }
};

/// The host, where everything is done when it returns.
[[nodiscard]] Site& host_site();

/// The device of calls with these options. Throws Error where they run on the host.
[[nodiscard]] std::unique_ptr<Site> device_site(const Options& options);

/// What makes the sites of calls whose tensors are in device memory: device_site(), or what a test puts in its place
/// before the first call.
[[nodiscard]] std::function<std::unique_ptr<Site>(const Options&)>& device_sites();

/// Row-major on the host: a tensor's elements. Waits for them.
[[nodiscard]] std::vector<std::byte> elements_of(Site& site, const ConstTensorView& view);

} // namespace flashomp::mpi
