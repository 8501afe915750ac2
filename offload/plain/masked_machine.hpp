// The plain machine with masks of any shape. A machine of its own, so that the kernels of calls without a mask have no
// code and no registers for it.
#pragma once

#include "plain/plain_machine.hpp"

#pragma omp declare target

namespace flashomp::offload {

class MaskedMachine : public PlainMachine {
public:
    enum : int { takes_masks = 1 };

    using PlainMachine::PlainMachine;
};

} // namespace flashomp::offload

#pragma omp end declare target
