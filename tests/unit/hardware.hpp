// Hardware to plan for: this host, and a GPU that it need not have.
#pragma once

#include "plan.hpp"

#include "host_isa.hpp"

namespace flashomp {

inline Hardware host_with(int threads)
{
    Hardware hardware;
    hardware.isa = &choose_host_isa();
    hardware.threads = threads;
    return hardware;
}

inline Hardware gpu()
{
    Hardware hardware = host_with(2);
    hardware.is_device = true;
    hardware.device = 0;
    return hardware;
}

} // namespace flashomp
