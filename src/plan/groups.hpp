#pragma once

#include "problem.hpp"

namespace flashomp {

/// The same problem, with the query heads that share a key head as the rows of one, where each has a single query: a
/// pass then reads the keys once for all of them. The outputs' views are of the same memory. Anything that tells the
/// heads of a group apart, or a mask that one query does not see past, leaves the problem as it is.
Problem with_groups_as_rows(Problem problem);

} // namespace flashomp
