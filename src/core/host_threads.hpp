// How many threads of the host a parallel region is given, and what a fork leaves of them.
#pragma once

#include <cstdint>
#include <limits>

namespace flashomp {

/// Threads to plan with where `asked` were asked for. 0 leaves the choice to OMP_NUM_THREADS, or to one thread inside a
/// caller's parallel region. No more than 64, or than twice the processors of this process where that is more.
[[nodiscard]] int planned_threads(int asked);

/// Threads for a region: planned_threads(), but no more than items of work, nor than the system lets this process start
/// now with the stacks that OMP_STACKSIZE asks for. OpenMP's run time ends a process that it cannot start a thread for.
/// It still does where another thread of the process takes what was left between this answer and the region.
///
/// Every region of the library asks here. That is what makes a forked child's first region work, too: GCC's run time
/// would wait there for threads that the parent alone has.
[[nodiscard]] int host_threads(int asked, std::int64_t items = std::numeric_limits<std::int64_t>::max());

} // namespace flashomp
