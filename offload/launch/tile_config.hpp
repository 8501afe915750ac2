// What a tensor-core machine is compiled for.
#pragma once

#include "launch/tensor_shapes.hpp"

namespace flashomp::offload {

/// Config of TensorMachine and Tf32Machine: the numbers of a shape, and what follows from the pass. Shapes::of(pass,
/// depth, modified) is that shape. M: a type of nvidia/warp_products.hpp.
template <class Shapes, int head_depth, class M, Pass pass, bool is_modified>
struct TileConfig {
    using Math = M;
    enum : int { // not static members: g++ calls classes with those not mappable
        depth = head_depth,
        depth_v = value_depth(head_depth),
        fragments = Shapes::of(pass, head_depth, is_modified).fragments,
        stream_rows = Shapes::of(pass, head_depth, is_modified).stream_rows,
        warps = Shapes::of(pass, head_depth, is_modified).warps,
        in_registers = Shapes::of(pass, head_depth, is_modified).in_registers,
        places = Shapes::of(pass, head_depth, is_modified).places,
        team_bytes = Shapes::of(pass, head_depth, is_modified).team_bytes,
        refetch = keys_stay(pass) || is_modified,
        modified = is_modified,
    };
};

/// Config of Hopper's machines, all four. team_side: which of a pair of teams; 0 where a crew is one.
template <class Shapes, int head_depth, class M, Pass pass, bool is_modified, int team_side>
struct HopperConfig : TileConfig<Shapes, head_depth, M, pass, is_modified> {
    enum : int {
        teams = Shapes::of(pass, head_depth, is_modified).teams,
        side = team_side,
        answers = teams == 2 && pass == Pass::backward_key,
        accumulators = teams == 1 && keys_stay(pass) ? 2 : 1,
        residents = pass == Pass::forward || teams == 2 ? 1 : 2, // of a team
        panels_in_memory = Shapes::of(pass, head_depth, is_modified).panels_in_memory,
        // Two need more registers than there are.
        one_loop = teams == 2 || (pass == Pass::backward_key && head_depth == 128),
        copies_stats = keys_stay(pass) && team_side == 0,
        is_once = pass == Pass::backward_once,
        is_of_sums = pass == Pass::backward_start || pass == Pass::backward_end,
        defers = Shapes::of(pass, head_depth, is_modified).defers,
        lead = Shapes::of(pass, head_depth, is_modified).lead,
        sums_lead = Shapes::of(pass, head_depth, is_modified).sums_lead,
    };
};

} // namespace flashomp::offload
