#include "packing.hpp"

#include "masks.hpp"

#include <algorithm>

namespace flashomp {

namespace {

using offload::Pass;
using offload::StreamUse;

/// How often a streamed row is met by resident blocks, at most on average.
double meetings(const Problem& problem, const offload::Launch& launch)
{
    const bool keys_stay = launch.pass == Pass::backward_key;
    const auto q_len = static_cast<int>(problem.seqlen_q);
    const auto k_len = static_cast<int>(problem.seqlen_k);
    const offload::Band band = band_of(problem, q_len, k_len);
    std::int64_t met = 0;
    for (int first = 0; first < (keys_stay ? k_len : q_len); first += launch.resident_rows) {
        const int last = first + launch.resident_rows;
        const offload::Range range = keys_stay ? band.queries(first, last) : band.keys(first, last);
        met += std::max(0, range.end - range.begin);
    }
    const std::int64_t group = keys_stay ? 1 : problem.heads_q / std::max<std::int64_t>(1, problem.heads_kv);
    return static_cast<double>(met * group) / std::max(1, keys_stay ? q_len : k_len);
}

} // namespace

bool may_pack_for_all(const offload::HostIsa& isa, Pass pass, const Problem& problem)
{
    constexpr std::int64_t fewest_rows = 1024; // 512 on 16 threads: a tenth slower
    const bool streams = pass == Pass::forward || pass == Pass::backward_query || pass == Pass::backward_key;
    return streams && isa.packed_bytes != nullptr && problem.starts_q.empty() &&
           (pass == Pass::backward_key ? problem.seqlen_q : problem.seqlen_k) >= fewest_rows;
}

std::vector<Packing> packings_of(const Problem& problem, const PassPlan& pass)
{
    const offload::Launch& launch = pass.launch;
    const bool is_few = launch.resident_rows % pass.isa->lanes != 0; // reads rows where they are
    constexpr double fewest_meetings = 1.5;                          // packing for all takes a trip through memory more
    if (!may_pack_for_all(*pass.isa, launch.pass, problem) || is_few || meetings(problem, launch) < fewest_meetings) {
        return {};
    }
    const offload::Element element = kernel_element(problem.dtype);
    const auto packing = [&](offload::Tensor offload::Params::*tensor, StreamUse use, std::int64_t heads,
                             std::int64_t rows, std::int64_t depth) {
        offload::PackedTensor packed;
        packed.use = use;
        packed.batches = static_cast<int>(problem.batch);
        packed.heads = static_cast<int>(heads);
        packed.rows = static_cast<int>(rows);
        packed.depth = static_cast<int>(depth);
        packed.block_rows = launch.stream_rows;
        packed.block_bytes = pass.isa->packed_bytes(element, use, launch.stream_rows, packed.depth);
        return Packing{tensor, packed};
    };
    using offload::Params;
    if (launch.pass == Pass::backward_key) {
        return {packing(&Params::q, StreamUse::both, problem.heads_q, problem.seqlen_q, problem.head_dim),
                packing(&Params::dout, StreamUse::both, problem.heads_q, problem.seqlen_q, problem.head_dim_v)};
    }
    const bool is_forward = launch.pass == Pass::forward;
    return {packing(&Params::k, is_forward ? StreamUse::scores : StreamUse::both, problem.heads_kv, problem.seqlen_k,
                    problem.head_dim),
            packing(&Params::v, is_forward ? StreamUse::sums : StreamUse::scores, problem.heads_kv, problem.seqlen_k,
                    problem.head_dim_v)};
}

} // namespace flashomp
