#include "constants.hpp"

#include "registry.hpp"

#include <cstddef>
#include <cstring>
#include <vector>

namespace flashomp {

namespace {

constexpr std::size_t granule = 64; // arrays begin on cache lines

template <class Values>
std::size_t bytes_of(const Values& values)
{
    return (values.size() * sizeof(*values.data()) + granule - 1) / granule * granule;
}

/// Calls f(values, set) for each array; set(address) tells the kernels where it is.
template <class F>
void each_array(const Problem& problem, std::initializer_list<Plan*> plans, Boundaries& boundaries, F f)
{
    for (Plan* const plan : plans) {
        if (plan == nullptr) {
            continue;
        }
        for (PassPlan& pass : plan->passes) {
            if (pass.kernel->reads_units) {
                f(pass.units,
                  [&pass](const void* there) { pass.launch.units = static_cast<const offload::Unit*>(there); });
            }
        }
    }
    f(problem.starts_q, [&](const void* there) { boundaries.q = static_cast<const std::int32_t*>(there); });
    f(problem.starts_k, [&](const void* there) { boundaries.k = static_cast<const std::int32_t*>(there); });
    if (const BlockMask& mask = problem.options.block_mask; mask) {
        f(mask.table(), [&](const void* there) { boundaries.mask_blocks = static_cast<const std::int32_t*>(there); });
        f(mask.bits(), [&](const void* there) { boundaries.mask_bits = static_cast<const std::uint8_t*>(there); });
    }
}

} // namespace

Constants::Constants(const Space& space, const Problem& problem, std::initializer_list<Plan*> plans)
{
    if (space.is_host()) {
        each_array(problem, plans, boundaries_, [](const auto& values, const auto& set) {
            if (!values.empty()) {
                set(values.data());
            }
        });
        return;
    }
    std::size_t bytes = 0;
    each_array(problem, plans, boundaries_, [&](const auto& values, const auto&) { bytes += bytes_of(values); });
    if (bytes == 0) {
        return;
    }
    memory_.emplace(static_cast<std::int64_t>(bytes), space);
    std::vector<std::byte> here(bytes);
    std::size_t at = 0;
    each_array(problem, plans, boundaries_, [&](const auto& values, const auto& set) {
        if (!values.empty()) {
            std::memcpy(here.data() + at, values.data(), values.size() * sizeof(values.front()));
            set(static_cast<const std::byte*>(memory_->data()) + at);
            at += bytes_of(values);
        }
    });
    copy_in(memory_->data(), space, here.data(), static_cast<std::int64_t>(bytes));
    if (!space.is_asynchronous) {
        wait_for(space); // streams of CUDA do not wait for the default one
    }
}

} // namespace flashomp
