#include "calls.hpp"

#include "kernel_params.hpp"
#include "tensor_maps.hpp"

namespace flashomp {

namespace {

/// Whether several crews work on one block's results: parts of its keys or heads, or by turns.
bool shares_blocks(const Plan& plan, const PassPlan& pass)
{
    switch (pass.launch.pass) {
    case offload::Pass::forward:
        return plan.splits > 1 && !plan.merges;
    case offload::Pass::backward_key:
        return plan.head_splits > 1;
    default:
        return pass.launch.pass == offload::Pass::backward_once;
    }
}

/// The blocks that they share: those that stay, or those of dQ that stream past.
std::int64_t shared_blocks(const Problem& problem, const PassPlan& pass)
{
    const std::int64_t rows = pass.launch.stream_rows;
    return pass.launch.pass == offload::Pass::backward_once
               ? problem.batch * problem.heads_q * ((problem.seqlen_q + rows - 1) / rows)
               : block_count(problem, pass);
}

} // namespace

Calls::Calls(const Plan& plan, const Problem& problem, const offload::Params& params, float* crew_memory,
             const Space& space)
    : image_(space)
{
    struct Places {
        std::int64_t units, maps, arrivals;
        bool is_shared; ///< by crews, which count arrivals
        std::vector<MapOfTensor> of_tensors;
    };
    std::vector<Places> places;
    for (const PassPlan& pass : plan.passes) {
        std::vector<MapOfTensor> maps = maps_of(pass, problem, params);
        passes_.push_back({{params, pass.launch}, image_.reserve<offload::Call>()});
        const bool is_shared = shares_blocks(plan, pass);
        const auto arrivals = static_cast<std::size_t>(is_shared ? shared_blocks(problem, pass) : 0);
        places.push_back({image_.reserve<offload::Unit>(pass.units.size()), image_.reserve<TensorMap>(maps.size()),
                          image_.reserve<unsigned>(arrivals), is_shared, std::move(maps)});
    }
    if (plan.merges) {
        merge_at_ = image_.reserve<offload::MergeParams>();
    }
    image_.place();
    for (std::size_t i = 0; i < passes_.size(); ++i) {
        offload::Call& call = passes_[i].call;
        const auto& units = plan.passes[i].units;
        call.launch.crew_memory = crew_memory;
        call.launch.arrivals = places[i].is_shared ? image_.address<unsigned>(places[i].arrivals) : nullptr;
        call.launch.units = units.empty() ? nullptr : image_.address<offload::Unit>(places[i].units);
        image_.write(places[i].units, units.data(), units.size());
        std::int64_t at = places[i].maps;
        for (const auto& [tensor, map] : places[i].of_tensors) {
            (call.params.*tensor).map = image_.address<TensorMap>(at);
            image_.write(at, &map);
            at += sizeof map;
        }
        image_.write(passes_[i].at, &call);
    }
    if (plan.merges) {
        merge_ = split_merge(params, problem);
        image_.write(merge_at_, &merge_);
    }
    image_.send();
}

} // namespace flashomp
