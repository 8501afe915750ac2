// The passes of calls with a mask of any shape on the plain machine, and the table of tiles before each: in builds with
// GPU code a library of its own (kernel_libraries.cpp), since few calls need them.
#include "launch/fill_tiles.hpp"
#include "launch/keys.hpp"
#include "launch/plain_pass.hpp"
#include "plain/masked_machine.hpp"

namespace flashomp::offload {

static_assert(SummingMachine<MaskedMachine>);

/// Every pass as one with modified scores, which do what the others do, too.
static Ran run(const Call& call, Call* there)
{
    const Ran filled = fill_tiles_there(call, there);
    Ran ran;
    for_pass_and_keys(call.params.cache, call.launch.pass, true, [&]<Pass pass, bool, class Keys>() {
        ran = run_pass<MaskedMachine, pass, pass != Pass::backward_sink, Keys>(call.launch, there);
    });
    ran.on_device = ran.on_device && filled.on_device;
    return ran;
}

#if FLASHOMP_KERNEL_LIBRARY
extern "C" __attribute__((visibility("default"))) Ran flashomp_run(const Call& call, Call* there)
{
    return run(call, there);
}
#else
bool has_masked_machine()
{
    return true;
}

Ran run_masked(const Call& call, Call* there)
{
    return run(call, there);
}
#endif

} // namespace flashomp::offload
