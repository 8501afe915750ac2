#include "ranks.hpp"

#include "commands.hpp"
#include "everywhere.hpp"
#include "messages.hpp"

#include <chrono>
#include <optional>
#include <sched.h>
#include <thread>

namespace flashomp::cli {

namespace {

using mpi::expect_success;

/// Waits without keeping a core busy, which whoever is waited for may need. Returns false where `patience` ends first.
bool wait_asleep(MPI_Request& request, std::optional<std::chrono::seconds> patience = {})
{
    constexpr auto nap = std::chrono::milliseconds(1);
    const auto start = std::chrono::steady_clock::now();
    const auto is_done = [&request] {
        int done = 0;
        expect_success(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
        return done != 0;
    };
    while (!is_done()) {
        if (patience && std::chrono::steady_clock::now() - start > *patience) {
            return false;
        }
        std::this_thread::sleep_for(nap);
    }
    return true;
}

} // namespace

Ranks::Ranks()
{
    expect_success(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
    expect_success(MPI_Comm_dup(MPI_COMM_WORLD, &end_), "MPI_Comm_dup");
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
}

Ranks::~Ranks()
{
    MPI_Comm_free(&comm_);
    MPI_Comm_free(&end_);
}

void Ranks::together(const std::function<void()>& step) const
{
    mpi::expect_everywhere(mpi::Messages(comm_), step);
}

void Ranks::once(const std::function<void()>& step) const
{
    together([&] {
        const auto rest = [this] {
            MPI_Request request = MPI_REQUEST_NULL;
            expect_success(MPI_Ibarrier(comm_, &request), "MPI_Ibarrier");
            wait_asleep(request);
        };
        if (!is_first()) {
            rest();
            return;
        }
        try {
            step();
        } catch (...) {
            rest();
            throw;
        }
        rest();
    });
}

std::vector<std::int64_t> Ranks::numbers(std::int64_t mine) const
{
    return mpi::Messages(comm_).all_numbers({mine});
}

std::vector<std::string> Ranks::texts(const std::string& mine) const
{
    return mpi::Messages(comm_).all_texts(mine);
}

std::int64_t Ranks::sum(std::int64_t value) const
{
    expect_success(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT64_T, MPI_SUM, comm_), "MPI_Allreduce");
    return value;
}

double Ranks::sum(double value) const
{
    expect_success(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_SUM, comm_), "MPI_Allreduce");
    return value;
}

double Ranks::most(double value) const
{
    expect_success(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_MAX, comm_), "MPI_Allreduce");
    return value;
}

bool Ranks::told(bool value) const
{
    int told = value ? 1 : 0;
    MPI_Request request = MPI_REQUEST_NULL;
    expect_success(MPI_Ibcast(&told, 1, MPI_INT, 0, comm_, &request), "MPI_Ibcast");
    wait_asleep(request);
    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): it looks for MPI_Wait() here
    return told != 0;
}

Ranks::Host Ranks::host() const
{
    MPI_Comm comm = MPI_COMM_NULL;
    expect_success(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &comm),
                   "MPI_Comm_split_type");
    Host host;
    MPI_Comm_size(comm, &host.ranks);
    cpu_set_t cores; // mpirun may have bound each rank to some
    CPU_ZERO(&cores);
    sched_getaffinity(0, sizeof cores, &cores);
    MPI_Allreduce(MPI_IN_PLACE, &cores, int{sizeof cores}, MPI_BYTE, MPI_BOR, comm);
    host.cores = CPU_COUNT(&cores);
    MPI_Comm_free(&comm);
    return host;
}

void Ranks::barrier() const
{
    expect_success(MPI_Barrier(comm_), "MPI_Barrier");
}

int Ranks::agreed_status(int status, const std::function<void()>& say) const
{
    constexpr auto patience = std::chrono::seconds(5);
    int most = status;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(MPI_IN_PLACE, &most, 1, MPI_INT, MPI_MAX, end_, &request);
    const bool has_failed = status != status_ok && status != status_falls_short;
    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): it looks for MPI_Wait() here
    if (!(has_failed ? wait_asleep(request, patience) : wait_asleep(request))) {
        say();
        MPI_Abort(end_, status);
    }
    return most;
}

} // namespace flashomp::cli
