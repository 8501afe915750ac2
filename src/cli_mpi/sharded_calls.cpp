#include "sharded_calls.hpp"

#include "validate.hpp"

namespace flashomp::cli {

CallReport ShardedCalls::forward(const ForwardArgs& whole, const Options& options)
{
    static_cast<void>(validate_forward(whole, options)); // shards are of tensors that fit together
    ranks_.together([&] { forward_.emplace(whole, options, sharding_, DType::float32); });
    whole_o_ = whole.o.data;
    const mpi::Report report = forward_->run();
    forward_->put_together();
    return reported(report);
}

CallReport ShardedCalls::backward(const BackwardArgs& whole, const Options& options)
{
    static_cast<void>(validate_backward(whole, options));
    std::optional<BackwardShards> shards;
    const ConstTensorView kept =
        forward_ && whole.o.data == whole_o_ ? ConstTensorView(forward_->o()) : ConstTensorView{};
    ranks_.together([&] { shards.emplace(whole, options, sharding_, kept); });
    const mpi::Report report = shards->run();
    shards->put_together();
    return reported(report);
}

CallReport ShardedCalls::reported(const mpi::Report& report) const
{
    CallReport call{report.last, RanksReport{}};
    if (report.calls == 0) {
        call.report.ran_on = "other ranks alone";
    }
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
