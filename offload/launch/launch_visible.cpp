// The passes on the visible machine: in builds with GPU code a library of its own (kernel_libraries.cpp), since few
// calls need them.
#include "launch/keys.hpp"
#include "launch/plain_pass.hpp"
#include "plain/visible_machine.hpp"

namespace flashomp::offload {

static_assert(SummingMachine<VisibleMachine>);

/// Every pass as one with modified scores, which do what the others do, too.
static Ran run(const Call& call, Call* there)
{
    Ran ran;
    for_pass_and_keys(call.params.cache, call.launch.pass, true, [&]<Pass pass, bool, class Keys>() {
        ran = run_pass<VisibleMachine, pass, pass != Pass::backward_sink, Keys>(call.launch, there);
    });
    return ran;
}

#if FLASHOMP_KERNEL_LIBRARY
extern "C" __attribute__((visibility("default"))) Ran flashomp_run(const Call& call, Call* there)
{
    return run(call, there);
}
#else
bool has_plain_machine(int /*depth*/)
{
    return true;
}

bool has_visible_machine(int /*depth*/)
{
    return true;
}

Ran run_visible(const Call& call, Call* there)
{
    return call.launch.depth > most_plain_depth ? run_visible_sliced(call, there) : run(call, there);
}
#endif

} // namespace flashomp::offload
