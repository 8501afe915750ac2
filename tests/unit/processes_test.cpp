// What the process that calls is like: how many threads it may have, whether it was forked, whether it is ending. A
// call is never a hang, a crash or the end of the process.
#include "refusal.hpp"
#include "support/sanitizers.hpp"

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <omp.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace flashomp::testing {
namespace {

constexpr Shape shape{1, 4, 2, 70, 90, 32, 32};

Options on_host(int threads, Backend backend = Backend::openmp)
{
    Options options;
    options.backend = backend;
    options.device.kind = Device::Kind::host;
    options.threads = threads;
    return options;
}

Results results_of(const Options& options)
{
    AttentionCase attention(shape, DType::float32, 80);
    static_cast<void>(attention.run(options));
    return attention.take_results();
}

bool are_same(const Results& a, const Results& b)
{
    return same_bits(a.o, b.o) && same_bits(a.lse, b.lse) && same_bits(a.dq, b.dq) && same_bits(a.dk, b.dk) &&
           same_bits(a.dv, b.dv);
}

int threads_in(const std::string& ran_on)
{
    return std::stoi(ran_on.substr(ran_on.find('(') + 1));
}

/// How a child that runs `check` ends: 0 where it is true, 1 where it is not, 2 after an exception, and the signal's
/// number + 128 where one ends it: SIGALRM where it hangs.
int status_of_child(const std::function<bool()>& check)
{
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        int status = 2;
        try {
            status = check() ? 0 : 1;
        } catch (const std::exception& error) {
            static_cast<void>(!write(STDERR_FILENO, error.what(), std::strlen(error.what())));
        }
        _exit(status);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(Threads, AreNoMoreThanTheProcessMayHave)
{
    const Results expected = results_of(on_host(1));
    const int most = std::max(64, 2 * omp_get_num_procs());
    for (const int asked : {1000, 40'000, 65'536, 1'000'000, std::numeric_limits<int>::max()}) {
        for (const Backend backend : {Backend::openmp, Backend::reference}) {
            AttentionCase attention({1, 80, 80, 400, 40, 8, 8}, DType::float32, 81); // work for thousands
            const auto [forward, backward] = attention.run(on_host(asked, backend));
            EXPECT_LE(threads_in(forward.ran_on), most);
            EXPECT_LE(threads_in(backward.ran_on), most);
        }
        expect_same_bits(expected, results_of(on_host(asked)));
    }
}

TEST(Threads, AreNoMoreThanTheWork)
{
    for (const Backend backend : {Backend::openmp, Backend::reference}) {
        AttentionCase attention({1, 1, 1, 8, 8, 8, 8}, DType::float32, 82);
        const auto [forward, backward] = attention.run(on_host(16, backend));
        EXPECT_EQ(forward.ran_on, "host (1 thread)");
        EXPECT_EQ(backward.ran_on, "host (1 thread)");
    }
    HostTensor o(DType::float32, {1, 2, 1, 4});
    HostTensor lse(DType::float32, {1, 1, 2});
    const Partial part{std::as_const(o).view(), std::as_const(lse).view()};
    EXPECT_EQ(merge(part, part, o.view(), lse.view(), on_host(16)).ran_on, "host (2 threads)");
}

TEST(Threads, AreNoMoreThanOmpNumThreadsMayBe)
{
    // As OMP_NUM_THREADS=100000 in the environment.
    const int before = omp_get_max_threads();
    omp_set_num_threads(100'000);
    const Results all = results_of(on_host(0));
    omp_set_num_threads(before);
    expect_same_bits(results_of(on_host(1)), all);
}

#if !FLASHOMP_ADDRESS_SANITIZER && !FLASHOMP_THREAD_SANITIZER
TEST(Threads, AreNoMoreThanTheSystemStarts)
{
    const Results expected = results_of(on_host(1));
    EXPECT_EQ(status_of_child([&] {
                  // Room for the stacks of some threads, of 8 MB each.
                  long pages = 0;
                  std::ifstream("/proc/self/statm") >> pages;
                  const rlim_t limit =
                      static_cast<rlim_t>(pages) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (rlim_t{200} << 20);
                  const rlimit room{limit, limit};
                  if (setrlimit(RLIMIT_AS, &room) != 0) {
                      return false;
                  }
                  AttentionCase attention({1, 80, 80, 400, 40, 8, 8}, DType::float32, 81);
                  const auto [forward, backward] = attention.run(on_host(60));
                  return threads_in(forward.ran_on) < 60 && threads_in(backward.ran_on) < 60 &&
                         are_same(expected, results_of(on_host(60)));
              }),
              0);
}
#endif

// GCC's run time waits in a child's first region for threads that the parent alone has. PyTorch's DataLoader forks.
TEST(Fork, AChildCallsAfterItsParent)
{
    for (const Backend backend : {Backend::openmp, Backend::reference}) {
        const Results expected = results_of(on_host(2, backend));
        for (const int threads : {1, 2, 3}) {
            EXPECT_EQ(status_of_child([&] { return are_same(expected, results_of(on_host(threads, backend))); }), 0)
                << threads;
        }
        EXPECT_TRUE(are_same(expected, results_of(on_host(2, backend)))); // the parent goes on
    }
}

TEST(Fork, AChildKeepsItsThreads)
{
    AttentionCase attention(shape, DType::float32, 80);
    EXPECT_EQ(attention.run(on_host(2)).first.ran_on, "host (2 threads)");
    EXPECT_EQ(status_of_child([&] { return attention.run(on_host(2)).first.ran_on == "host (2 threads)"; }), 0);
}

TEST(Fork, AChildOfAChildCalls)
{
    const Results expected = results_of(on_host(2));
    EXPECT_EQ(status_of_child([&] {
                  return are_same(expected, results_of(on_host(2))) &&
                         status_of_child([&] { return are_same(expected, results_of(on_host(2))); }) == 0;
              }),
              0);
}

TEST(Fork, AChildOfAThreadCalls)
{
    const Results expected = results_of(on_host(2));
    int status = -1;
    std::thread([&] {
        static_cast<void>(results_of(on_host(3)));
        status = status_of_child([&] { return are_same(expected, results_of(on_host(3))); });
    }).join();
    EXPECT_EQ(status, 0);
}

TEST(Fork, AChildOfAParallelRegionCalls)
{
    const Results expected = results_of(on_host(2));
    std::array<int, 2> status{-1, -1};
#pragma omp parallel num_threads(2)
    {
        const auto thread = static_cast<std::size_t>(omp_get_thread_num());
#pragma omp critical
        status.at(thread) = status_of_child([&] { return are_same(expected, results_of(on_host(0))); });
    }
    EXPECT_EQ(status[0], 0);
    EXPECT_EQ(status[1], 0);
}

TEST(Fork, WhileAnotherThreadIsInACall)
{
#if FLASHOMP_ADDRESS_SANITIZER
    GTEST_SKIP() << "a child may find the lock of AddressSanitizer's allocator taken";
#endif
    const Results expected = results_of(on_host(2));
    std::atomic<bool> ends = false;
    std::thread other([&] {
        while (!ends) {
            static_cast<void>(results_of(on_host(2)));
        }
    });
    for (int round = 0; round < 20; ++round) {
        EXPECT_EQ(status_of_child([&] { return are_same(expected, results_of(on_host(2))); }), 0);
    }
    ends = true;
    other.join();
}

/// What the next test leaves for when the process ends.
AttentionCase* at_exit = nullptr;

void call_at_exit()
{
    // What static objects have freed by now is soon somebody else's.
    static std::vector<std::vector<char>> others;
    for (std::size_t bytes = 16; bytes <= 4096; bytes += 16) {
        others.insert(others.end(), 8, std::vector<char>(bytes, '\x5a'));
    }
    static_cast<void>(at_exit->run(on_host(2)));
    at_exit->expect_close();
    std::_Exit(::testing::Test::HasFailure() ? 1 : 42);
}

// Only the first call of a process makes what its exit destroys: a test where it has a process for itself (CTest).
TEST(AtExit, ACallFromAHandler)
{
    EXPECT_EXIT(
        {
            AttentionCase attention(shape, DType::float32, 83);
            at_exit = &attention;
            std::atexit(call_at_exit); // before the first call
            static_cast<void>(attention.run(on_host(2)));
            std::exit(0); // NOLINT(concurrency-mt-unsafe)
        },
        ::testing::ExitedWithCode(42), "");
}

} // namespace
} // namespace flashomp::testing
