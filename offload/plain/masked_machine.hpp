// The plain machine with masks of any shape, and with shards in two stretches. A machine of its own, so that the
// kernels of other calls have no code and no registers for them.
#pragma once

#include "plain/plain_machine.hpp"

#pragma omp declare target

namespace flashomp::offload {

class MaskedMachine : public PlainMachine {
public:
    enum : int { takes_masks = 1, takes_seams = 1 };

    using PlainMachine::PlainMachine;
};

} // namespace flashomp::offload

#pragma omp end declare target
