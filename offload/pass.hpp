// What is the same for every machine and launch: from a pass to its block function, work count and crew memory.
#pragma once

#include "backward.hpp"
#include "launch.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Blocks, heads and so units of work of a pass.
struct Work {
    int blocks = 0, heads = 0;
    std::int64_t items = 0;
};

FLASHOMP_INLINE Work work_of(Pass pass, const Params& p, int resident_rows)
{
    const bool keys = pass == Pass::backward_key;
    const int rows = keys ? p.seqlen_k : p.seqlen_q;
    Work work{(rows + resident_rows - 1) / resident_rows, keys ? p.heads_kv : p.heads_q, 0};
    work.items = std::int64_t{work.blocks} * work.heads * p.batch;
    return work;
}

template <Pass pass, bool modified, class Machine>
FLASHOMP_INLINE void run_block(Machine tile, const Params& p, const WorkItem& item)
{
    if constexpr (pass == Pass::forward) {
        forward_block<modified>(tile, p, item);
    } else if constexpr (pass == Pass::backward_query) {
        backward_query_block<modified>(tile, p, item);
    } else {
        backward_key_block<modified>(tile, p, item);
    }
}

#pragma omp end declare target

/// Calls f<pass, modified>() for run-time values.
template <class F>
void for_pass(Pass pass, bool modified, F f)
{
    switch (pass) {
    case Pass::forward:
        return modified ? f.template operator()<Pass::forward, true>() : f.template operator()<Pass::forward, false>();
    case Pass::backward_query:
        return modified ? f.template operator()<Pass::backward_query, true>()
                        : f.template operator()<Pass::backward_query, false>();
    case Pass::backward_key:
        return modified ? f.template operator()<Pass::backward_key, true>()
                        : f.template operator()<Pass::backward_key, false>();
    }
}

template <class Machine>
std::int64_t crew_floats(Pass pass, int resident_rows, int stream_rows, int head_dim, int head_dim_v)
{
    switch (pass) {
    case Pass::forward:
        return forward_floats<Machine>(resident_rows, stream_rows, head_dim, head_dim_v);
    case Pass::backward_query:
        return backward_query_floats<Machine>(resident_rows, stream_rows, head_dim, head_dim_v);
    case Pass::backward_key:
        return backward_key_floats<Machine>(resident_rows, stream_rows, head_dim, head_dim_v);
    }
    return 0;
}

} // namespace flashomp::offload
