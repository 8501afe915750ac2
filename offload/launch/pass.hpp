// What is the same for every machine and launch: from a pass to its block function, its units of work and crew memory.
#pragma once

#include "algorithm/backward_options.hpp"
#include "algorithm/one_pass.hpp"
#include "algorithm/order.hpp"
#include "algorithm/quantised_source.hpp"
#include "launch/launch.hpp"

#include <type_traits>

#pragma omp declare target

namespace flashomp::offload {

/// The units of work of a pass.
struct Work {
    int blocks = 1, heads = 1, batches = 1, splits = 1;
    bool ascending = false; ///< order of the blocks
    int heads_together = 1;
    KeyOrder order = KeyOrder::ascending;
    const Unit* units = nullptr;
    std::int64_t items = 0;

    FLASHOMP_INLINE Work(const Params& p, const Launch& launch)
        : batches(p.batch), heads_together(launch.heads_together), order(launch.order), units(launch.units)
    {
        if (launch.pass == Pass::backward_bias) {
            items = BiasBlocks(p, launch.resident_rows, launch.stream_rows).items();
            return;
        }
        if (launch.pass == Pass::backward_sink) {
            items = p.heads_q;
            return;
        }
        const bool keys = keys_stay(launch.pass);
        const int rows = keys ? p.seqlen_k : p.seqlen_q;
        blocks = (rows + launch.resident_rows - 1) / launch.resident_rows;
        heads = keys ? p.heads_kv : p.heads_q;
        splits = launch.pass == Pass::forward ? p.splits : (keys ? head_splits(p) : 1);
        ascending = keys && order != KeyOrder::descending;
        items = (units != nullptr ? std::int64_t{launch.unit_count} : std::int64_t{blocks} * batches) * heads * splits;
    }

    /// The longest come first: under a causal mask the last query blocks see the most keys and the first key blocks the
    /// most queries. There, heads_together heads take turns (block_of_head()), so that the crews' last items are short
    /// ones. One pass on Hopper has the last key blocks first under a mask, so that few wait.
    ///
    /// In 32 bits, which plan() sees to: a division of 64 is a function call on a GPU, and six of them took 4000
    /// cycles.
    FLASHOMP_INLINE WorkItem item(std::int64_t number) const
    {
        const auto index = static_cast<int>(number) / splits;
        WorkItem work;
        work.order = order;
        work.split = static_cast<int>(number) - index * splits;
        if (units != nullptr) { // sorted by cost, longest first
            const Unit& unit = units[index / heads];
            work.head = index % heads;
            work.batch = unit.batch;
            work.block = unit.block;
            return work;
        }
        const BlockOfHead place = block_of_head(index, blocks, heads * batches, heads_together);
        work.block = ascending ? place.block : blocks - 1 - place.block;
        work.batch = place.head / heads;
        work.head = place.head - work.batch * heads;
        return work;
    }
};

/// The item of crew `crew` in round `round`, for crews that share out the work without speaking: forth in one round and
/// back in the next, so that whoever got a long one then gets a short one.
FLASHOMP_INLINE std::int64_t turn(std::int64_t round, int crew, int crews)
{
    return round * crews + (round % 2 == 0 ? crew : crews - 1 - crew);
}

/// One block of a pass that has resident blocks.
template <Pass pass, bool modified, class Keys = StridedKeys, class Machine>
FLASHOMP_INLINE void run_block(Machine tile, const Params& p, const WorkItem& work)
{
    static_assert(pass == Pass::forward || std::is_same_v<Keys, StridedKeys>); // caches have no gradients
    if constexpr (pass == Pass::forward) {
        forward_block<modified, Keys>(tile, p, work);
    } else if constexpr (pass == Pass::backward_query) {
        backward_query_block<modified>(tile, p, work);
    } else if constexpr (pass == Pass::backward_key) {
        backward_key_block<modified>(tile, p, work);
    } else if constexpr (pass == Pass::backward_start) {
        backward_start_block(tile, p, work);
    } else if constexpr (pass == Pass::backward_once) {
        backward_once_block<modified>(tile, p, work);
    } else {
        static_assert(pass == Pass::backward_end);
        backward_end_block(tile, p, work);
    }
}

template <Pass pass, bool modified, class Keys = StridedKeys, class Machine>
FLASHOMP_INLINE void run_item(Machine tile, const Params& p, const Work& work, std::int64_t index)
{
    if constexpr (pass == Pass::backward_bias) {
        backward_bias_block(tile, p, index);
    } else if constexpr (pass == Pass::backward_sink) {
        backward_sink_block(tile, p, index);
    } else {
        run_block<pass, modified, Keys>(tile, p, work.item(index));
    }
}

} // namespace flashomp::offload

#pragma omp end declare target

namespace flashomp::offload {

/// Calls f<pass, modified>() for run-time values of the passes that every machine has.
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
    case Pass::backward_bias: // exists only where something modifies the scores
        return f.template operator()<Pass::backward_bias, true>();
    case Pass::backward_sink:
        return f.template operator()<Pass::backward_sink, false>();
    case Pass::backward_start:
    case Pass::backward_once:
    case Pass::backward_end:
        break;
    }
}

/// The same for the passes of machines that compute all gradients in one.
template <class F>
void for_one_pass(Pass pass, bool modified, F f)
{
    if (pass == Pass::backward_start) {
        return f.template operator()<Pass::backward_start, false>();
    }
    return modified ? f.template operator()<Pass::backward_once, true>()
                    : f.template operator()<Pass::backward_once, false>();
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
    case Pass::backward_bias:
        return backward_bias_floats<Machine>(resident_rows, stream_rows, head_dim, head_dim_v);
    case Pass::backward_sink:
        return Machine::stats_floats(resident_rows);
    case Pass::backward_start:
        return Machine::accumulator_floats(resident_rows, head_dim) + Machine::stats_floats(resident_rows);
    case Pass::backward_once:
        if constexpr (OnePassMachine<Machine>) {
            return backward_key_floats<Machine>(resident_rows, stream_rows, head_dim, head_dim_v) +
                   Machine::project_floats(resident_rows, stream_rows, head_dim);
        }
        break;
    case Pass::backward_end:
        break;
    }
    return 0;
}

} // namespace flashomp::offload
