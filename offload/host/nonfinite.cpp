#include "host/nonfinite.hpp"

#include "host/repair.hpp"

namespace flashomp::offload {

void repair_forward(const Params& params, int threads)
{
    Repair<Unmodified>::forward(params, threads);
}

void repair_backward(const Params& params, int threads)
{
    Repair<Unmodified>::backward(params, threads);
}

} // namespace flashomp::offload
