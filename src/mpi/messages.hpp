// What this library asks of MPI: messages of any size that do not block, waiting that is measured, and a few exchanges
// among all ranks.
#pragma once

#include "flashomp/mpi.hpp"

#include "buffer.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace flashomp::mpi {

/// What messages are for: those of one kind between two ranks arrive in the order in which they were sent.
enum class Tag : int { keys, gradients, home, heads, sums };

/// A message whose bytes are copied from the device to its stage before it leaves, or back after it has arrived.
struct Staged {
    BufferPart part;
    std::vector<int> peers; ///< to all of them, or from one
    Tag tag;
    bool is_incoming;
    Site::Mark mark;                   ///< what the next copy comes behind, or its end
    std::vector<MPI_Request> requests; ///< once the copy out is over, or from the start
    bool is_moving;                    ///< between ranks
    bool is_over = false;
};

/// Messages that are under way. Whoever holds them waits for them before the memory goes.
struct Pending {
    std::vector<MPI_Request> requests;
    std::vector<std::shared_ptr<Staged>> staged;
};

/// Throws RunFailure unless an MPI function succeeded.
void expect_success(int code, const char* function);

/// Whether all of them are over.
[[nodiscard]] bool is_done(std::span<MPI_Request> requests);

/// Calls f(part) for parts that MPI, which counts in an int, sends at one time.
template <class Byte, class F>
void each_message(std::span<Byte> bytes, F f)
{
    constexpr std::size_t most = std::size_t{1} << 30;
    for (std::size_t first = 0; first < bytes.size(); first += most) {
        f(bytes.subspan(first, std::min(most, bytes.size() - first)));
    }
}

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

/// Whether MPI can be given addresses of a device's memory: MPI says so, or FLASHOMP_MPI_GPU_AWARE does. Throws Error
/// where that is neither 0 nor 1.
[[nodiscard]] bool mpi_takes_device_memory();

/// The messages of one call.
class Messages {
public:
    /// Of a communicator of the caller's, or rather of its duplicate, so that messages of the caller's are not taken
    /// for ours. Throws Error where it is none.
    explicit Messages(MPI_Comm comm);

    [[nodiscard]] int rank() const { return rank_; }
    [[nodiscard]] int ranks() const { return ranks_; }
    [[nodiscard]] int rank_on_node() const { return rank_on_node_; } ///< among the communicator's ranks there
    [[nodiscard]] std::int64_t bytes_sent() const { return bytes_sent_; }
    [[nodiscard]] double seconds_waiting() const { return seconds_waiting_; }
    [[nodiscard]] double seconds_computing() const { return seconds_computing_; } ///< of waits, while the site had work

    /// Where the call's tensors and buffers are. The host until this is told otherwise; it must live as long.
    void serve(Site& site) { site_ = &site; }
    [[nodiscard]] Site& site() const { return *site_; }

    /// Of what the site will have written there when all is done that it was asked for so far.
    void send(const BufferPart& part, int to, Tag tag, Pending& pending) { send(part, std::vector{to}, tag, pending); }
    void send(const BufferPart& part, const std::vector<int>& to, Tag tag, Pending& pending);
    /// Of what was received there, unchanged.
    void pass_on(const BufferPart& part, int to, Tag tag, Pending& pending);
    void receive(const BufferPart& part, int from, Tag tag, Pending& pending);
    /// The same of host memory.
    void send(std::span<const std::byte> bytes, int to, Tag tag, Pending& pending)
    {
        post_send(bytes, to, tag, pending.requests);
    }
    /// The same of the elements of a tensor in host memory, in the order of its axes.
    void send(const ConstTensorView& view, int to, Tag tag, Pending& pending);
    void receive(const TensorView& view, int from, Tag tag, Pending& pending);

    /// Waits for all, and forgets them.
    void wait(Pending& pending);
    /// Lets MPI make progress, which moves large messages inside its functions alone in many implementations, and those
    /// messages that are between a device and the host.
    void progress();

    /// What every rank gives, in the order of ranks.
    [[nodiscard]] std::vector<std::int64_t> all_numbers(const std::vector<std::int64_t>& mine) const;
    /// The same of texts.
    [[nodiscard]] std::vector<std::string> all_texts(const std::string& mine) const;
    /// Sums over ranks, in their order, on every rank. `scratch` is as large as `values`.
    void sum(std::span<float> values, std::span<float> scratch);

private:
    void post_send(std::span<const std::byte> bytes, int to, Tag tag, std::vector<MPI_Request>& requests);
    void post_receive(std::span<std::byte> bytes, int from, Tag tag, std::vector<MPI_Request>& requests);
    void stage(const BufferPart& part, const std::vector<int>& peers, Tag tag, bool is_incoming, Pending& pending);
    void advance(Staged& staged, bool may_leave);
    /// Before MPI is given a device's memory, which it reads and writes in no order with the site.
    void wait_for_site(const BufferPart& part);
    template <class F>
    void wait_until(F is_there);

    MPI_Comm comm_ = MPI_COMM_NULL;
    int rank_ = 0, ranks_ = 1, rank_on_node_ = 0;
    Site* site_ = &host_site();
    std::vector<std::shared_ptr<Staged>> staged_; ///< all that are under way
    std::int64_t bytes_sent_ = 0;
    double seconds_waiting_ = 0.0, seconds_computing_ = 0.0;
};

} // namespace flashomp::mpi
