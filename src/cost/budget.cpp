#include "budget.hpp"

#include "kernel_params.hpp"
#include "option_list.hpp"
#include "registry.hpp"

#include "launch/tensor_shapes.hpp"
#include "plain/slices.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

namespace flashomp::cost {

namespace {

namespace fs = std::filesystem;

std::string line_of(const fs::path& path)
{
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

/// "32768K" as bytes; 0 where it is something else.
std::int64_t bytes_of(const std::string& text)
{
    std::int64_t value = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const std::string_view unit(stop, static_cast<std::size_t>(text.data() + text.size() - stop));
    if (error != std::errc()) {
        return 0;
    }
    return value * (unit == "K" ? 1024 : (unit == "M" ? 1024 * 1024 : 1));
}

} // namespace

OnChip host_on_chip(const fs::path& cpus)
{
    OnChip chip;
    std::set<std::string> seen; // the CPUs that share an L3 cache: each cache counts once
    std::error_code none;
    for (const fs::directory_entry& cpu : fs::directory_iterator(cpus, none)) {
        for (const fs::directory_entry& cache : fs::directory_iterator(cpu.path() / "cache", none)) {
            const std::string level = line_of(cache.path() / "level");
            const std::int64_t size = bytes_of(line_of(cache.path() / "size"));
            if (level == "1" && line_of(cache.path() / "type") != "Instruction") {
                chip.l1 = std::max(chip.l1, size);
            } else if (level == "2") {
                chip.l2 = std::max(chip.l2, size);
            } else if (level == "3" && seen.insert(line_of(cache.path() / "shared_cpu_list")).second) {
                chip.l3 += size;
            }
        }
    }
    return chip;
}

OnChip device_on_chip(const DeviceFacts& facts)
{
    OnChip chip;
    chip.team_memory = 4 * offload::team_memory_floats();
    chip.registers = 4 * std::int64_t{facts.registers};
    chip.shared_memory = facts.shared_bytes;
    return chip;
}

TileBudget tile_budget(const Problem& problem, const PassPlan& forward)
{
    const bool tensor_cores = forward.machine == Machine::tensor || forward.machine == Machine::hopper;
    const std::int64_t rows = std::int64_t{forward.launch.resident_rows} * forward.heads_on_same_keys();
    const std::int64_t columns = forward.launch.stream_rows;
    // Tensor-core kernels are compiled for some depths only and hold the whole of theirs.
    const bool is_hopper = forward.machine == Machine::hopper;
    const bool is_cuda = forward.kernel != nullptr && forward.kernel->backend == Backend::cuda;
    const bool is_of_few = forward.kernel != nullptr && forward.kernel->parts != nullptr;
    const bool is_float8 = problem.dtype == DType::float8_e4m3;
    cuda::HopperBlocks own; // of CUDA's Hopper kernels
    if (is_hopper && is_cuda) {
        const offload::Params params = described_params(problem, {});
        own = is_float8 ? cuda::float8_blocks(params) : cuda::hopper_blocks(offload::Pass::forward, params);
    }
    const std::int64_t depth = forward.launch.depth;
    const std::int64_t d = own.depth > 0 ? own.depth : (tensor_cores ? depth : problem.head_dim);
    // Beyond their own depths: a part of v's columns at a time, one place for each block, and Q in memory.
    const bool is_in_parts = forward.machine == Machine::tensor && offload::value_depth(forward.launch.depth) < depth;
    const std::int64_t depth_v = is_in_parts ? offload::value_depth(forward.launch.depth) : depth;
    const std::int64_t dv = own.depth_v > 0 ? own.depth_v : (tensor_cores ? depth_v : problem.head_dim_v);
    // A CPU's matrix instructions take numbers as one, two or three bfloat16 terms; there is room for a streamed block
    // packed as either operand, and for packed scores.
    const bool in_terms = forward.machine == Machine::host && forward.isa->products != nullptr;
    const bool is_float32 = problem.dtype == DType::float32;
    const std::int64_t terms = is_float32 ? 3 : (problem.dtype == DType::float16 ? 2 : 1);
    const std::int64_t element = in_terms ? 2 * terms : (is_float8 ? 1 : (tensor_cores && !is_float32 ? 2 : 4));
    const std::int64_t operands = in_terms ? 2 : 1;
    // Blocks on their way to the chip have a place there too.
    std::int64_t stages_k = tensor_cores && !is_in_parts ? 2 : 1;
    std::int64_t stages_v = stages_k;
    std::int64_t panels_of_q = 0; // in memory
    if (own.stages > 0) {
        stages_k = stages_v = own.stages;
    } else if (is_hopper) {
        const offload::TensorShape shape = offload::hopper_shape(offload::Operands::bits16, offload::Pass::forward,
                                                                 forward.launch.depth, /*modified=*/false);
        stages_k = shape.lead + 1;
        stages_v = shape.sums_lead > 0 ? shape.sums_lead + 1 : stages_k + (shape.defers ? 1 : 0);
        panels_of_q = shape.panels_in_memory;
    }
    constexpr std::int64_t accumulator = 4;
    constexpr std::int64_t slice_columns = offload::plain_slice;
    constexpr std::int64_t statistics = 4; // sum, base, limit, correction
    TileBudget budget;
    // The plain machine has slices of rows that are too long for it.
    const bool is_sliced = forward.machine == Machine::plain && depth > offload::most_plain_depth;
    const auto held = [&](std::int64_t width) { return is_sliced ? std::min(width, slice_columns) : width; };
    budget.q = rows * held(d) * element;
    budget.k = stages_k * columns * held(d) * element * operands;
    budget.v = stages_v * columns * held(dv) * element * operands;
    budget.scores = rows * columns * (accumulator + (in_terms ? element : 0));
    budget.o = rows * dv * accumulator;
    // Of keys and values: the scales of 8 bits, or where the rows of a cache are and their scales.
    const std::int64_t of_row = in_terms ? accumulator : (is_sliced && is_cache(problem) ? 8 + accumulator : 0);
    budget.statistics = statistics * rows * accumulator + 2 * columns * of_row;
    if (is_of_few) { // each warp has a tile of its own
        for (std::int64_t* const part : {&budget.k, &budget.v, &budget.scores, &budget.o, &budget.statistics}) {
            *part *= forward.launch.crew_threads;
        }
    }
    const std::int64_t q_in_memory =
        is_float32 || is_in_parts || is_of_few ? budget.q : panels_of_q * 64 * rows * element;
    budget.in_registers = tensor_cores ? budget.q - q_in_memory + budget.scores + budget.o + budget.statistics : 0;
    budget.in_memory = budget.total() - budget.in_registers;
    return budget;
}

Blocks classic_blocks(std::int64_t on_chip_elements, std::int64_t head_dim)
{
    const std::int64_t columns = std::max<std::int64_t>(1, (on_chip_elements + 4 * head_dim - 1) / (4 * head_dim));
    return {std::min(columns, head_dim), columns};
}

} // namespace flashomp::cost
