#include "flashomp/mpi.hpp"

#include "agreement.hpp"
#include "devices.hpp"
#include "engine.hpp"
#include "everywhere.hpp"
#include "large_logits.hpp"
#include "messages_alone.hpp"
#include "site.hpp"
#include "validation.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace flashomp::mpi {

namespace {

void check_sharding(const Sharding& sharding, int ranks)
{
    const auto is_one_of = [](auto value, auto last) { return static_cast<int>(value) <= static_cast<int>(last); };
    if (!is_one_of(sharding.layout, Layout::zigzag) || !is_one_of(sharding.scheme, Scheme::grid)) {
        throw Error(fmt::format("layout was {} and scheme {}; they must be members of Layout and Scheme.",
                                static_cast<int>(sharding.layout), static_cast<int>(sharding.scheme)));
    }
    if (sharding.scheme == Scheme::grid ? sharding.heads_ranks < 1 || ranks % sharding.heads_ranks != 0
                                        : sharding.heads_ranks != 0) {
        throw Error(fmt::format("heads_ranks was {} with scheme {} and {} ranks; it must divide the ranks with scheme "
                                "grid, and be 0 else.",
                                sharding.heads_ranks, name_of(sharding.scheme), ranks));
    }
}

/// The scheme: the caller's, or the model's. All ranks find the same.
Choice choose(const Call& call, const Whole& whole, const Sharding& sharding, int ranks)
{
    if (sharding.scheme == Scheme::automatic) {
        const Geometry ring(call, whole, sharding.layout, 0, 1);
        return cheapest(cost_shape(call, ring));
    }
    const int members =
        sharding.scheme == Scheme::ulysses ? ranks : (sharding.scheme == Scheme::grid ? sharding.heads_ranks : 1);
    const std::int64_t heads_q = call.args.q.shape.at(static_cast<std::size_t>(call.args.q.rank - 2));
    if (members > heads_q) {
        throw Error(fmt::format("{} ranks cannot share out {} heads of q; at most as many ranks as heads are allowed.",
                                members, heads_q));
    }
    return {sharding.scheme, members, "the caller chose it"};
}

template <class Args>
Report alone(const Args& args, const Options& options, Scheme scheme)
{
    const std::unique_ptr<Site> device = args.q.memory == Memory::device ? device_sites()(options) : nullptr;
    Site& site = device != nullptr ? *device : host_site();
    Report report;
    report.scheme = scheme == Scheme::automatic ? Scheme::ring : scheme;
    const double start = MPI_Wtime();
    if constexpr (std::is_same_v<Args, ForwardArgs>) {
        report.last = site.forward(args, options);
    } else {
        report.last = site.backward(args, options);
    }
    report.calls = 1;
    report.why = "there is one rank";
    report.seconds = report.seconds_computing = MPI_Wtime() - start;
    return report;
}

/// What all calls of a pass have in common.
struct Ranks {
    Messages& messages;
    const Whole& whole;
    const Sharding& sharding;
    const Choice& choice;
    bool computes; ///< or messages alone
};

Report compute(const Ranks& ranks, const Call& call)
{
    std::unique_ptr<const Geometry> geometry;
    std::unique_ptr<Engine> engine;
    const WaitsAtLast waits{ranks.messages.site()};
    expect_everywhere(ranks.messages, [&] {
        geometry = std::make_unique<Geometry>(call, ranks.whole, ranks.sharding.layout, ranks.messages.rank(),
                                              ranks.choice.heads_ranks);
        engine = call.is_backward ? backward_engine(ranks.messages, call, ranks.whole, *geometry, ranks.choice)
                                  : forward_engine(ranks.messages, call, ranks.whole, *geometry, ranks.choice);
    });
    return engine->run(ranks.computes);
}

/// Of two calls, one after the other. Bytes and waiting are counted by the messages of both.
Report both(const Report& first, Report second)
{
    second.has_large_logits = true;
    second.calls += first.calls;
    second.seconds_computing += first.seconds_computing;
    second.extra_bytes = std::max(first.extra_bytes, second.extra_bytes);
    return second;
}

Report forward_of(const Ranks& ranks, const Call& call)
{
    Report report = compute(ranks, call);
    if (!ranks.computes || !wants_shift(ranks.messages, call, ranks.whole, ranks.choice.heads_ranks)) {
        return report;
    }
    Site& site = ranks.messages.site();
    std::unique_ptr<ShiftedForward> shifted;
    const WaitsAtLast waits{site};
    expect_everywhere(ranks.messages, [&] { shifted = std::make_unique<ShiftedForward>(call, site); });
    if (!is_taken_everywhere(ranks.messages, shifted->call(), ranks.whole, ranks.sharding)) {
        return report;
    }
    Report again = both(report, compute(ranks, shifted->call()));
    expect_everywhere(ranks.messages, [&] {
        shifted->finish(merge_options(call.options));
        site.wait();
        site.expect_no_failure();
    });
    again.extra_bytes += shifted->bytes();
    return again;
}

Report backward_of(const Ranks& ranks, const Call& call)
{
    if (!ranks.computes || !wants_shift(ranks.messages, call, ranks.whole, ranks.choice.heads_ranks)) {
        return compute(ranks, call);
    }
    Site& site = ranks.messages.site();
    std::unique_ptr<ShiftedBackward> shifted;
    const WaitsAtLast waits{site};
    expect_everywhere(ranks.messages, [&] { shifted = std::make_unique<ShiftedBackward>(call, site); });
    for (const Call* const each : {&shifted->exponentials(), &shifted->deltas(), &shifted->gradients()}) {
        if (!is_taken_everywhere(ranks.messages, *each, ranks.whole, ranks.sharding)) {
            return compute(ranks, call);
        }
    }
    Report report = compute(ranks, shifted->exponentials());
    shifted->take_lse();
    report = both(report, compute(ranks, shifted->deltas()));
    expect_everywhere(ranks.messages, [&] { shifted->take_delta(); });
    report = both(report, compute(ranks, shifted->gradients()));
    shifted->finish(ranks.messages);
    expect_everywhere(ranks.messages, [&] {
        site.wait();
        site.expect_no_failure();
    });
    report.extra_bytes += shifted->bytes();
    return report;
}

template <class Args>
Report run(const Args& args, const Options& options, const Sharding& sharding, bool computes = true)
{
    Messages messages(sharding.comm);
    const int rank = messages.rank(), ranks = messages.ranks();
    if (ranks == 1) {
        check_sharding(sharding, ranks);
        return computes ? alone(args, options, sharding.scheme) : Report{};
    }
    const double start = MPI_Wtime();
    Options own = with_device_of_rank(options, messages.rank_on_node());
    const Call call(args, own);
    Whole whole = agree(messages, call, sharding);
    check_sharding(sharding, ranks);
    std::unique_ptr<Site> device;
    std::vector<std::int64_t> values;
    Choice choice;
    expect_everywhere(messages, [&] {
        if (call.memory() == Memory::device) {
            device = device_sites()(own);
            messages.serve(*device);
            own = device->options_of_calls(own);
        }
        validate(call, whole, sharding, rank, ranks, messages.site());
        values = common_values(call, whole, messages.site());
        choice = choose(call, whole, sharding, ranks);
    });
    agree_on_values(messages, values);
    if (call.options.block_mask && choice.heads_ranks > 1) {
        whole.block_masks = facts_of_block_masks(messages, call.options.block_mask);
    }
    const Ranks all{messages, whole, sharding, choice, computes};
    Report report = call.is_backward ? backward_of(all, call) : forward_of(all, call);
    report.seconds = MPI_Wtime() - start;
    return report;
}

} // namespace

Device device_of_rank(MPI_Comm comm, const Options& options)
{
    return with_device_of_rank(options, Messages(comm).rank_on_node()).device;
}

Report forward(const ForwardArgs& args, const Options& options, const Sharding& sharding)
{
    return run(args, options, sharding);
}

Report backward(const BackwardArgs& args, const Options& options, const Sharding& sharding)
{
    return run(args, options, sharding);
}

Report forward_messages(const ForwardArgs& args, const Options& options, const Sharding& sharding)
{
    return run(args, options, sharding, /*computes=*/false);
}

Report backward_messages(const BackwardArgs& args, const Options& options, const Sharding& sharding)
{
    return run(args, options, sharding, /*computes=*/false);
}

} // namespace flashomp::mpi
