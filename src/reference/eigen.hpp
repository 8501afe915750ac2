// Eigen as the reference needs it: without threads of its own. The reference runs its heads in parallel; Eigen's
// threads inside a head would only get in the way, and its sums would have other bits for other numbers of threads.
#pragma once

#ifndef EIGEN_DONT_PARALLELIZE
#define EIGEN_DONT_PARALLELIZE
#endif
#include <Eigen/Core>
