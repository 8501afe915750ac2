// What a NaN or an infinity in an input may reach.
//
// A hidden pair (i, j) takes no part in any result, whatever row i and key j hold. Tiles multiply by the 0 that a
// hidden pair has for its probability, and 0 times NaN is NaN. So a tile can put a NaN into rows that do not see its
// source, and which rows those are depends on the tile's size. Such a NaN never disappears again: sums and factors keep
// it. So all machines look for results that are not finite. Where there are any, the host machines compute the rows
// concerned anew, one at a time, from their visible pairs alone (below); the others compute the whole call anew on the
// plain machine whose sums leave out hidden pairs (plain/visible_machine.hpp). Finite inputs pay for looking at each
// result once, while it is in a cache or a register.
#pragma once

#include "launch/launch.hpp"

namespace flashomp::offload {

/// Computes anew those rows of o and LSE that are not finite.
void repair_forward(const Params& params, int threads);

/// The same of dQ (with D and the LSE residual), dK, dV, dbias and dsink. dK, dV, dbias and dsink are sums of rows of
/// queries: a row of queries that is itself not finite, because it sees a NaN or has one, reaches the keys it sees.
void repair_backward(const Params& params, int threads);

} // namespace flashomp::offload
