#include "second_computation.hpp"

#include "calls.hpp"
#include "constants.hpp"
#include "cuda_passes.hpp"
#include "openmp_passes.hpp"
#include "workspace.hpp"

#include "host/nonfinite.hpp"
#include "host_threads.hpp"

namespace flashomp {

namespace {

/// The plain machine has no 8 bits.
bool has_second_computation(const Problem& problem)
{
    return problem.dtype != DType::float8_e4m3;
}

/// What is not finite now is so by the inputs. The first computation's scratch memory for parts is not used.
offload::Params second_params(offload::Params params)
{
    params.nonfinite = nullptr;
    params.mask.tiles = nullptr; // that of other blocks
    params.splits = params.head_splits = 1;
    return params;
}

} // namespace

SecondComputation::SecondComputation(const Problem& problem, const Place& place, const Space& space)
    : problem_(problem), place_(place), space_(space)
{
    if (space.is_asynchronous && has_second_computation(problem)) {
        plan_of_stream_ = planned();
    }
}

Plan SecondComputation::planned() const
{
    Problem problem = problem_;
    problem.options.machine = Machine::plain;
    problem.options.tiling = {};
    Plan plan = flashomp::plan(problem, place_.hardware);
    plan.splits = plan.head_splits = 1;
    plan.merges = false;
    plan.merged_blocks = 0;
    return plan;
}

void SecondComputation::queue(const offload::Params& params, const Space& space) const
{
    if (plan_of_stream_) {
        run_cuda_visible(*plan_of_stream_, second_params(params), place_, space, params.nonfinite);
    }
}

bool SecondComputation::run(const Plan& first, const offload::Params& params, int most_threads) const
{
    if (!has_second_computation(problem_)) {
        return false;
    }
    const Hardware& hardware = place_.hardware;
    const offload::Params second = second_params(params);
    if (hardware.is_device || first.passes.front().machine == Machine::plain) {
        run_on_visible(second, most_threads);
    } else {
        const offload::ScoreKernels* const own = problem_.options.score_mod.kernels;
        const auto forward = own != nullptr ? own->repair_forward : offload::repair_forward;
        const auto backward = own != nullptr ? own->repair_backward : offload::repair_backward;
        (problem_.is_backward ? backward : forward)(second, host_threads(most_threads));
    }
    return true;
}

void SecondComputation::run_on_visible(const offload::Params& params, int most_threads) const
{
    Plan plan = planned();
    const Constants units(space_, problem_, {&plan}); // the boundaries are those of the first computation
    if (space_.kind == Space::Kind::cuda) {
        run_cuda_visible(plan, params, place_, space_, nullptr);
        wait_for(space_);
        return;
    }
    Calls calls(plan, problem_, space_);
    const Workspace crews(plan.crew_memory_bytes, space_);
    const Workspace memory(calls.workspace_bytes(), space_);
    calls.set(problem_, params, crews.floats(), memory.data(), space_,
              space_.is_host() ? startable_threads(plan, most_threads) : 1);
    expect_where_sent(place_, run_openmp_visible(plan, calls, place_.hardware, most_threads).on_device);
}

} // namespace flashomp
