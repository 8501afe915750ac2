#include "host_threads.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdlib>
#include <latch>
#include <limits>
#include <omp.h>
#include <optional>
#include <pthread.h>
#include <semaphore>
#include <string_view>
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

/// A size of OMP_STACKSIZE's form: a number of KiB, or with a letter of bytes, KiB, MiB or GiB. Nothing for other text.
std::optional<std::size_t> stack_size(const char* text)
{
    const auto skip_spaces = [&text] {
        while (std::isspace(static_cast<unsigned char>(*text)) != 0) {
            ++text;
        }
    };
    char* end = nullptr;
    if (text == nullptr) {
        return {};
    }
    const unsigned long long number = std::strtoull(text, &end, 10);
    if (end == text) {
        return {};
    }
    text = end;
    skip_spaces();
    constexpr std::string_view units = "bkmg";
    std::size_t unit = 1;
    if (*text != '\0') {
        unit = units.find(static_cast<char>(std::tolower(static_cast<unsigned char>(*text++))));
        skip_spaces();
    }
    if (unit == std::string_view::npos || *text != '\0' ||
        number > std::numeric_limits<std::size_t>::max() >> (10U * unit)) {
        return {};
    }
    return static_cast<std::size_t>(number) << (10U * unit);
}

/// Bytes of the stack that OpenMP's run time gives its threads, where the environment names them.
std::optional<std::size_t> stack_of_the_environment()
{
    const std::optional<std::size_t> named = stack_size(std::getenv("OMP_STACKSIZE")); // NOLINT(concurrency-mt-unsafe)
    return named ? named : stack_size(std::getenv("GOMP_STACKSIZE"));                  // NOLINT(concurrency-mt-unsafe)
}

/// Threads that do nothing but be there, with stacks as large as those of OpenMP's run time.
class IdleThreads {
public:
    /// As many of `wanted` as the system starts.
    explicit IdleThreads(int wanted)
    {
        pthread_attr_t attributes{};
        if (pthread_attr_init(&attributes) != 0) {
            return;
        }
        const std::optional<std::size_t> stack = stack_of_the_environment();
        // What no thread can have leaves the default, as in OpenMP's run time. What is too little for us is not tried.
        const bool is_taken = stack && pthread_attr_setstacksize(&attributes, *stack) == 0;
        const bool is_possible = !is_taken || *stack >= least_stack;
        pthread_attr_getstacksize(&attributes, &stack_bytes_);
        threads_.reserve(static_cast<std::size_t>(wanted));
        pthread_t thread{};
        while (is_possible && count() < wanted && pthread_create(&thread, &attributes, wait, this) == 0) {
            threads_.push_back(thread);
            allocated_.acquire(); // else the threads to come are counted before this one has its memory
        }
        pthread_attr_destroy(&attributes);
    }
    ~IdleThreads()
    {
        all_started_.count_down();
        for (const pthread_t thread : threads_) {
            pthread_join(thread, nullptr);
        }
    }
    IdleThreads(const IdleThreads&) = delete;
    IdleThreads& operator=(const IdleThreads&) = delete;

    [[nodiscard]] int count() const { return static_cast<int>(threads_.size()); }

    /// Stacks of ended threads that glibc keeps. LLVM's run time cannot take them: its own have other sizes.
    [[nodiscard]] int kept_stacks() const
    {
        constexpr std::size_t kept_bytes = std::size_t{40} << 20U;
        return static_cast<int>(kept_bytes / std::max(stack_bytes_, least_stack));
    }

private:
    static constexpr std::size_t least_stack = std::size_t{256} << 10U; // several times what a block of work takes

    static void* wait(void* self)
    {
        // What the allocator keeps for a thread is address space, too, and run times allocate in new threads.
        void* volatile part = std::malloc(1); // volatile: else g++ leaves it out
        std::free(part);
        auto& threads = *static_cast<IdleThreads*>(self);
        threads.allocated_.release();
        threads.all_started_.wait();
        return nullptr;
    }

    std::size_t stack_bytes_ = 0;
    std::binary_semaphore allocated_{0};
    std::latch all_started_{1};
    std::vector<pthread_t> threads_;
};

/// Of `wanted` threads, this one among them, so many as the system starts. Limits are many (ulimit -u and -v, those of
/// containers, of the whole system), and none tells how much of it is left: so they are started. A few more than wanted
/// have to start, because an ended thread counts for a moment longer.
int startable(int wanted)
{
    if (wanted <= most_started) {
        return wanted;
    }
    const int spare = (wanted + 3) / 4;
    const int asked = wanted + spare - most_started;
    int usable = 0;
    {
        const IdleThreads idle(asked);
        usable = idle.count() - spare - (idle.count() < asked ? idle.kept_stacks() : 0);
    }
    most_started += std::max(0, usable);
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
