#include "second_computation.hpp"

#include "cuda_passes.hpp"
#include "host/nonfinite.hpp"
#include "host_threads.hpp"
#include "openmp_passes.hpp"

namespace flashomp {

SecondComputation::SecondComputation(const Problem& problem, offload::Params& params, const Place& place,
                                     Staging& staging)
    : problem_(problem), place_(place), staging_(staging), space_(space_of(place.hardware, problem.options)),
      word_(space_)
{
    params.nonfinite = word_.address();
    params_ = params;
    // What is not finite now is so by the inputs. The first computation's scratch memory for parts is not used.
    params_.nonfinite = nullptr;
    params_.splits = params_.head_splits = 1;
    if (space_.is_asynchronous && problem_.dtype != DType::float8_e4m3) {
        prepare();
    }
}

void SecondComputation::prepare()
{
    problem_.options.machine = Machine::plain;
    problem_.options.tiling = {};
    plan_ = plan(problem_, place_.hardware);
    plan_->splits = plan_->head_splits = 1;
    plan_->merges = false;
    if (space_.kind == Space::Kind::cuda) {
        stage_units(*plan_, staging_);
    } else if (space_.is_host()) {
        keep_to_startable(*plan_);
    }
}

void SecondComputation::run_prepared(const unsigned* only_if)
{
    if (space_.kind == Space::Kind::cuda) {
        run_cuda_visible(*plan_, params_, place_, space_, only_if);
    } else {
        expect_where_sent(place_, run_openmp_visible(*plan_, problem_, params_, place_.hardware).on_device);
    }
}

bool SecondComputation::run(const Plan& first, bool all_is_finite)
{
    const Hardware& hardware = place_.hardware;
    if (space_.is_asynchronous) {
        if (plan_) {
            run_prepared(word_.address());
        }
        return false;
    }
    wait_for(space_);
    const bool is_needed = !all_is_finite || word_.is_set();
    if (!is_needed || problem_.dtype == DType::float8_e4m3) { // which the plain machine does not have
        return false;
    }
    if (hardware.is_device || first.passes.front().machine == Machine::plain) {
        prepare();
        run_prepared(nullptr);
        wait_for(space_);
    } else {
        problem_.is_backward ? offload::repair_backward(params_, host_threads(hardware.threads))
                             : offload::repair_forward(params_, host_threads(hardware.threads));
    }
    return true;
}

} // namespace flashomp
