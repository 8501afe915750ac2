// The plain machine of a program with a score of its own, and the one whose sums leave out hidden pairs: target regions
// that the program's g++ compiles, with the flags of the library's.
#pragma once

#include "launch/keys.hpp"
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
    Ran ran;
    for_pass_and_keys(call.params.cache, call.launch.pass, true, [&]<Pass pass, bool, class Keys>() {
        ran = run_pass<Machine, pass, pass != Pass::backward_sink, Keys>(call.launch, there);
    });
    return ran;
}

} // namespace flashomp::offload
