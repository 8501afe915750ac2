// The plain machine of a program with a score of its own, and the one whose sums leave out hidden pairs: target regions
// that the program's g++ compiles, with the flags of the library's.
#pragma once

#include "launch/plain_pass.hpp"
#include "plain/visible_machine.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Plain: PlainMachine or VisibleMachine.
template <class Plain, class Own>
class OwnOn : public Plain {
public:
    using Modification = Own;
    using Plain::Plain;
};

} // namespace flashomp::offload

#pragma omp end declare target

namespace flashomp::offload {

template <class Machine>
Ran run_own_region(const Call& call, Call* there)
{
    if (call.params.cache.is_quantised()) {
        return run_pass<Machine, Pass::forward, true, QuantisedKeys>(call.launch, there);
    }
    if (call.params.cache.is_there()) {
        return run_pass<Machine, Pass::forward, true, PagedKeys>(call.launch, there);
    }
    Ran ran;
    for_pass(call.launch.pass, true, [&]<Pass pass, bool>() {
        ran = run_pass<Machine, pass, pass != Pass::backward_sink, StridedKeys>(call.launch, there);
    });
    return ran;
}

} // namespace flashomp::offload
