// What this library asks of MPI: messages of any size that do not block, waiting that is measured, and a few exchanges
// among all ranks.
#pragma once

#include "flashomp/mpi.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace flashomp::mpi {

/// What messages are for: those of one kind between two ranks arrive in the order in which they were sent.
enum class Tag : int { keys, gradients, home, heads, sums };

/// Requests that are under way. Whoever holds them waits for them before the memory goes.
using Pending = std::vector<MPI_Request>;

/// Throws RunFailure unless an MPI function succeeded.
void expect_success(int code, const char* function);

/// Which elements of a tensor of up to four axes a message has.
class ElementsType {
public:
    explicit ElementsType(const ConstTensorView& view);
    ~ElementsType();
    ElementsType(const ElementsType&) = delete;
    ElementsType& operator=(const ElementsType&) = delete;

    [[nodiscard]] MPI_Datatype get() const { return type_; }

private:
    MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

/// The messages of one call.
class Messages {
public:
    /// Of a communicator of the caller's, or rather of its duplicate, so that messages of the caller's are not taken
    /// for ours. Throws Error where it is none.
    explicit Messages(MPI_Comm comm);

    [[nodiscard]] int rank() const { return rank_; }
    [[nodiscard]] int ranks() const { return ranks_; }
    [[nodiscard]] std::int64_t bytes_sent() const { return bytes_sent_; }
    [[nodiscard]] double seconds_waiting() const { return seconds_waiting_; }

    void send(std::span<const std::byte> bytes, int to, Tag tag, Pending& pending);
    void receive(std::span<std::byte> bytes, int from, Tag tag, Pending& pending);
    /// The same of the elements of a tensor, in the order of its axes.
    void send(const ConstTensorView& view, int to, Tag tag, Pending& pending);
    void receive(const TensorView& view, int from, Tag tag, Pending& pending);

    /// Waits for all, and forgets them.
    void wait(Pending& pending);
    /// Lets MPI make progress: many implementations move large messages only inside their functions.
    static void progress(Pending& pending);

    /// What every rank gives, in the order of ranks.
    [[nodiscard]] std::vector<std::int64_t> all_numbers(const std::vector<std::int64_t>& mine) const;
    /// The same of texts.
    [[nodiscard]] std::vector<std::string> all_texts(const std::string& mine) const;
    /// Sums over ranks, in their order, on every rank. `scratch` is as large as `values`.
    void sum(std::span<float> values, std::span<float> scratch);

private:
    MPI_Comm comm_ = MPI_COMM_NULL;
    int rank_ = 0, ranks_ = 1;
    std::int64_t bytes_sent_ = 0;
    double seconds_waiting_ = 0.0;
};

} // namespace flashomp::mpi
