#include "calls.hpp"

#include "kernel_params.hpp"
#include "tensor_maps.hpp"

#include <algorithm>
#include <cstring>

namespace flashomp {

namespace {

/// Blocks that several crews work on, whether on parts of their keys or heads or by turns: those that stay, or those of
/// dQ that stream past; of few queries, which are one block a head, no fewer than key heads.
std::int64_t shared_blocks(const Plan& plan, const Problem& problem, const PassPlan& pass)
{
    const std::int64_t rows = pass.launch.stream_rows;
    switch (pass.launch.pass) {
    case offload::Pass::forward:
        return plan.merged_blocks;
    case offload::Pass::backward_key:
        return plan.head_splits > 1 ? block_count(problem, pass) : 0;
    case offload::Pass::backward_once:
        return problem.batch * problem.heads_q * ((problem.seqlen_q + rows - 1) / rows);
    default:
        return 0;
    }
}

} // namespace

/// Room for so many bytes. Returns where, in bytes from the start: a multiple of 64, as tensor maps ask.
std::int64_t Calls::reserve(std::int64_t bytes)
{
    constexpr std::int64_t granule = 64;
    const std::int64_t at = bytes_;
    bytes_ += (bytes + granule - 1) / granule * granule;
    return at;
}

Calls::Calls(const Plan& plan, const Problem& problem, const Space& space) : plan_(plan)
{
    if (space.kind == Space::Kind::cuda) {
        return;
    }
    passes_.resize(plan.passes.size());
    for (std::size_t i = 0; i < passes_.size(); ++i) {
        const PassPlan& pass = plan.passes[i];
        passes_[i].arrivals = shared_blocks(plan, problem, pass);
        passes_[i].arrivals_at = reserve(passes_[i].arrivals * static_cast<std::int64_t>(sizeof(unsigned)));
        if (!space.is_host()) {
            passes_[i].at = reserve(sizeof(offload::Call));
            passes_[i].maps_at = reserve(pass.machine == Machine::hopper ? TensorMaps{}.size() * sizeof(TensorMap) : 0);
        }
    }
    if (!space.is_host()) {
        merge_at_ = reserve(plan.merges ? sizeof merge_ : 0);
        image_.resize(static_cast<std::size_t>(bytes_));
    }
}

void Calls::set(const Problem& problem, const offload::Params& params, float* crew_memory, void* memory,
                const Space& space, int most_threads)
{
    auto* const bytes = static_cast<std::byte*>(memory);
    for (std::size_t i = 0; i < passes_.size(); ++i) {
        Placed& placed = passes_[i];
        const PassPlan& pass = plan_.passes[i];
        placed.call = {params, pass.launch};
        offload::Launch& launch = placed.call.launch;
        if (pass.tile_bytes > 0 && params.mask.tiles != nullptr) {
            offload::set_tiles(placed.call.params, launch, params.mask.tiles);
        } else {
            placed.call.params.mask.tiles = nullptr;
        }
        launch.crew_memory = crew_memory;
        if (placed.arrivals > 0) {
            launch.arrivals = reinterpret_cast<unsigned*>(bytes + placed.arrivals_at);
        }
        if (is_one_pass(plan_) && !space.is_host()) {
            placed.call.params.sums = crew_memory;
            placed.call.params.turns = launch.arrivals;
        }
        if (space.is_host()) {
            std::fill_n(launch.arrivals, placed.arrivals, 0U);
            int& threads = pass.machine == Machine::plain ? launch.crew_threads : launch.crews;
            threads = std::min(threads, most_threads);
        }
    }
    if (plan_.merges) {
        merge_ = split_merge(params, problem);
    }
    if (!space.is_host()) {
        memory_ = bytes;
        send(problem, space);
    }
}

void Calls::send(const Problem& problem, const Space& space)
{
    const auto write = [this](std::int64_t at, const auto& object) {
        std::memcpy(image_.data() + at, &object, sizeof object);
    };
    for (std::size_t i = 0; i < passes_.size(); ++i) {
        offload::Call& call = passes_[i].call;
        std::int64_t at = passes_[i].maps_at;
        for (const MapOfTensor& map : maps_of(plan_.passes[i], problem, call.params)) {
            if (map.tensor != nullptr) {
                (call.params.*map.tensor).map = memory_ + at;
                write(at, map.map);
                at += sizeof map.map;
            }
        }
        write(passes_[i].at, call);
    }
    if (plan_.merges) {
        write(merge_at_, merge_);
    }
    copy_in(memory_, space, image_.data(), bytes_);
}

} // namespace flashomp
