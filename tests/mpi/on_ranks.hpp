// A case that every rank has whole: each runs its shard, and all get the results of all.
#pragma once

#include "support/attention_case.hpp"
#include "support/sharded.hpp"

#include "device_calls.hpp"
#include "layout.hpp"

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace flashomp::testing {

inline int rank()
{
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

inline int ranks()
{
    int ranks = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    return ranks;
}

/// Waits without keeping the core, which other ranks need: rank 0 may be busy with the reference.
inline void wait_for(MPI_Request& request)
{
    for (int done = 0; done == 0;) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        std::this_thread::yield();
    }
}

struct Reports {
    mpi::Report forward, backward;
};

/// What a rank gives, and the results. `whole` must live as long.
class OnRanks {
public:
    /// Shards by the layout, or, of contiguous ones, of the given lengths.
    OnRanks(AttentionCase& whole, const mpi::Sharding& sharding, std::vector<std::int64_t> lengths_q = {},
            std::vector<std::int64_t> lengths_k = {})
        : whole_(whole), sharding_(sharding)
    {
        const bool packed = whole.packed();
        const std::size_t axis = packed ? 0 : 1;
        rows_q_ = rows(whole.q.shape()[axis], std::move(lengths_q));
        rows_k_ = rows(whole.k.shape()[axis], std::move(lengths_k));
        q = own(whole.q, axis, rows_q_);
        k = own(whole.k, axis, rows_k_);
        v = own(whole.v, axis, rows_k_);
        dout = own(whole.dout, axis, rows_q_);
        options = whole.options;
        options.threads = 1;
        if (!packed && whole.bias.rank() > 0) {
            bias = gathered(whole.bias, 2, rows_q_);
            options.bias = std::as_const(bias).view();
        }
        if (!packed && whole.mask.rank() > 0) {
            mask = gathered(whole.mask, 2, rows_q_);
            options.mask = std::as_const(mask).view();
        }
        poison(whole.dtype());
    }

    /// Results of this dtype; LSE, dbias and dsink have their own.
    void poison(DType dtype)
    {
        const bool packed = whole_.packed();
        io::Shape o_shape = q.shape();
        o_shape.back() = whole_.shape().head_dim_v;
        o = HostTensor(dtype, o_shape, Fill::poison);
        const auto rows = static_cast<std::int64_t>(rows_q_.size());
        lse = HostTensor(DType::float32, packed ? io::Shape{o_shape[1], rows} : io::Shape{o_shape[0], o_shape[2], rows},
                         Fill::poison);
        dq = HostTensor(dtype, q.shape(), Fill::poison);
        dk = HostTensor(dtype, k.shape(), Fill::poison);
        dv = HostTensor(dtype, v.shape(), Fill::poison);
        const HostTensor& of_bias = packed ? whole_.bias : bias;
        dbias = of_bias.rank() > 0 ? HostTensor(of_bias.dtype(), of_bias.shape(), Fill::poison) : HostTensor();
        dsink = whole_.sink.rank() > 0 ? HostTensor(DType::float32, whole_.sink.shape(), Fill::poison) : HostTensor();
    }

    [[nodiscard]] ForwardArgs forward_args()
    {
        return {std::as_const(q).view(), std::as_const(k).view(), std::as_const(v).view(), o.view(), lse.view()};
    }

    [[nodiscard]] BackwardArgs backward_args()
    {
        BackwardArgs args;
        args.q = q.view();
        args.k = k.view();
        args.v = v.view();
        args.o = o.view();
        args.lse = lse.view();
        args.dout = dout.view();
        args.dq = dq.view();
        args.dk = dk.view();
        args.dv = dv.view();
        args.dbias = dbias.view();
        args.dsink = dsink.view();
        return args;
    }

    Reports run()
    {
        Reports reports;
        reports.forward = sharded_forward(forward_args(), options, sharding_);
        reports.backward = sharded_backward(backward_args(), options, sharding_);
        return reports;
    }

    /// The results of all ranks, put where a single call has them, on every rank.
    [[nodiscard]] Results all()
    {
        const bool packed = whole_.packed();
        const std::size_t axis = packed ? 0 : 1;
        Results results;
        io::Shape o_shape = whole_.q.shape();
        o_shape.back() = whole_.shape().head_dim_v;
        io::Shape lse_shape = lse.shape();
        lse_shape.back() = whole_.q.shape()[axis];
        results.o = together(o, o_shape, axis, rows_q_);
        results.lse = together(lse, lse_shape, packed ? 1 : 2, rows_q_);
        results.dq = together(dq, whole_.q.shape(), axis, rows_q_);
        results.dk = together(dk, whole_.k.shape(), axis, rows_k_);
        results.dv = together(dv, whole_.v.shape(), axis, rows_k_);
        if (dbias.rank() > 0) {
            const bool has_rows = !packed && whole_.bias.shape()[2] > 1;
            results.dbias = has_rows ? together(dbias, whole_.bias.shape(), 2, rows_q_)
                                     : HostTensor::copy_of(std::as_const(dbias).view());
        }
        if (dsink.rank() > 0) {
            results.dsink = HostTensor::copy_of(std::as_const(dsink).view());
        }
        return results;
    }

    /// Puts the results where the case compares them.
    void give_back()
    {
        Results results = all();
        whole_.o = std::move(results.o);
        whole_.lse = std::move(results.lse);
        whole_.dq = std::move(results.dq);
        whole_.dk = std::move(results.dk);
        whole_.dv = std::move(results.dv);
        whole_.dbias = std::move(results.dbias);
        whole_.dsink = std::move(results.dsink);
    }

    [[nodiscard]] const std::vector<std::int64_t>& rows_q() const { return rows_q_; }

    HostTensor q, k, v, dout, bias, mask;
    HostTensor o, lse, dq, dk, dv, dbias, dsink;
    Options options;

private:
    [[nodiscard]] std::vector<std::int64_t> rows(std::int64_t length, std::vector<std::int64_t> lengths) const
    {
        if (lengths.empty()) {
            for (int r = 0; r < ranks(); ++r) {
                lengths.push_back(mpi::positions(sharding_.layout, r, ranks(), length).rows());
            }
        }
        std::vector<std::int64_t> rows;
        for (const auto& [first, count] : mpi::rows_of_ranks(sharding_.layout, lengths, rank(), 1)) {
            for (std::int64_t row = first; row < first + count; ++row) {
                rows.push_back(row);
            }
        }
        return rows;
    }

    /// The rows of a tensor that does not broadcast.
    static HostTensor own(const HostTensor& whole, std::size_t axis, const std::vector<std::int64_t>& rows)
    {
        io::Shape shape = whole.shape();
        shape[axis] = static_cast<std::int64_t>(rows.size());
        HostTensor part(whole.dtype(), shape);
        each_run(whole, axis, rows, [&](std::int64_t from, std::int64_t to, std::int64_t bytes) {
            std::memcpy(static_cast<char*>(part.data()) + to, static_cast<const char*>(whole.data()) + from,
                        static_cast<std::size_t>(bytes));
        });
        return part;
    }

    /// Rows that no other rank has are zeros there, so that a bitwise or has all.
    static HostTensor together(const HostTensor& part, const io::Shape& shape, std::size_t axis,
                               const std::vector<std::int64_t>& rows)
    {
        HostTensor all(part.dtype(), shape);
        each_run(all, axis, rows, [&](std::int64_t to, std::int64_t from, std::int64_t bytes) {
            std::memcpy(static_cast<char*>(all.data()) + to, static_cast<const char*>(part.data()) + from,
                        static_cast<std::size_t>(bytes));
        });
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_Iallreduce(MPI_IN_PLACE, all.data(), static_cast<int>(all.bytes()), MPI_BYTE, MPI_BOR, MPI_COMM_WORLD,
                       &request);
        wait_for(request);
        return all;
    }

    AttentionCase& whole_;
    mpi::Sharding sharding_;
    std::vector<std::int64_t> rows_q_, rows_k_;
};

struct NamedSharding {
    std::string name;
    mpi::Sharding sharding;
};

/// Every way that so many ranks can take, of a call with these heads. On the device that is none each scheme has one
/// layout, in turn: tests of the host have both, and the memory makes no difference to them.
inline std::vector<NamedSharding> shardings(std::int64_t heads_q)
{
    using mpi::Layout;
    using mpi::Scheme;
    std::vector<NamedSharding> all;
    for (const Layout layout : {Layout::contiguous, Layout::zigzag}) {
        bool is_its_turn = layout == Layout::contiguous;
        const auto add = [&](Scheme scheme, int heads_ranks, const std::string& name) {
            if (test_device() == TestDevice::fake && !std::exchange(is_its_turn, !is_its_turn)) {
                return;
            }
            all.push_back(
                {std::string(mpi::name_of(layout)) + " " + name, {MPI_COMM_WORLD, layout, scheme, heads_ranks}});
        };
        add(Scheme::ring, 0, "ring");
        add(Scheme::all_gather, 0, "all_gather");
        if (ranks() <= heads_q) {
            add(Scheme::ulysses, 0, "ulysses");
        }
        for (int members = 2; members < ranks() && members <= heads_q; ++members) {
            if (ranks() % members == 0) {
                add(Scheme::grid, members, "grid of " + std::to_string(members));
            }
        }
    }
    return all;
}

} // namespace flashomp::testing
