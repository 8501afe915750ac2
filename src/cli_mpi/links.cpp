#include "links.hpp"

#include "messages.hpp"
#include "tensors.hpp"
#include "timing.hpp"

#include <algorithm>
#include <limits>
#include <vector>

namespace flashomp::cli {

cost::Links measured_links(const Ranks& ranks, std::int64_t bytes)
{
    if (ranks.size() == 1) {
        return {std::numeric_limits<double>::infinity(), 0};
    }
    constexpr std::int64_t least = 8;
    const std::int64_t most = std::max(bytes, 1024 * least);
    mpi::Messages messages(MPI_COMM_WORLD);
    mpi::Buffer from(mpi::host_site(), most), to(mpi::host_site(), most);
    from.clear();
    to.clear(); // no page is touched for the first time while messages are timed
    const int next = (ranks.rank() + 1) % ranks.size(), before = (ranks.rank() + ranks.size() - 1) % ranks.size();
    const auto seconds_of = [&](std::int64_t count, int exchanges) {
        std::vector<double> all;
        for (int repetition = 0; repetition < 9; ++repetition) {
            ranks.barrier();
            const double start = MPI_Wtime();
            for (int i = 0; i < exchanges; ++i) {
                mpi::Pending pending;
                messages.receive(to.first(count), before, mpi::Tag::keys, pending);
                messages.send(from.first(count), next, mpi::Tag::keys, pending);
                messages.wait(pending);
            }
            all.push_back(ranks.most(MPI_Wtime() - start) / exchanges);
        }
        return bench::median(std::move(all));
    };
    const double latency = seconds_of(least, 50);
    const double whole = seconds_of(most, 5);
    return {static_cast<double>(most) / std::max(whole - latency, 1e-9), latency};
}

} // namespace flashomp::cli
