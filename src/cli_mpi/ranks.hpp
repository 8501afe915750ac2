// The processes of mpirun as one program: steps that all or one of them take, and failures that all hear of.
#pragma once

#include "flashomp/mpi.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace flashomp::cli {

/// Of MPI_COMM_WORLD, with messages of its own. Collective from the constructor on.
class Ranks {
public:
    Ranks();
    ~Ranks();
    Ranks(const Ranks&) = delete;
    Ranks& operator=(const Ranks&) = delete;

    [[nodiscard]] int rank() const { return rank_; }
    [[nodiscard]] int size() const { return size_; }
    [[nodiscard]] bool is_first() const { return rank_ == 0; }

    /// All take the step, and throw what one of them has thrown.
    void together(const std::function<void()>& step) const;
    /// Rank 0 takes it, while the others sleep; all throw what it has thrown.
    void once(const std::function<void()>& step) const;

    /// What every rank gives, in the order of ranks; of texts the first 600 bytes.
    [[nodiscard]] std::vector<std::int64_t> numbers(std::int64_t mine) const;
    [[nodiscard]] std::vector<std::string> texts(const std::string& mine) const;
    [[nodiscard]] std::int64_t sum(std::int64_t value) const;
    [[nodiscard]] double sum(double value) const;
    [[nodiscard]] double most(double value) const;
    /// Rank 0's.
    [[nodiscard]] bool told(bool value) const;
    /// This rank's host: how many ranks are there, and how many cores they may use together.
    struct Host {
        int ranks = 1, cores = 1;
    };
    [[nodiscard]] Host host() const;
    void barrier() const;

    /// The largest status of all ranks. One that has failed alone waits for the others for some seconds, as they may be
    /// waiting for it, and then ends all of them; `say` is called before.
    [[nodiscard]] int agreed_status(int status, const std::function<void()>& say) const;

private:
    MPI_Comm comm_ = MPI_COMM_NULL;
    MPI_Comm end_ = MPI_COMM_NULL; ///< of agreed_status(), which one rank may reach while others are in a step
    int rank_ = 0, size_ = 1;
};

} // namespace flashomp::cli
