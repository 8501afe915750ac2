#include "sharded_calls.hpp"

#include "sharding_flags.hpp"

#include "reference.hpp"
#include "validate.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace flashomp::cli {

CallReport ShardedCalls::forward(const ForwardArgs& whole, const Options& options)
{
    const Problem problem = validate_forward(whole, options); // shards are of tensors that fit together
    expect_heads_of(problem);
    ranks_.together([&] { forward_.emplace(whole, options, sharding_, DType::float32); });
    whole_o_ = whole.o.data;
    const mpi::Report report = forward_->run();
    forward_->put_together();
    return reported(report, problem);
}

CallReport ShardedCalls::backward(const BackwardArgs& whole, const Options& options)
{
    const Problem problem = validate_backward(whole, options);
    expect_heads_of(problem);
    std::optional<BackwardShards> shards;
    const ConstTensorView kept =
        forward_ && whole.o.data == whole_o_ ? ConstTensorView(forward_->o()) : ConstTensorView{};
    ranks_.together([&] { shards.emplace(whole, options, sharding_, kept); });
    const mpi::Report report = shards->run();
    shards->put_together();
    return reported(report, problem);
}

void ShardedCalls::expect_heads_of(const Problem& whole) const
{
    expect_heads(sharding_, ranks_.size(), whole.q.shape.at(static_cast<std::size_t>(whole.q.rank - 2)), "q");
}

void ShardedCalls::say_where(std::int64_t calls, Report& report) const
{
    const std::vector<std::int64_t> of_ranks = ranks_.numbers(calls);
    const auto first = std::find_if(of_ranks.begin(), of_ranks.end(), [](std::int64_t count) { return count > 0; });
    if (first == of_ranks.begin()) {
        return;
    }
    if (first == of_ranks.end()) {
        report.ran_on = "no rank, as there was nothing to compute";
        return;
    }
    const auto rank = static_cast<std::size_t>(first - of_ranks.begin());
    for (std::string* const text : {&report.backend, &report.machine, &report.ran_on, &report.note}) {
        *text = ranks_.texts(*text)[rank];
    }
    for (bool* const flag : {&report.on_device, &report.tuned}) {
        *flag = ranks_.numbers(*flag ? 1 : 0)[rank] != 0;
    }
    report.ran_on += fmt::format(" of rank {} (rank 0 had no rows)", rank);
}

CallReport ShardedCalls::reported(const mpi::Report& report, const Problem& whole) const
{
    CallReport call{report.last, RanksReport{}};
    say_where(report.calls, call.report);
    call.report.standard_bytes = reference::standard_attention_bytes(whole); // not of rank 0's last part
    call.report.seconds = ranks_.most(report.seconds);
    call.report.extra_bytes += report.extra_bytes;
    call.ranks->ranks = ranks_.size();
    call.ranks->heads_ranks = report.heads_ranks;
    call.ranks->layout = mpi::name_of(sharding_.layout);
    call.ranks->scheme = mpi::name_of(report.scheme);
    call.ranks->why = report.why;
    call.ranks->bytes_sent = ranks_.sum(report.bytes_sent);
    call.ranks->seconds_computing = ranks_.most(report.seconds_computing);
    call.ranks->seconds_waiting = ranks_.most(report.seconds_waiting);
    return call;
}

} // namespace flashomp::cli
