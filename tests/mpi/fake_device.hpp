// A device that is none: memory of its own, which the host cannot read outside the seam (src/mpi/site.hpp), and work
// that is put off for as long as nobody waits for it.
#pragma once

#include "flashomp/mpi.hpp"

namespace flashomp::testing {

/// Whether FLASHOMP_TEST_DEVICE asks for it; FLASHOMP_MPI_GPU_AWARE says whether messages are staged.
bool has_fake_device();

/// Makes it the device of flashomp::mpi. Before the first call.
void install_fake_device();

/// The functions of flashomp::mpi. With the fake device their tensors are copied there, with gaps between rows, and back;
/// a tensor that is said to be in device memory stays on the host.
mpi::Report sharded_forward(const ForwardArgs& args, const Options& options, const mpi::Sharding& sharding = {});
mpi::Report sharded_backward(const BackwardArgs& args, const Options& options, const mpi::Sharding& sharding = {});

} // namespace flashomp::testing
