#pragma once

#include "problem.hpp"

namespace flashomp {

/// The same problem, with the query heads that share a key head as the rows of one, where each has a single query: a
/// pass then reads the keys once for all of them. A window becomes fewer keys: the last ones, which are all that the
/// query sees. The outputs' views are of the same memory. Scores that tell the heads of a group apart, a mask beside a
/// window, and a top-left causal mask leave the problem as it is.
Problem with_groups_as_rows(Problem problem);

} // namespace flashomp
