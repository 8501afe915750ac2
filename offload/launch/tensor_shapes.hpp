// Block shapes of the tensor-core machines: what one file of kernels is compiled for and what plan() may choose.
#pragma once

#include "algorithm/team_memory.hpp"
#include "launch/launch.hpp"

namespace flashomp::offload {

/// What a tile's operands are multiplied as: bfloat16 or float16, or float32 as sums of two TF32 numbers.
enum class Operands { bits16, tf32 };

constexpr Operands operands_of(Element element)
{
    return element == Element::float32 ? Operands::tf32 : Operands::bits16;
}

/// Rows and columns of the tiles of a crew. Registers decide: a lane has 255, and a multiprocessor holds 8 such warps.
/// 16·fragments rows of accumulators, resident operands and two score tiles must fit.
struct TensorShape {
    int fragments = 0;   ///< a warp's resident rows, in 16; 0: there is no kernel
    int stream_rows = 0; ///< of a streamed block
    int warps = 0;
    int in_registers = 2; ///< resident blocks that stay in registers; the others stay in team memory
    /// Streamed blocks that team memory holds: two stages of two, or fewer: then what serves scores alone or sums alone
    /// has one place.
    int places = 4;
    // Hopper:
    bool defers = false; ///< sums are computed behind the next block's scores
    int lead = 1;        ///< so many blocks for scores are on their way while one is at work
    int sums_lead = 0;   ///< the same for blocks that are only summed; 0: there are none
    int teams = 1;       ///< of a crew: 2 are a cluster (PairedMachine)
    /// Of the resident blocks, panels of 64 columns that products read from team memory, from the last block's end on.
    int panels_in_memory = 0;
    /// Team memory. The Hopper machine's is dynamic shared memory, of which only launches past libgomp have more than
    /// 48 KB (direct.hpp).
    int team_bytes = team_memory_bytes;

    [[nodiscard]] constexpr int resident_rows() const { return 16 * fragments * warps; }
};

/// A pass's shapes at the depths that kernels are compiled for. Most have none beyond 256.
struct ShapesOfDepths {
    TensorShape at_64{}, at_128{}, at_256{}, at_576{};

    [[nodiscard]] constexpr TensorShape operator[](int depth) const
    {
        return depth == 64 ? at_64 : depth == 128 ? at_128 : depth == 256 ? at_256 : at_576;
    }
};

/// Columns of values that a crew sums at a time: its accumulators. Beyond 256 they would take more registers than there
/// are, and the crew goes over the keys once for every 256 columns (nvidia/latent_machine.hpp).
constexpr int value_depth(int depth)
{
    return depth <= 256 ? depth : 256;
}

/// Bytes of team memory: streamed blocks, what is resident and not in registers, and two stages of the three row
/// statistics that the dK/dV pass streams.
constexpr int tensor_bytes(const TensorShape& shape, Operands operands, Pass pass, int depth)
{
    const int element_bytes = operands == Operands::tf32 ? 4 : 2;
    const int residents = pass == Pass::forward ? 1 : 2;
    const int in_memory = residents > shape.in_registers ? residents - shape.in_registers : 0;
    const int statistics = pass == Pass::backward_key ? 3 : 0;
    if (value_depth(depth) < depth) { // one place for keys and one for values
        return element_bytes * (shape.stream_rows * (depth + value_depth(depth)) + shape.resident_rows() * depth);
    }
    return element_bytes * depth * (shape.places * shape.stream_rows + in_memory * shape.resident_rows()) +
           2 * 4 * shape.stream_rows * statistics;
}

/// Whether a crew sums dV and then dK, with the scores computed for each: where both accumulators, or both resident
/// blocks, would take more than there is. With modified scores at depth 128 it is the stack of what does not fit the
/// registers, of which CUDA gives a lane 1 KB by default and libgomp asks for no more.
constexpr bool sums_apart(Operands operands, Pass pass, int depth, bool modified)
{
    return pass == Pass::backward_key && (depth == 256 || (depth == 128 && (modified || operands == Operands::tf32)));
}

/// tensor_shape() of float32. Its elements take twice the memory, and resident blocks are read from there every time.
constexpr TensorShape tf32_shape(Pass pass, int depth)
{
    ShapesOfDepths shapes;
    if (pass == Pass::forward) {
        shapes = {.at_64 = {.fragments = 2, .stream_rows = 24, .warps = 2},
                  .at_128 = {.fragments = 1, .stream_rows = 24, .warps = 2, .places = 2}};
    } else if (pass == Pass::backward_query) {
        shapes = {.at_64 = {.fragments = 2, .stream_rows = 16, .warps = 2, .places = 3},
                  .at_128 = {.fragments = 1, .stream_rows = 8, .warps = 2, .places = 3}};
    } else if (pass == Pass::backward_key) {
        shapes = {.at_64 = {.fragments = 1, .stream_rows = 24, .warps = 2},
                  .at_128 = {.fragments = 1, .stream_rows = 8, .warps = 2, .places = 3}};
    }
    TensorShape shape = shapes[depth];
    shape.in_registers = 0;
    return shape;
}

/// depth: 64, 128, 256 or 576; modified: Params::is_modified.
constexpr TensorShape tensor_shape(Operands operands, Pass pass, int depth, bool /*modified*/)
{
    if (operands == Operands::tf32) {
        return tf32_shape(pass, depth);
    }
    ShapesOfDepths shapes;
    if (pass == Pass::forward) {
        shapes = {.at_64 = {.fragments = 2, .stream_rows = 64, .warps = 4},
                  .at_128 = {.fragments = 1, .stream_rows = 32, .warps = 8},
                  .at_256 = {.fragments = 1, .stream_rows = 32, .warps = 4, .places = 2},
                  // All of a row's 576 columns are in team memory, of keys and of queries.
                  .at_576 = {.fragments = 1, .stream_rows = 16, .warps = 1, .in_registers = 0, .places = 2}};
    } else if (pass == Pass::backward_query) {
        shapes = {.at_64 = {.fragments = 1, .stream_rows = 64, .warps = 8},
                  .at_128 = {.fragments = 1, .stream_rows = 32, .warps = 8},
                  .at_256 = {.fragments = 1, .stream_rows = 16, .warps = 2, .in_registers = 1, .places = 3}};
    } else if (pass == Pass::backward_key) {
        shapes = {.at_64 = {.fragments = 1, .stream_rows = 64, .warps = 8},
                  .at_128 = {.fragments = 1, .stream_rows = 16, .warps = 4, .in_registers = 1},
                  .at_256 = {.fragments = 1, .stream_rows = 16, .warps = 2, .in_registers = 1, .places = 3}};
    }
    return shapes[depth];
}

/// The same for the launches of a backward pass that computes S and dP once (nvidia/once_machine.hpp): a crew has all
/// registers of a multiprocessor.
constexpr TensorShape once_shape(Pass pass, int depth, bool modified)
{
    if (modified || depth != 128) {
        return {};
    }
    TensorShape shape{.fragments = 1, .stream_rows = 64, .warps = 4, .team_bytes = 48 * 1024};
    if (pass == Pass::backward_once) {
        shape.warps = 8;
        shape.panels_in_memory = 4; // all of keys and values
        shape.team_bytes = 196 * 1024;
    }
    return shape;
}

/// The same for warpgroup products, whose right operands need no registers.
constexpr TensorShape hopper_shape(Operands operands, Pass pass, int depth, bool modified)
{
    if (operands == Operands::tf32 || pass == Pass::backward_bias || pass == Pass::backward_sink) {
        return {};
    }
    if (pass == Pass::backward_start || pass == Pass::backward_once || pass == Pass::backward_end) {
        return once_shape(pass, depth, modified);
    }
    // Two teams have the registers of a multiprocessor, so each has half of its shared memory. Of the 114 KB static
    // arrays, the alignment, the system's own and the call's parameters take 3 to 4.
    TensorShape usual{.fragments = 1, .stream_rows = 64, .warps = 4, .team_bytes = 110 * 1024};
    // A crew of two teams, where one has no room for its accumulators. In a pair half the warps have all the element
    // work: that of modified scores is better spread over the tensor machine's.
    TensorShape pair;
    if (!modified) {
        pair = usual;
        pair.stream_rows = 48;
        pair.teams = 2;
        pair.panels_in_memory = 4; // all of a side's resident block
    }
    ShapesOfDepths shapes{.at_64 = usual, .at_128 = usual, .at_256 = usual};
    if (pass == Pass::forward) {
        if (modified) { // others took a float32 dbias beyond its bound
            shapes.at_64 = {.fragments = 2, .stream_rows = 48, .warps = 4};
        } else {
            shapes.at_64.stream_rows = 128;
        }
        for (TensorShape* const shape : {&shapes.at_64, &shapes.at_128, &shapes.at_256}) {
            shape->defers = true;
            shape->lead = shape->sums_lead = 2;
        }
        // With all of q in registers blocks of 16 rows were the largest, and took 1.5 times as long.
        shapes.at_256.stream_rows = 32;
        shapes.at_256.panels_in_memory = 2;
        shapes.at_256.lead = 1;
    } else if (pass == Pass::backward_query) {
        shapes.at_64.defers = shapes.at_128.defers = true;
        shapes.at_64.lead = 2;
        shapes.at_128.panels_in_memory = modified ? 2 : 3;
        shapes.at_256 = pair;
    } else {
        shapes.at_64.lead = 2;
        shapes.at_64.panels_in_memory = 2;
        // Two accumulators are 128 registers. With k and v in memory there are enough for blocks of 64 rows, which with
        // one panel more in registers took 1.4 times as long. Sums behind the next scores took 1.35 to 1.5 times as
        // long.
        shapes.at_128.panels_in_memory = 4;
        shapes.at_256 = pair;
        if (modified) { // would need more stack than there is
            shapes.at_128 = {};
        }
    }
    return shapes[depth];
}

/// run_tensor() or run_hopper() for one kind of operands and one depth.
template <Operands operands, int depth>
Ran run_tensor_depth(const Call& call, Call* there);

} // namespace flashomp::offload
