// How blocks of K and V come to the ranks that need them, and how their gradients come home.
#pragma once

#include "buffer.hpp"
#include "messages.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace flashomp::mpi {

/// Who needs which block, and how far each travels. In step t rank r has block r - direction·t of the ring, or nothing.
class Route {
public:
    /// `needs(r, s)`: whether queries of rank r see keys of rank s. Blocks go in the direction that moves fewer.
    Route(int ranks, const std::function<bool(int, int)>& needs);

    [[nodiscard]] int ranks() const { return ranks_; }
    [[nodiscard]] int block_of(int rank, int step) const { return at(rank - direction_ * step); }
    /// The rank that computes with block `block` in a step.
    [[nodiscard]] int rank_of(int block, int step) const { return at(block + direction_ * step); }
    [[nodiscard]] bool needs(int rank, int block) const
    {
        return needs_[index(rank) * index(ranks_) + index(block)] != 0;
    }
    /// The last step in which somebody needs the block; 0: nobody but its own rank, which always counts as one.
    [[nodiscard]] int last_step(int block) const { return last_step_[index(block)]; }

private:
    [[nodiscard]] int at(int rank) const { return ((rank % ranks_) + ranks_) % ranks_; }
    static std::size_t index(int i) { return static_cast<std::size_t>(i); }
    [[nodiscard]] std::vector<int> last_steps() const;

    int ranks_, direction_ = 1;
    std::vector<char> needs_; ///< [ranks, ranks]
    std::vector<int> last_step_;
};

/// Where this rank is in the ring, and how large blocks are.
struct Place {
    const Route& route;
    int rank;                        ///< in the ring
    std::vector<int> members;        ///< ranks of the communicator, in the ring's order
    std::vector<std::int64_t> bytes; ///< of each block
    [[nodiscard]] int member(int of) const { return members[static_cast<std::size_t>(of)]; }
    [[nodiscard]] std::int64_t bytes_of(int block) const { return bytes[static_cast<std::size_t>(block)]; }
    [[nodiscard]] std::int64_t most_bytes() const;
};

/// Brings the blocks of K and V. All memory is taken by the constructor.
class Keys {
public:
    virtual ~Keys() = default;
    /// The rank's own block, to be filled before the first step.
    [[nodiscard]] virtual std::byte* own() = 0;
    /// Starts what can go on while step `step` is computed.
    virtual void begin(int step) = 0;
    /// The block of a step, where this rank has one then.
    [[nodiscard]] virtual std::byte* block(int step) = 0;
    /// Ends what the next step waits for.
    virtual void end(int step) = 0;
    /// Between calls on parts of a step.
    virtual void progress() = 0;
    [[nodiscard]] virtual std::int64_t bytes() const = 0; ///< of all memory
};

/// From rank to rank, or from each rank to all that need its block.
[[nodiscard]] std::unique_ptr<Keys> keys_of_ring(Messages& messages, const Place& place);
[[nodiscard]] std::unique_ptr<Keys> keys_gathered(Messages& messages, const Place& place);

/// Brings the sums of dK and dV home, where they are in the order of steps. Blocks are float32; `place` has their
/// bytes.
class Gradients {
public:
    virtual ~Gradients() = default;
    virtual void begin(int step) = 0;
    /// This rank's part of the block of the step, at zero: to be filled before end().
    [[nodiscard]] virtual std::byte* part(int step) = 0;
    virtual void end(int step) = 0;
    /// After the last step: the sums of the rank's own block.
    [[nodiscard]] virtual std::byte* sums() = 0;
    [[nodiscard]] virtual std::int64_t bytes() const = 0;
};

[[nodiscard]] std::unique_ptr<Gradients> gradients_of_ring(Messages& messages, const Place& place);
[[nodiscard]] std::unique_ptr<Gradients> gradients_sent_home(Messages& messages, const Place& place);

} // namespace flashomp::mpi
