// Messages from buffers to buffers: as they are, or by way of the buffers' stages.
#include "messages.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace flashomp::mpi {

namespace {

using Clock = std::chrono::steady_clock;

std::span<std::byte> bytes_of(const BufferPart& part)
{
    return {part.buffer->data() + part.first, static_cast<std::size_t>(part.bytes)};
}

std::span<std::byte> staged_bytes(const BufferPart& part)
{
    return {part.buffer->stage() + part.first, static_cast<std::size_t>(part.bytes)};
}

} // namespace

bool is_done(std::span<MPI_Request> requests)
{
    int all = 0;
    expect_success(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &all, MPI_STATUSES_IGNORE),
                   "MPI_Testall");
    return all != 0;
}

void Messages::post_send(std::span<const std::byte> bytes, int to, Tag tag, std::vector<MPI_Request>& requests)
{
    each_message(bytes, [&](std::span<const std::byte> part) {
        requests.push_back(MPI_REQUEST_NULL);
        expect_success(MPI_Isend(part.data(), static_cast<int>(part.size()), MPI_BYTE, to, static_cast<int>(tag), comm_,
                                 &requests.back()),
                       "MPI_Isend");
    });
    bytes_sent_ += to != rank_ ? static_cast<std::int64_t>(bytes.size()) : 0;
}

void Messages::post_receive(std::span<std::byte> bytes, int from, Tag tag, std::vector<MPI_Request>& requests)
{
    each_message(bytes, [&](std::span<std::byte> part) {
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

} // namespace flashomp::mpi
