// Which scheme is fastest: a model that every rank evaluates alike.
#pragma once

#include "flashomp/mpi.hpp"

#include "layout.hpp"

#include <cstdint>
#include <string>

namespace flashomp::mpi {

/// What the model counts with. Speeds and latency are orders of magnitude of a cluster of CPUs, nowhere measured:
/// schemes differ by more than these are off where the choice matters. Ranks with GPUs are a thousand times faster:
/// name their scheme.
struct Speeds {
    double flops = 1e11;   ///< of a rank, a second: some cores
    double bytes = 1e10;   ///< a second between two ranks: a network of 100 Gbit/s, less its headers
    double message = 5e-6; ///< seconds of a message: MPI's latency between hosts, and calls into it
    /// What each part of a row beyond the first costs, as so many keys more: o and LSE are merged, dK and dV summed,
    /// and blocks are short. From bench/results/h100-host-ring.json; tests/mpi/cost_test.cpp compares choices with both
    /// sets.
    double keys_of_part = 64;
    double gather_bytes = 256e6; ///< memory that a gather of K and V may take on a rank
};

/// The problem, and who sees what.
struct CostShape {
    int ranks = 1;
    double batch = 1, heads_q = 1, heads_kv = 1, length_q = 1, length_k = 1, head_dim = 1, head_dim_v = 1;
    double element_bytes = 4;
    double pairs_of_busiest = 1;  ///< pairs of a query and a key that the busiest rank computes, of one head
    double pairs_of_all = 1;      ///< the same of all ranks
    double blocks_of_busiest = 0; ///< blocks of other ranks that the busiest rank receives
    bool is_backward = false;
};

/// Seconds and bytes by which schemes are compared.
struct Cost {
    double seconds = 0.0, seconds_computing = 0.0, seconds_sending = 0.0, bytes_of_memory = 0.0;
};

[[nodiscard]] Cost cost_of(const CostShape& shape, Scheme scheme, int heads_ranks, const Speeds& speeds = {});

struct Choice {
    Scheme scheme = Scheme::ring;
    int heads_ranks = 1;
    std::string why;
};

/// The cheapest scheme.
[[nodiscard]] Choice cheapest(const CostShape& shape, const Speeds& speeds = {});

} // namespace flashomp::mpi
