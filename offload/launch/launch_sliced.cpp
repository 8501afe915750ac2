// The passes on the sliced machine, and on the visible one that is made of it: in builds with GPU code a library of its
// own (kernel_libraries.cpp), since few calls have rows that long.
#include "launch/keys.hpp"
#include "launch/plain_pass.hpp"
#include "plain/visible_machine.hpp"

namespace flashomp::offload {

static_assert(SummingMachine<SlicedMachine<StridedKeys>> && SummingMachine<VisibleSlicedMachine<StridedKeys>>);

static Ran run(const Call& call, Call* there)
{
    Ran ran;
    for_pass_and_keys(call.params.cache, call.launch.pass, call.params.is_modified,
                      [&]<Pass pass, bool modified, class Keys>() {
                          ran = run_pass<SlicedMachine<Keys>, pass, modified, Keys>(call.launch, there);
                      });
    return ran;
}

/// Every pass as one with modified scores, which do what the others do, too.
static Ran run_leaving_out_hidden(const Call& call, Call* there)
{
    Ran ran;
    for_pass_and_keys(call.params.cache, call.launch.pass, true, [&]<Pass pass, bool, class Keys>() {
        ran = run_pass<VisibleSlicedMachine<Keys>, pass, pass != Pass::backward_sink, Keys>(call.launch, there);
    });
    return ran;
}

#if FLASHOMP_KERNEL_LIBRARY
extern "C" __attribute__((visibility("default"))) Ran flashomp_run(const Call& call, Call* there)
{
    return run(call, there);
}

extern "C" __attribute__((visibility("default"))) Ran flashomp_run_visible(const Call& call, Call* there)
{
    return run_leaving_out_hidden(call, there);
}
#else
Ran run_sliced(const Call& call, Call* there)
{
    return run(call, there);
}

Ran run_visible_sliced(const Call& call, Call* there)
{
    return run_leaving_out_hidden(call, there);
}
#endif

} // namespace flashomp::offload
