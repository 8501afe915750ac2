#include "messages.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <thread>

namespace flashomp::mpi {

namespace {

/// What is kept with a communicator of the caller's.
struct Kept {
    MPI_Comm duplicate = MPI_COMM_NULL;
    int rank_on_node = 0;
};

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
    each_message(std::as_writable_bytes(values), [&](std::span<std::byte> part) {
        pending.requests.push_back(MPI_REQUEST_NULL);
        expect_success(MPI_Ibcast(part.data(), static_cast<int>(part.size()), MPI_BYTE, ranks_ - 1, comm_,
                                  &pending.requests.back()),
                       "MPI_Ibcast");
    });
    wait(pending);
    bytes_sent_ += rank_ + 1 == ranks_ ? static_cast<std::int64_t>(values.size_bytes()) * (ranks_ - 1) : 0;
}

} // namespace flashomp::mpi
