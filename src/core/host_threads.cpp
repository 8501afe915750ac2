#include "host_threads.hpp"

#include <algorithm>
#include <latch>
#include <omp.h>
#include <pthread.h>
#include <system_error>
#include <thread>
#include <vector>

namespace flashomp {

namespace {

/// So many threads this one has had in a region, or has started to see whether it can. A thread has a team of its own.
thread_local int most_started = 1;

/// A fork copies the calling thread alone, but with all that OpenMP's run time knows about its team: GCC's would wait
/// for ever, in the child's first region, for threads that are not there. So the team ends before the fork; both
/// processes start one anew when they need it. LLVM's run time sees to forks itself.
void end_team()
{
#if defined(__GNUC__) && !defined(__clang__)
    static_cast<void>(omp_pause_resource_all(omp_pause_soft)); // refused in a parallel region, where we start no team
#endif
}

void forget_team()
{
    most_started = 1;
}

/// Once a process, before its first team.
bool watch_forks()
{
    static const bool watches = pthread_atfork(end_team, forget_team, forget_team) == 0;
    return watches;
}

/// Of `wanted` threads, this one among them, so many as the system starts. Limits are many (ulimit -u and -v, those of
/// containers, of the whole system), and none tells how much of it is left: so they are started. A few more than wanted
/// have to start, because an ended thread counts for a moment longer.
int startable(int wanted)
{
    if (wanted <= most_started) {
        return wanted;
    }
    const int spare = (wanted + 3) / 4;
    std::vector<std::thread> others;
    std::latch all_started(1);
    try {
        const int more = wanted + spare - most_started;
        others.reserve(static_cast<std::size_t>(more));
        for (int thread = most_started; thread < wanted + spare; ++thread) {
            others.emplace_back([&all_started] { all_started.wait(); });
        }
    } catch (const std::system_error&) { // as many as there are by now
    }
    all_started.count_down();
    for (std::thread& thread : others) {
        thread.join();
    }
    most_started += std::max(0, static_cast<int>(others.size()) - spare);
    return most_started;
}

} // namespace

int planned_threads(int asked)
{
    constexpr int most = 64; // for who asks for more threads than there are processors
    const int chosen = asked > 0 ? asked : (omp_in_parallel() != 0 ? 1 : omp_get_max_threads());
    return std::min(chosen, std::max(most, 2 * omp_get_num_procs()));
}

int host_threads(int asked, std::int64_t items)
{
    const std::int64_t wanted = std::min<std::int64_t>(planned_threads(asked), items);
    return wanted > 1 && watch_forks() ? startable(static_cast<int>(wanted)) : 1;
}

} // namespace flashomp
