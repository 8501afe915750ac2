#include "messages.hpp"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <functional>
#include <thread>

namespace flashomp::mpi {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t most_bytes = std::size_t{1} << 30; ///< of one message: MPI counts in an int

/// Calls f(part) for parts that MPI can count.
template <class Byte, class F>
void each_part(std::span<Byte> bytes, F f)
{
    for (std::size_t first = 0; first < bytes.size(); first += most_bytes) {
        f(bytes.subspan(first, std::min(most_bytes, bytes.size() - first)));
    }
}

/// What is kept with a communicator of the caller's.
struct Kept {
    MPI_Comm duplicate = MPI_COMM_NULL;
    int rank_on_node = 0;
};

std::span<std::byte> bytes_of(const BufferPart& part)
{
    return {part.buffer->data() + part.first, static_cast<std::size_t>(part.bytes)};
}

std::span<std::byte> staged_bytes(const BufferPart& part)
{
    return {part.buffer->stage() + part.first, static_cast<std::size_t>(part.bytes)};
}

int free_kept(MPI_Comm /*comm*/, int /*key*/, void* attribute, void* /*extra*/)
{
    auto* const kept = static_cast<Kept*>(attribute);
    const int code = MPI_Comm_free(&kept->duplicate);
    delete kept; // NOLINT(cppcoreguidelines-owning-memory): MPI keeps it as a plain pointer
    return code;
}

/// The key under which communicators keep it.
int kept_key()
{
    static const int key = [] {
        int made = MPI_KEYVAL_INVALID;
        expect_success(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, free_kept, &made, nullptr),
                       "MPI_Comm_create_keyval");
        return made;
    }();
    return key;
}

int rank_on_node(MPI_Comm comm)
{
    MPI_Comm node = MPI_COMM_NULL;
    expect_success(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
    int rank = 0;
    const int code = MPI_Comm_rank(node, &rank);
    MPI_Comm_free(&node);
    expect_success(code, "MPI_Comm_rank");
    return rank;
}

const Kept& kept_with(MPI_Comm comm)
{
    void* found = nullptr;
    int is_there = 0;
    expect_success(MPI_Comm_get_attr(comm, kept_key(), static_cast<void*>(&found), &is_there), "MPI_Comm_get_attr");
    if (is_there != 0) {
        return *static_cast<Kept*>(found);
    }
    Kept made;
    expect_success(MPI_Comm_dup(comm, &made.duplicate), "MPI_Comm_dup");
    expect_success(MPI_Comm_set_errhandler(made.duplicate, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    made.rank_on_node = rank_on_node(made.duplicate);
    auto* const kept = new Kept(made); // NOLINT(cppcoreguidelines-owning-memory): free_kept() deletes it
    expect_success(MPI_Comm_set_attr(comm, kept_key(), kept), "MPI_Comm_set_attr");
    return *kept;
}

bool is_done(std::span<MPI_Request> pending)
{
    int all = 0;
    expect_success(MPI_Testall(static_cast<int>(pending.size()), pending.data(), &all, MPI_STATUSES_IGNORE),
                   "MPI_Testall");
    return all != 0;
}

/// Waits, and lets other ranks on the same core run meanwhile: MPI_Waitall() of MPICH spins.
void wait_for(std::span<MPI_Request> pending)
{
    while (!is_done(pending)) {
        std::this_thread::yield();
    }
}

} // namespace

void expect_success(int code, const char* function)
{
    if (code != MPI_SUCCESS) {
        std::string text(MPI_MAX_ERROR_STRING, '\0');
        int length = 0;
        MPI_Error_string(code, text.data(), &length);
        text.resize(static_cast<std::size_t>(length));
        throw RunFailure(fmt::format("{} failed: {}.", function, text));
    }
}

ElementsType::ElementsType(const ConstTensorView& view)
{
    const auto bytes = size_of(view.dtype);
    expect_success(MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &type_), "MPI_Type_contiguous");
    for (int axis = view.rank - 1; axis >= 0; --axis) {
        const auto a = static_cast<std::size_t>(axis);
        MPI_Datatype inner = type_;
        const int code = MPI_Type_create_hvector(static_cast<int>(view.shape.at(a)), 1,
                                                 static_cast<MPI_Aint>(view.strides.at(a) * bytes), inner, &type_);
        MPI_Type_free(&inner);
        expect_success(code, "MPI_Type_create_hvector");
    }
    expect_success(MPI_Type_commit(&type_), "MPI_Type_commit");
}

ElementsType::~ElementsType()
{
    MPI_Type_free(&type_);
}

Messages::Messages(MPI_Comm comm)
{
    int is_initialized = 0, is_finalized = 0;
    MPI_Initialized(&is_initialized);
    MPI_Finalized(&is_finalized);
    if (is_initialized == 0 || is_finalized != 0) {
        throw Error("MPI is not running; allowed are calls between MPI_Init() and MPI_Finalize().");
    }
    if (comm == MPI_COMM_NULL) {
        throw Error("comm was MPI_COMM_NULL; it must be a communicator of the calling rank.");
    }
    int is_between = 0;
    expect_success(MPI_Comm_test_inter(comm, &is_between), "MPI_Comm_test_inter");
    if (is_between != 0) {
        throw Error("comm was an intercommunicator; it must be a communicator of one group of ranks.");
    }
    expect_success(MPI_Comm_size(comm, &ranks_), "MPI_Comm_size");
    expect_success(MPI_Comm_rank(comm, &rank_), "MPI_Comm_rank");
    comm_ = comm;
    if (ranks_ > 1) {
        const Kept& kept = kept_with(comm);
        comm_ = kept.duplicate;
        rank_on_node_ = kept.rank_on_node;
    }
}

void Messages::post_send(std::span<const std::byte> bytes, int to, Tag tag, std::vector<MPI_Request>& requests)
{
    each_part(bytes, [&](std::span<const std::byte> part) {
        requests.push_back(MPI_REQUEST_NULL);
        expect_success(MPI_Isend(part.data(), static_cast<int>(part.size()), MPI_BYTE, to, static_cast<int>(tag), comm_,
                                 &requests.back()),
                       "MPI_Isend");
    });
    bytes_sent_ += to != rank_ ? static_cast<std::int64_t>(bytes.size()) : 0;
}

void Messages::post_receive(std::span<std::byte> bytes, int from, Tag tag, std::vector<MPI_Request>& requests)
{
    each_part(bytes, [&](std::span<std::byte> part) {
        requests.push_back(MPI_REQUEST_NULL);
        expect_success(MPI_Irecv(part.data(), static_cast<int>(part.size()), MPI_BYTE, from, static_cast<int>(tag),
                                 comm_, &requests.back()),
                       "MPI_Irecv");
    });
}

void Messages::stage(const BufferPart& part, const std::vector<int>& peers, Tag tag, bool is_incoming, Pending& pending)
{
    const std::span<std::byte> stage = staged_bytes(part);
    auto staged = std::make_shared<Staged>(Staged{part, peers, tag, is_incoming, site_->mark(), {}, is_incoming});
    if (is_incoming) {
        post_receive(stage, peers.front(), tag, staged->requests);
    } else {
        staged->mark = site_->copy_out(stage.data(), part.buffer->data() + part.first, part.bytes, staged->mark);
    }
    pending.staged.push_back(staged);
    staged_.push_back(std::move(staged));
    progress(); // the copy may be over already
}

void Messages::advance(Staged& staged, bool may_leave)
{
    const BufferPart& part = staged.part;
    if (staged.is_moving) {
        if (!is_done(staged.requests)) {
            return;
        }
        staged.is_moving = false;
        if (staged.is_incoming) {
            staged.mark =
                site_->copy_in(part.buffer->data() + part.first, staged_bytes(part).data(), part.bytes, staged.mark);
        } else {
            staged.is_over = true;
        }
    }
    if (staged.is_over || !site_->is_past(staged.mark)) {
        return;
    }
    if (staged.is_incoming) {
        staged.is_over = true;
        return;
    }
    if (!may_leave) {
        return;
    }
    staged.is_moving = true;
    for (const int to : staged.peers) {
        post_send(staged_bytes(part), to, staged.tag, staged.requests);
    }
}

void Messages::send(const BufferPart& part, const std::vector<int>& to, Tag tag, Pending& pending)
{
    if (part.bytes == 0 || to.empty()) {
        return;
    }
    if (part.buffer->stage() != nullptr) {
        stage(part, to, tag, false, pending);
        return;
    }
    wait_for_site(part);
    for (const int rank : to) {
        post_send(bytes_of(part), rank, tag, pending.requests);
    }
}

void Messages::pass_on(const BufferPart& part, int to, Tag tag, Pending& pending)
{
    // In order with what the site does it is as it was received: nothing is written there.
    post_send(part.buffer->stage() != nullptr ? staged_bytes(part) : bytes_of(part), to, tag, pending.requests);
}

void Messages::receive(const BufferPart& part, int from, Tag tag, Pending& pending)
{
    if (part.bytes == 0) {
        return;
    }
    if (part.buffer->stage() != nullptr) {
        stage(part, {from}, tag, true, pending);
        return;
    }
    wait_for_site(part);
    post_receive(bytes_of(part), from, tag, pending.requests);
}

void Messages::send(const ConstTensorView& view, int to, Tag tag, Pending& pending)
{
    if (view.elements() == 0) {
        return;
    }
    const ElementsType type(view);
    pending.requests.push_back(MPI_REQUEST_NULL);
    expect_success(MPI_Isend(view.data, 1, type.get(), to, static_cast<int>(tag), comm_, &pending.requests.back()),
                   "MPI_Isend");
    bytes_sent_ += to != rank_ ? view.elements() * size_of(view.dtype) : 0;
}

void Messages::receive(const TensorView& view, int from, Tag tag, Pending& pending)
{
    if (view.elements() == 0) {
        return;
    }
    const ElementsType type(view);
    pending.requests.push_back(MPI_REQUEST_NULL);
    expect_success(MPI_Irecv(view.data, 1, type.get(), from, static_cast<int>(tag), comm_, &pending.requests.back()),
                   "MPI_Irecv");
}

template <class F>
void Messages::wait_until(F is_there)
{
    for (auto start = Clock::now(); !is_there();) {
        const bool has_work = !site_->is_idle();
        progress();
        std::this_thread::yield();
        const auto now = Clock::now();
        (has_work ? seconds_computing_ : seconds_waiting_) += std::chrono::duration<double>(now - start).count();
        start = now;
    }
}

void Messages::wait(Pending& pending)
{
    wait_until([&] {
        const bool is_moved = is_done(pending.requests);
        return is_moved && std::all_of(pending.staged.begin(), pending.staged.end(),
                                       [](const auto& staged) { return staged->is_over; });
    });
    pending.requests.clear();
    pending.staged.clear();
}

void Messages::wait_for_site(const BufferPart& part)
{
    if (part.buffer->site().memory() == Memory::device) {
        wait_until([&] { return site_->is_idle(); });
    }
}

void Messages::progress()
{
    bool may_leave = true; // messages leave in the order in which they were sent
    for (const auto& staged : staged_) {
        advance(*staged, may_leave);
        may_leave = may_leave && (staged->is_incoming || staged->is_moving || staged->is_over);
    }
    std::erase_if(staged_, [](const auto& staged) { return staged->is_over; });
    int is_there = 0;
    expect_success(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &is_there, MPI_STATUS_IGNORE), "MPI_Iprobe");
}

std::vector<std::int64_t> Messages::all_numbers(const std::vector<std::int64_t>& mine) const
{
    std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(ranks_));
    const auto count = static_cast<int>(mine.size());
    MPI_Request request = MPI_REQUEST_NULL;
    expect_success(MPI_Iallgather(mine.data(), count, MPI_INT64_T, all.data(), count, MPI_INT64_T, comm_, &request),
                   "MPI_Iallgather");
    wait_for({&request, 1}); // NOLINT(clang-analyzer-optin.mpi.MPI-Checker): it looks for MPI_Wait() here
    return all;
}

std::vector<std::string> Messages::all_texts(const std::string& mine) const
{
    constexpr std::size_t most = 600; // sentences of errors are shorter
    std::string sent = mine.substr(0, most);
    sent.resize(most, '\0');
    std::string all(most * static_cast<std::size_t>(ranks_), '\0');
    MPI_Request request = MPI_REQUEST_NULL;
    expect_success(MPI_Iallgather(sent.data(), static_cast<int>(most), MPI_CHAR, all.data(), static_cast<int>(most),
                                  MPI_CHAR, comm_, &request),
                   "MPI_Iallgather");
    wait_for({&request, 1}); // NOLINT(clang-analyzer-optin.mpi.MPI-Checker): it looks for MPI_Wait() here
    std::vector<std::string> texts;
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks_); ++rank) {
        const std::string text = all.substr(rank * most, most);
        texts.push_back(text.substr(0, text.find('\0')));
    }
    return texts;
}

void Messages::sum(std::span<float> values, std::span<float> scratch)
{
    // MPI_Allreduce() may choose another order in another run. So rank r adds to what rank r - 1 sends it.
    Pending pending;
    if (rank_ > 0) {
        const std::span<float> before = scratch.first(values.size());
        post_receive(std::as_writable_bytes(before), rank_ - 1, Tag::sums, pending.requests);
        wait(pending);
        std::transform(before.begin(), before.end(), values.begin(), values.begin(), std::plus<>());
    }
    if (rank_ + 1 < ranks_) {
        post_send(std::as_bytes(values), rank_ + 1, Tag::sums, pending.requests);
        wait(pending);
    }
    each_part(std::as_writable_bytes(values), [&](std::span<std::byte> part) {
        pending.requests.push_back(MPI_REQUEST_NULL);
        expect_success(MPI_Ibcast(part.data(), static_cast<int>(part.size()), MPI_BYTE, ranks_ - 1, comm_,
                                  &pending.requests.back()),
                       "MPI_Ibcast");
    });
    wait(pending);
    bytes_sent_ += rank_ + 1 == ranks_ ? static_cast<std::int64_t>(values.size_bytes()) * (ranks_ - 1) : 0;
}

} // namespace flashomp::mpi
