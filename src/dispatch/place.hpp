// Where a call runs, and the words that say so.
#pragma once

#include "plan.hpp"
#include "space.hpp"

#include "flashomp/options.hpp"

#include <string>
#include <string_view>

namespace flashomp {

/// Where the call runs, and why.
struct Place {
    Hardware hardware;
    std::string name; ///< as in Report::ran_on
    std::string note; ///< as in Report::note
};

/// From what the caller asked for and what is there. Throws Error when a GPU was named, or demanded by
/// OMP_TARGET_OFFLOAD=MANDATORY, and there is none.
[[nodiscard]] Place choose_place(const Options& options);

/// The place that a GPU of the table would be, with everything this build has for it; nobody looks for the GPU. Throws
/// Error where the build has no code for it.
[[nodiscard]] Place place_on(const KnownDevice& device, const Options& options);

/// Makes the GPU with these facts what the hardware is, with the matrix units that the build has kernels for. Throws
/// Error where FLASHOMP_DEVICE_ISA names something else.
void set_gpu(Hardware& hardware, int device, const DeviceFacts& facts, bool is_there = true);

/// Throws Error where the place cannot read the tensor, named as in messages; a call on a stream reads no host memory
/// but what is `is_read_on_host`: cu_seqlens, which plan() reads.
void check_memory(const ConstTensorView& view, const char* name, const Place& place, bool is_asynchronous,
                  bool is_read_on_host = false);

/// The memory of the place; with Options::stream, in the order of that stream.
[[nodiscard]] Space space_of(const Hardware& hardware, const Options& options);

/// Before a call on the openmp backend: waits for the stream of the space, so that the call follows what was sent
/// there. Throws Error where the stream is being captured, RunFailure where the wait fails. On the cuda backend the
/// stream itself keeps the order.
void wait_before(const Space& space);

/// Throws Error in a process that was forked from one that has used the backend's GPUs.
void expect_own_devices(Backend backend);

/// What tuning tables for the place are kept by.
[[nodiscard]] tuning::Key tuning_key(const Hardware& hardware);

/// Throws RunFailure where kernels that were sent to a device ran on the host: they have written nothing.
void expect_where_sent(const Place& place, bool on_device);

/// The threads of the plan's hungriest host pass, at most so many, and no more than the system starts.
[[nodiscard]] int startable_threads(const Plan& plan, int most_threads);

/// "host (2 threads)".
[[nodiscard]] std::string host_name(int threads);

/// "running on the host: REASON", and that the environment demands a GPU where it does.
[[nodiscard]] std::string on_host_because(std::string_view reason);

} // namespace flashomp
